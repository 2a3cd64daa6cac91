//! Attention with a fused prologue, which prepares its row and appends it to the KV cache.

use crate::shape::{Batch, cache};
use crate::shapes::{shapes, with_matrix_units};
use crate::{Input, Kernels, Random, compare, to_f32};
use forge_kernels::prologue_fits;
use forge_ops::{Format, KvSource};

#[test]
fn attention_with_fused_prologue_matches_the_reference() {
    let mut shapes = shapes();
    shapes.extend(with_matrix_units());
    shapes.retain(|shape| prologue_fits(shape.query_heads, shape.key_heads, shape.width));
    let kernels = Kernels::of(shapes.iter().flat_map(|shape| [shape.split(true), shape.join()]));
    let mut random = Random(3);
    for (index, shape) in shapes.iter().enumerate() {
        let batches = [
            (Batch::of(&[(1, 0)]), 1),
            (Batch::of(&[(0, 0)]), 3),
            (Batch::of(&[(0, 18)]), 1),
            (Batch::of(&[(1, 149)]), 1),
            (Batch::of(&[(1, 149), (0, 3)]), 16),
        ];
        for (batch, splits) in batches {
            let rows = batch.rows();
            let row_width = shape.row_width();
            let appends = shape.kv_source != KvSource::Nothing;
            let qkv = random.floats(rows * row_width);
            let gains = [0; 2].map(|_| random.floats(shape.width));
            let sinks = random.floats(shape.query_heads);
            let of_row = |slot| batch.slots.iter().position(|of| *of == slot);
            let seen =
                |slot| of_row(slot).map_or(0, |row| batch.positions[row] as usize + usize::from(!appends));
            let before = [0; 2].map(|_| cache(&mut random, shape, seen).0);
            let many = splits > 1;
            let heads = rows * shape.query_heads * shape.width * 4;
            let partials = rows * shape.query_heads * splits * (shape.width + 2) * 4;
            let scalars = shape.scalars(rows, splits);
            let written = kernels.run(
                2 * index,
                &scalars,
                &[
                    (if appends { "qkv" } else { "q" }, Input::F32(&qkv)),
                    ("query_gain", Input::F32(&gains[0])),
                    ("key_gain", Input::F32(&gains[1])),
                    ("keys", Input::Bytes(&before[0])),
                    ("values", Input::Bytes(&before[1])),
                    ("sinks", Input::F32(&sinks)),
                    ("gates", Input::F32(&qkv)),
                    ("slots", Input::U32(&batch.slots)),
                    ("positions", Input::U32(&batch.positions)),
                    ("partials", Input::Uninitialized(if many { partials } else { 0 })),
                    ("heads", Input::Uninitialized(if many { 0 } else { heads })),
                ],
            );
            let [partials, mut heads_bytes] = [1, 0].map(|last| written[written.len() - 1 - last].clone());
            if many {
                let inputs = [
                    ("partials", Input::Bytes(&partials)),
                    ("gates", Input::F32(&qkv)),
                    ("heads", Input::Uninitialized(heads)),
                ];
                heads_bytes = kernels.run(2 * index + 1, &scalars, &inputs).swap_remove(0);
            }
            // The cache has the row's rounded key and value, and is otherwise unchanged.
            let after =
                [0, 1].map(|which| shape.to_f32(if appends { &written[which] } else { &before[which] }));
            let loss = shape.rope_error();
            let unit = shape.unit() + loss;
            let mut expected_heads = Vec::new();
            let mut expected = before.map(|bytes| shape.to_f32(&bytes));
            for row in 0..rows {
                let (slot, position) = (batch.slots[row], batch.positions[row]);
                let [queries, key, value] =
                    shape.prepared(&qkv[row * row_width..][..row_width], &gains, position);
                for head in 0..if appends { shape.key_heads } else { 0 } {
                    let at = shape.place(slot, head, position as usize);
                    for (which, prepared) in [(0, &key), (1, &value)] {
                        let prepared = &prepared[head * shape.width..][..shape.width];
                        compare(shape, &after[which][at..][..shape.width], prepared, unit);
                        expected[which][at..][..shape.width]
                            .copy_from_slice(&after[which][at..][..shape.width]);
                    }
                }
                let heads = shape.attended(&queries, &after[0], &after[1], &sinks, slot, position as usize);
                expected_heads.extend(shape.opened(heads, &qkv[row * row_width..]));
            }
            for (after, expected) in after.iter().zip(&expected) {
                let same = |(a, b): (&f32, &f32)| a == b || (a.is_nan() && b.is_nan());
                assert!(after.iter().zip(expected).all(same), "{shape:?} wrote where it should not");
            }
            compare(shape, &to_f32(&heads_bytes, Format::F32), &expected_heads, 1e-5 + loss);
        }
    }
}
