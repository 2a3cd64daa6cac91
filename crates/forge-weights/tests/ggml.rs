//! ggml superblocks, compared with the values that ggml's own readers return. `ggml/make.py` creates the files.

use forge_ir::{Format, SUPERBLOCK};
use forge_weights::{decode_row, encode_row, ggml_bytes, ggml_row};

/// Superblocks of any bytes, and those of a normal distribution.
const RANDOM: usize = 3;
const NORMAL: usize = 4;

const FILES: [(Format, &[u8]); 3] = [
    (Format::Q4K, include_bytes!("ggml/q4_k.bin")),
    (Format::Q5K, include_bytes!("ggml/q5_k.bin")),
    (Format::Q6K, include_bytes!("ggml/q6_k.bin")),
];

/// The superblocks of a file, their values, and the original values of the last of them.
fn parts(format: Format, file: &[u8]) -> (&[u8], Vec<f32>, Vec<f32>) {
    let (superblocks, numbers) = file.split_at((RANDOM + NORMAL) * ggml_bytes(format).unwrap());
    let mut numbers: Vec<f32> =
        numbers.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let given = numbers.split_off((RANDOM + NORMAL) * SUPERBLOCK);
    (superblocks, numbers, given)
}

fn decode(format: Format, planes: &[Vec<u8>; 2], columns: usize) -> Vec<f32> {
    let mut row = vec![f32::NAN; columns];
    decode_row(format, [&planes[0], &planes[1]], &mut row);
    row
}

#[test]
fn decodes_ggml_blocks_bit_for_bit() {
    for (format, file) in FILES {
        let (superblocks, numbers, _) = parts(format, file);
        let mut planes = format.plane_bytes(numbers.len()).map(|bytes| vec![0xa5; bytes]);
        let [codes, scales] = &mut planes;
        ggml_row(format, superblocks, [codes, scales]);
        for (column, (ours, theirs)) in
            decode(format, &planes, numbers.len()).iter().zip(&numbers).enumerate()
        {
            assert_eq!(ours.to_bits(), theirs.to_bits(), "{format}, column {column}: {ours}, not {theirs}");
        }
    }
}

#[test]
fn rows_are_quantized_independently() {
    for (format, file) in FILES {
        let (superblocks, numbers, _) = parts(format, file);
        let of_row = ggml_bytes(format).unwrap();
        for (row, numbers) in superblocks.chunks(of_row).zip(numbers.chunks(SUPERBLOCK)) {
            let mut planes = format.plane_bytes(SUPERBLOCK).map(|bytes| vec![0; bytes]);
            let [codes, scales] = &mut planes;
            ggml_row(format, row, [codes, scales]);
            assert_eq!(decode(format, &planes, SUPERBLOCK), numbers, "{format}");
        }
    }
}

#[test]
fn quantization_error_is_at_most_that_of_ggml() {
    let error =
        |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt();
    for (format, file) in FILES {
        let (_, numbers, given) = parts(format, file);
        let mut planes = format.plane_bytes(given.len()).map(|bytes| vec![0; bytes]);
        let [codes, scales] = &mut planes;
        encode_row(format, &given, [codes, scales]).unwrap();
        let ours = error(&decode(format, &planes, given.len()), &given);
        let theirs = error(&numbers[RANDOM * SUPERBLOCK..], &given);
        println!("{format}: {:.4} of ggml's error", ours / theirs);
        assert!(ours <= theirs, "{format}: {ours}, and ggml's is {theirs}");
    }
}
