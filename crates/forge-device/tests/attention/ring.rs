//! A ring buffer for sliding windows gives results bitwise identical to a cache of the whole context.

use crate::support::{Argument, NAN, Random, each_level, kernel, run_kernel};
use crate::{cache_bytes, rope_parameters};
use forge_device::cpu::{self};
use forge_device::ops::{self, Format, KvSource, Pairing};

const HEADS: usize = 2;
const WIDTH: usize = 18;
const CONTEXT: usize = 300;

/// The contents of a ring buffer of this size after all positions before `end` were written, given the full cache of one slot.
fn in_ring(whole: &[u8], ring: usize, end: usize, element: usize) -> Vec<u8> {
    let position = WIDTH * element;
    let mut bytes = NAN.repeat(HEADS * ring * position / 4);
    for head in 0..HEADS {
        for at in 0..end {
            let from = &whole[(head * CONTEXT + at) * position..][..position];
            bytes[(head * ring + at % ring) * position..][..position].copy_from_slice(from);
        }
    }
    bytes
}

/// Rows at the last positions before `end` read the same values from a ring as from the full cache. `ring` is too small if a later row
/// overwrites a position that an earlier one reads.
#[test]
fn attention_over_a_ring_is_exact() {
    kernel_under_test!(SHAPE, ops::Attend, cpu::attend);
    let mut random = Random(21);
    let kernel = kernel("attend", vec!["q", "keys", "values", "slots", "positions", "heads"], run);
    for (cache, window, ring, rows, end, is_enough) in [
        (Format::F16, 50, 64, 15, 299, true),
        (Format::F16, 50, 64, 16, 299, false),
        (Format::F32, 64, 64, 1, 200, true),
        (Format::F32, 7, 128, 120, 300, true),
        (Format::F32, 9, 128, 121, 300, false),
        (Format::F16, 100, 192, 30, 31, true),
    ] {
        let element = if cache == Format::F16 { 2 } else { 4 };
        let whole = [0; 2].map(|_| cache_bytes(&random.floats(HEADS * CONTEXT * WIDTH), cache));
        let rings = whole.each_ref().map(|whole| in_ring(whole, ring, end, element));
        let q = random.floats(rows * 3 * HEADS * WIDTH);
        let positions: Vec<u32> = (end - rows..end).map(|position| position as u32).collect();
        let shape = |ring| ops::Attend {
            gates: None,
            query_heads: 3 * HEADS,
            key_heads: HEADS,
            width: WIDTH,
            cache,
            ring,
            scale: 0.3,
            window: Some(window),
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
                Argument::U32(positions.clone()),
                Argument::Output(NAN.repeat(q.len())),
            ]
        };
        let (of_whole, of_ring) = (given(whole), given(rings));
        each_level(|level, threads| {
            *SHAPE.write().unwrap() = Some(shape(None));
            let wanted = run_kernel(kernel, &of_whole, &[rows as u32, CONTEXT as u32], level, threads);
            *SHAPE.write().unwrap() = Some(shape(Some(ring)));
            let scalars = [rows as u32, CONTEXT as u32, ring as u32];
            let got = run_kernel(kernel, &of_ring, &scalars, level, threads);
            assert_eq!(got == wanted, is_enough, "{level:?} {window} {ring} {rows}");
        });
    }
}

#[test]
fn ring_appends_wrap_around() {
    kernel_under_test!(SHAPE, ops::RopeAppend, cpu::rope_append);
    let mut random = Random(22);
    let kernel = kernel("rope_append", vec!["qkv", "slots", "positions", "q", "keys", "values"], run);
    for (cache, ring, first, rows) in [(Format::F16, 64, 120, 20), (Format::F32, 128, 0, 9)] {
        let element = if cache == Format::F16 { 2 } else { 4 };
        let qkv = random.floats(rows * 4 * HEADS * WIDTH);
        let before = [0; 2].map(|_| cache_bytes(&random.floats(HEADS * CONTEXT * WIDTH), cache));
        let rings = before.each_ref().map(|whole| in_ring(whole, ring, first, element));
        let shape = |ring| ops::RopeAppend {
            query_heads: 2 * HEADS,
            key_heads: HEADS,
            width: WIDTH,
            cache,
            ring,
            kv_source: KvSource::KeysAndValues,
            norm: None,
            rope: rope_parameters(WIDTH / 2, Pairing::Half, 1.0),
        };
        let given = |[keys, values]: [Vec<u8>; 2]| {
            [
                Argument::F32(qkv.clone()),
                Argument::U32(vec![0; rows]),
                Argument::U32((first..first + rows).map(|position| position as u32).collect()),
                Argument::Output(NAN.repeat(rows * 2 * HEADS * WIDTH)),
                Argument::Output(keys),
                Argument::Output(values),
            ]
        };
        let (of_whole, of_ring) = (given(before), given(rings));
        each_level(|level, threads| {
            *SHAPE.write().unwrap() = Some(shape(None));
            let whole = run_kernel(kernel, &of_whole, &[rows as u32, CONTEXT as u32], level, threads);
            *SHAPE.write().unwrap() = Some(shape(Some(ring)));
            let scalars = [rows as u32, CONTEXT as u32, ring as u32];
            let got = run_kernel(kernel, &of_ring, &scalars, level, threads);
            assert_eq!(got[0], whole[0], "{level:?}: queries");
            for which in [1, 2] {
                let wanted = in_ring(&whole[which], ring, first + rows, element);
                assert_eq!(got[which], wanted, "{level:?} {ring}");
            }
        });
    }
}
