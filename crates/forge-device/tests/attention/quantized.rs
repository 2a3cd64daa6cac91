//! The q8_0 KV cache: its contents are bitwise identical to a quantized f32 cache, and attention equals
//! attention over the dequantized values.

use crate::rope_parameters;
use crate::support::{Argument, NAN, Random, bytes_of, compare, each_level, kernel, run_kernel, to_f32};
use forge_device::cpu::{self};
use forge_device::ops::{self, Format, HeadNorm, KvSource, Pairing};
use half::f16;

const HEADS: usize = 2;
const CONTEXT: usize = 70;

/// Heads quantized to q8_0, by the definition: all quants, then an f16 scale for each 32.
fn coded(numbers: &[f32], width: usize) -> Vec<u8> {
    let record = |head: &[f32]| {
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        for block in head.chunks_exact(32) {
            let scale = f16::from_f32(block.iter().fold(0.0_f32, |most, x| most.max(x.abs())) / 127.0);
            let step = scale.to_f32();
            let code =
                |x: &f32| (x / step.max(f32::MIN_POSITIVE)).round_ties_even().clamp(-127.0, 127.0) as i8;
            codes.extend(block.iter().map(|x| code(x).cast_unsigned()));
            scales.extend(scale.to_ne_bytes());
        }
        [codes, scales].concat()
    };
    numbers.chunks_exact(width).flat_map(record).collect()
}

/// The dequantized values.
fn decoded(bytes: &[u8], width: usize) -> Vec<f32> {
    let head = |record: &[u8]| -> Vec<f32> {
        let scale = |block: usize| {
            let at = width + 2 * block;
            f16::from_ne_bytes([record[at], record[at + 1]]).to_f32()
        };
        (0..width).map(|c| scale(c / 32) * f32::from(record[c].cast_signed())).collect()
    };
    bytes.chunks_exact(width + width / 16).flat_map(head).collect()
}

#[test]
fn quantization_matches_f32_rounding() {
    kernel_under_test!(SHAPE, ops::RopeAppend, cpu::rope_append);
    let mut random = Random(31);
    let norm = Some(HeadNorm { epsilon: 1e-6, after_rope: false, values: false });
    for (width, rows, norm) in [(32, 3, None), (64, 7, norm), (96, 1, None), (128, 5, norm)] {
        let qkv = random.floats(rows * 4 * HEADS * width);
        let gains = [0; 2].map(|_| random.floats(width));
        let before = random.floats(HEADS * CONTEXT * width);
        let mut buffers = vec!["qkv"];
        let mut first = vec![Argument::F32(qkv)];
        if norm.is_some() {
            buffers.extend(["query_gain", "key_gain"]);
            first.extend(gains.map(Argument::F32));
        }
        buffers.extend(["slots", "positions", "q", "keys", "values"]);
        first.extend([
            Argument::U32(vec![0; rows]),
            Argument::U32((0..rows as u32).map(|row| row + 40).collect()),
            Argument::Output(NAN.repeat(rows * 2 * HEADS * width)),
        ]);
        let kernel = kernel("rope_append", buffers, run);
        let shape = |cache| ops::RopeAppend {
            query_heads: 2 * HEADS,
            key_heads: HEADS,
            width,
            cache,
            ring: None,
            kv_source: KvSource::KeysAndValues,
            norm,
            rope: rope_parameters(width / 2, Pairing::Half, 1.0),
        };
        let with = |cache: Vec<u8>| {
            let cache = [0; 2].map(|_| Argument::Output(cache.clone()));
            first.iter().cloned().chain(cache).collect::<Vec<_>>()
        };
        let (of_numbers, of_codes) = (with(bytes_of(&before)), with(coded(&before, width)));
        each_level(|level, threads| {
            let scalars = [rows as u32, CONTEXT as u32];
            *SHAPE.write().unwrap() = Some(shape(Format::F32));
            let numbers = run_kernel(kernel, &of_numbers, &scalars, level, threads);
            *SHAPE.write().unwrap() = Some(shape(Format::Q8_0));
            let codes = run_kernel(kernel, &of_codes, &scalars, level, threads);
            assert_eq!(codes[0], numbers[0], "{level:?} {width}: queries");
            for which in [1, 2] {
                let wanted = coded(&to_f32(&numbers[which]), width);
                assert!(codes[which] == wanted, "{level:?} {width}");
            }
        });
    }
}

#[test]
fn attention_reads_dequantized_caches() {
    kernel_under_test!(SHAPE, ops::Attend, cpu::attend);
    let mut random = Random(32);
    let kernel = kernel("attend", vec!["q", "keys", "values", "slots", "positions", "heads"], run);
    for (width, rows, window) in
        [(32, 1, None), (64, 9, Some(20)), (96, 30, None), (256, 2, None), (512, 1, None)]
    {
        let caches = [0; 2].map(|_| coded(&random.floats(HEADS * CONTEXT * width), width));
        let q = random.floats(rows * 3 * HEADS * width);
        let shape = |cache| ops::Attend {
            gates: None,
            query_heads: 3 * HEADS,
            key_heads: HEADS,
            width,
            cache,
            ring: None,
            scale: 0.3,
            window,
            softcap: None,
            sinks: false,
            prologue: None,
        };
        let given = |[keys, values]: [Vec<u8>; 2]| {
            [
                Argument::F32(q.clone()),
                Argument::Bytes(keys),
                Argument::Bytes(values),
                Argument::U32(vec![0; rows]),
                Argument::U32((0..rows as u32).map(|row| row + 40).collect()),
                Argument::Output(NAN.repeat(q.len())),
            ]
        };
        let of_numbers = given(caches.each_ref().map(|cache| bytes_of(&decoded(cache, width))));
        let of_codes = given(caches);
        each_level(|level, threads| {
            let scalars = [rows as u32, CONTEXT as u32];
            *SHAPE.write().unwrap() = Some(shape(Format::F32));
            let wanted = to_f32(&run_kernel(kernel, &of_numbers, &scalars, level, threads)[0]);
            *SHAPE.write().unwrap() = Some(shape(Format::Q8_0));
            let got = to_f32(&run_kernel(kernel, &of_codes, &scalars, level, threads)[0]);
            let wanted: Vec<(f64, f64)> = wanted.iter().map(|&x| (f64::from(x), 2.0)).collect();
            compare(&format!("{level:?} {width} {rows}"), &got, &wanted);
        });
    }
}
