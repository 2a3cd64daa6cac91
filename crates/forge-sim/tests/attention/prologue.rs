//! Attention with a fused prologue, which prepares its row and appends it to the KV cache.

use crate::shape::{Shape, shapes};
use crate::shapes::with_matrix_units;
use crate::{Input, Kernels, compare};
use forge_kernels::{Spec, prologue_fits};
use forge_oracle::attention::{attend, gated_heads, prepare};
use forge_oracle::{Batch, Random, values_of};

/// The shapes whose prologue fits.
fn with_prologue() -> Vec<Shape> {
    let mut shapes = [shapes(), with_matrix_units()].concat();
    shapes.retain(|shape| prologue_fits(shape.layer.query_heads, shape.layer.key_heads, shape.layer.width));
    shapes
}

#[test]
fn attention_with_fused_prologue_matches_the_reference() {
    let shapes = with_prologue();
    let kernels = Kernels::of(shapes.iter().flat_map(|shape| [shape.split(true), shape.join()]));
    let mut random = Random(3);
    for (index, shape) in shapes.iter().enumerate() {
        let layer = &shape.layer;
        let (op, cache) = (layer.attend_with_prologue(), layer.kv_cache());
        for (batch, splits) in layer.decode_batches().into_iter().zip([1, 3, 1, 1, 1, 16]) {
            let rows = batch.rows();
            let given = layer.inputs(&mut random, rows);
            let written = usize::from(layer.appends());
            let reach = |slot| batch.reach(slot).saturating_sub(written);
            let before = [0; 2].map(|_| cache.random(&mut random, reach));
            let [heads, partials] = shape.written(rows, splits);
            let scalars = shape.scalars(rows, splits);
            let written = kernels.run(
                2 * index,
                &scalars,
                &[
                    (if layer.appends() { "qkv" } else { "q" }, Input::F32(&given.qkv)),
                    ("query_gain", Input::F32(&given.gains[0])),
                    ("key_gain", Input::F32(&given.gains[1])),
                    ("keys", Input::Bytes(&before[0].0)),
                    ("values", Input::Bytes(&before[1].0)),
                    ("sinks", Input::F32(&given.sinks)),
                    ("gates", Input::F32(&given.qkv)),
                    ("slots", Input::U32(&batch.slots)),
                    ("positions", Input::U32(&batch.positions)),
                    ("partials", Input::Uninitialized(partials)),
                    ("heads", Input::Uninitialized(heads)),
                ],
            );
            let [partials, mut heads] = [1, 0].map(|last| written[written.len() - 1 - last].clone());
            if splits > 1 {
                let inputs = [
                    ("partials", Input::Bytes(&partials)),
                    ("gates", Input::F32(&given.qkv)),
                    ("heads", Input::Uninitialized(shape.written(rows, 1)[0])),
                ];
                heads = kernels.run(2 * index + 1, &scalars, &inputs).swap_remove(0);
            }
            // The cache has the row's rounded key and value, and is otherwise unchanged.
            let prepared =
                prepare(&layer.rope_append(), layer.context, &given.qkv, given.gains(), &batch.positions);
            let after = [0, 1]
                .map(|which| cache.decode(if layer.appends() { &written[which] } else { &before[which].0 }));
            for (which, own) in [&prepared.keys, &prepared.values].into_iter().enumerate() {
                let error = |value: f64| shape.cache_error() * value.abs().max(1.0);
                cache.check_append(shape, [&before[which].1, &after[which]], own, &batch, error);
            }
            let caches = after.each_ref().map(|values| &values[..]);
            let expected = attend(&op, &cache, &prepared.queries, caches, &given.sinks, &batch);
            let expected = gated_heads(op.gates, expected, &given.qkv);
            compare(shape, &heads, values_of(&expected), 1e-5 + shape.rope_error());
        }
    }
}

/// Rows of one slot, after their keys and values were appended, have the bits of rows that run one after the
/// other.
#[test]
fn rows_of_one_slot_equal_rows_in_sequence() {
    const ROWS: usize = 3;
    const FIRST: usize = 18;
    let mut shapes = with_prologue();
    shapes.retain(|Shape { layer, .. }| {
        // A ring keeps what the first row sees.
        let ring = layer.ring.zip(layer.window).is_none_or(|(ring, window)| ring + 1 >= window + ROWS);
        ring && layer.appends() && layer.context > FIRST + ROWS
    });
    assert!(shapes.len() > 20, "{}", shapes.len());
    let kernels = Kernels::of(
        shapes.iter().flat_map(|shape| [shape.split(true), Spec::RopeAppend(shape.layer.rope_append())]),
    );
    let mut random = Random(31);
    for (index, shape) in shapes.iter().enumerate() {
        for (first, splits) in [(0, 1), (FIRST as u32, 3)] {
            let all = Batch::of(&[(1, first), (1, first + 1), (1, first + 2)]);
            let layer = &shape.layer;
            let (row_width, given) = (layer.row_width(), layer.inputs(&mut random, ROWS));
            let reach = |slot| if slot == 1 { first as usize } else { 0 };
            let before = [0; 2].map(|_| layer.kv_cache().random(&mut random, reach).0);
            let run = |kernel: usize, rows: std::ops::Range<usize>, cache: &[Vec<u8>; 2], appends: usize| {
                let qkv = &given.qkv[rows.start * row_width..rows.end * row_width];
                let (slots, positions) = (&all.slots[rows.clone()], &all.positions[rows.clone()]);
                let scalars: Vec<(&str, usize)> = shape
                    .scalars(rows.len(), splits)
                    .into_iter()
                    .map(|(name, value)| (name, if name == "appends" { appends } else { value }))
                    .collect();
                let [heads, partials] = shape.written(rows.len(), splits);
                kernels.run(
                    kernel,
                    &scalars,
                    &[
                        ("qkv", Input::F32(qkv)),
                        ("query_gain", Input::F32(&given.gains[0])),
                        ("key_gain", Input::F32(&given.gains[1])),
                        ("keys", Input::Bytes(&cache[0])),
                        ("values", Input::Bytes(&cache[1])),
                        ("sinks", Input::F32(&given.sinks)),
                        ("gates", Input::F32(qkv)),
                        ("slots", Input::U32(slots)),
                        ("positions", Input::U32(positions)),
                        ("q", Input::Uninitialized(shape.written(rows.len(), 1)[0])),
                        ("partials", Input::Uninitialized(partials)),
                        ("heads", Input::Uninitialized(heads)),
                    ],
                )
            };
            let (mut cache, mut wanted) = (before.clone(), Vec::new());
            for row in 0..ROWS {
                let written = run(2 * index, row..row + 1, &cache, 1);
                cache = [written[0].clone(), written[1].clone()];
                wanted.extend(written[2..].concat());
            }
            let [_, keys, values] = &run(2 * index + 1, 0..ROWS, &before, 1)[..] else { panic!("{shape:?}") };
            assert_eq!([keys, values], [&cache[0], &cache[1]], "{shape:?}");
            let found = run(2 * index, 0..ROWS, &[keys.clone(), values.clone()], 0);
            assert_eq!([&found[0], &found[1]], [keys, values], "{shape:?}");
            assert!(found[2..].concat() == wanted, "{shape:?} from position {first}");
        }
    }
}
