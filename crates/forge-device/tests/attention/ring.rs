//! A ring buffer for sliding windows gives results bitwise identical to a cache of the whole context.

use crate::scalars;
use crate::support::{Argument, Call, NAN, Random, each_level, output};
use forge_device::cpu::{self};
use forge_device::ops::{self, Format};
use forge_oracle::attention_layers::AttentionLayer;

const HEADS: usize = 2;
const WIDTH: usize = 18;
const CONTEXT: usize = 300;

/// Random contents of one slot's full cache.
fn contents(layer: &AttentionLayer, random: &mut Random) -> Vec<u8> {
    layer.kv_cache().encode(&random.floats(HEADS * CONTEXT * WIDTH))
}

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
    for (cache, window, ring, rows, end, is_enough) in [
        (Format::F16, 50, 64, 15, 299, true),
        (Format::F16, 50, 64, 16, 299, false),
        (Format::F32, 64, 64, 1, 200, true),
        (Format::F32, 7, 128, 120, 300, true),
        (Format::F32, 9, 128, 121, 300, false),
        (Format::F16, 100, 192, 30, 31, true),
    ] {
        let layer = |ring| AttentionLayer {
            ring,
            window: Some(window),
            context: CONTEXT,
            ..AttentionLayer::plain(3 * HEADS, HEADS, WIDTH, cache)
        };
        let element = layer(None).kv_cache().head_bytes() / WIDTH;
        let whole = [0; 2].map(|_| contents(&layer(None), &mut random));
        let rings = whole.each_ref().map(|whole| in_ring(whole, ring, end, element));
        let q = random.floats(rows * 3 * HEADS * WIDTH);
        let positions: Vec<u32> = (end - rows..end).map(|position| position as u32).collect();
        let given = |[keys, values]: [Vec<u8>; 2]| {
            let arguments = [
                ("q", Argument::F32(q.clone())),
                ("keys", Argument::Bytes(keys)),
                ("values", Argument::Bytes(values)),
                ("slots", Argument::U32(vec![0; rows])),
                ("positions", Argument::U32(positions.clone())),
                ("heads", output(q.len())),
            ];
            Call::new("attend", run, arguments)
        };
        let (of_whole, of_ring) = (given(whole), given(rings));
        each_level(|level, threads| {
            let [wanted, got] =
                [(&of_whole, layer(None)), (&of_ring, layer(Some(ring)))].map(|(call, layer)| {
                    *SHAPE.write().unwrap() = Some(layer.attend());
                    call.run(&scalars(&layer, rows), level, threads)
                });
            assert_eq!(got == wanted, is_enough, "{level:?} {window} {ring} {rows}");
        });
    }
}

#[test]
fn ring_appends_wrap_around() {
    kernel_under_test!(SHAPE, ops::RopeAppend, cpu::rope_append);
    let mut random = Random(22);
    for (cache, ring, first, rows) in [(Format::F16, 64, 120, 20), (Format::F32, 128, 0, 9)] {
        let layer = |ring| AttentionLayer {
            ring,
            context: CONTEXT,
            ..AttentionLayer::plain(2 * HEADS, HEADS, WIDTH, cache)
        };
        let element = layer(None).kv_cache().head_bytes() / WIDTH;
        let qkv = random.floats(rows * 4 * HEADS * WIDTH);
        let before = [0; 2].map(|_| contents(&layer(None), &mut random));
        let rings = before.each_ref().map(|whole| in_ring(whole, ring, first, element));
        let given = |[keys, values]: [Vec<u8>; 2]| {
            let arguments = [
                ("qkv", Argument::F32(qkv.clone())),
                ("slots", Argument::U32(vec![0; rows])),
                ("positions", Argument::U32((first..first + rows).map(|p| p as u32).collect())),
                ("q", output(rows * 2 * HEADS * WIDTH)),
                ("keys", Argument::Output(keys)),
                ("values", Argument::Output(values)),
            ];
            Call::new("rope_append", run, arguments)
        };
        let (of_whole, of_ring) = (given(before), given(rings));
        each_level(|level, threads| {
            let [whole, got] =
                [(&of_whole, layer(None)), (&of_ring, layer(Some(ring)))].map(|(call, layer)| {
                    *SHAPE.write().unwrap() = Some(layer.rope_append());
                    call.run(&scalars(&layer, rows), level, threads)
                });
            assert_eq!(got[0], whole[0], "{level:?}: queries");
            for which in [1, 2] {
                let wanted = in_ring(&whole[which], ring, first + rows, element);
                assert_eq!(got[which], wanted, "{level:?} {ring}");
            }
        });
    }
}
