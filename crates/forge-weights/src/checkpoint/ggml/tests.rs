//! Blocks that forge repacks or dequantizes, compared with the values that gguf-py returns.
//! `tests/ggml/blocks.py` creates the files.

use crate::checkpoint::ggml::{dequantize, planes};
use crate::codec::row::decode_row;
use forge_ir::Blocks;

/// Blocks of any bytes at the start of a file, whose values follow.
const RANDOM: usize = 3;

const FILES: [(Blocks, &[u8]); 17] = [
    (Blocks::Q2_K, include_bytes!("../../../tests/ggml/q2_k.bin")),
    (Blocks::Q3_K, include_bytes!("../../../tests/ggml/q3_k.bin")),
    (Blocks::IQ2_XXS, include_bytes!("../../../tests/ggml/iq2_xxs.bin")),
    (Blocks::IQ2_XS, include_bytes!("../../../tests/ggml/iq2_xs.bin")),
    (Blocks::IQ2_S, include_bytes!("../../../tests/ggml/iq2_s.bin")),
    (Blocks::IQ3_XXS, include_bytes!("../../../tests/ggml/iq3_xxs.bin")),
    (Blocks::IQ3_S, include_bytes!("../../../tests/ggml/iq3_s.bin")),
    (Blocks::IQ1_S, include_bytes!("../../../tests/ggml/iq1_s.bin")),
    (Blocks::IQ1_M, include_bytes!("../../../tests/ggml/iq1_m.bin")),
    (Blocks::IQ4_NL, include_bytes!("../../../tests/ggml/iq4_nl.bin")),
    (Blocks::IQ4_XS, include_bytes!("../../../tests/ggml/iq4_xs.bin")),
    (Blocks::TQ1_0, include_bytes!("../../../tests/ggml/tq1_0.bin")),
    (Blocks::TQ2_0, include_bytes!("../../../tests/ggml/tq2_0.bin")),
    (Blocks::MXFP4, include_bytes!("../../../tests/ggml/mxfp4.bin")),
    (Blocks::NVFP4, include_bytes!("../../../tests/ggml/nvfp4.bin")),
    (Blocks::Q1_0, include_bytes!("../../../tests/ggml/q1_0.bin")),
    (Blocks::Q2_0, include_bytes!("../../../tests/ggml/q2_0.bin")),
];

/// The values of a row of blocks.
fn values(blocks: Blocks, row: &[u8]) -> Vec<f32> {
    let columns = row.len() / blocks.bytes() * blocks.columns();
    let mut out = vec![f32::NAN; columns];
    let format = blocks.format();
    if format.is_quantized() {
        let [mut codes, mut scales] = format.plane_bytes(columns).map(|bytes| vec![0xa5; bytes]);
        planes::planes(blocks, row, [&mut codes, &mut scales]);
        decode_row(format, [&codes, &scales], &mut out);
    } else {
        dequantize::values(blocks, row, &mut out);
    }
    out
}

fn hash(values: &[f32]) -> u64 {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |state, byte| (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[test]
fn values_match_gguf_py() {
    for (blocks, file) in FILES {
        let (random, rest) = file.split_at(RANDOM * blocks.bytes());
        let (expected, further) = rest.split_at(RANDOM * blocks.columns() * 4);
        let expected = expected.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let found = values(blocks, random);
        for (column, (found, expected)) in found.iter().zip(expected).enumerate() {
            // Affine formats have no negative 0.
            let equal = found.to_bits() == expected.to_bits() || *found == 0.0 && expected == 0.0;
            assert!(equal, "{blocks:?}, column {column}: {found:e}, expected {expected:e}");
        }
        for (at, block) in further.chunks(blocks.bytes() + 8).enumerate() {
            let (block, expected) = block.split_at(blocks.bytes());
            let found = hash(&values(blocks, block)).to_le_bytes();
            assert_eq!(found, expected, "{blocks:?}: block {at} of every point");
        }
    }
}

#[test]
fn every_block_format_has_a_reference() {
    let others = [Blocks::Q4_0, Blocks::Q4_1, Blocks::Q5_0, Blocks::Q5_1, Blocks::Q8_0];
    let k_quants = [Blocks::Q4_K, Blocks::Q5_K, Blocks::Q6_K];
    for blocks in Blocks::ALL {
        let has_file = FILES.iter().any(|(of, _)| *of == blocks);
        let has_test = others.contains(&blocks) || k_quants.contains(&blocks);
        assert!(has_file != has_test, "{blocks:?}");
    }
}

#[test]
fn formats_with_the_same_values_are_quantized_or_exact() {
    for (blocks, file) in FILES.into_iter().filter(|(blocks, _)| !blocks.format().is_quantized()) {
        let exact = values(blocks, &file[..RANDOM * blocks.bytes()])
            .iter()
            .all(|value| half::f16::from_f32(*value).to_f32() == *value);
        assert_eq!(exact, blocks.has_same_values(), "{blocks:?}");
    }
}
