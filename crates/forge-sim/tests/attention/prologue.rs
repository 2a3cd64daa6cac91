//! Attention with a fused prologue, which prepares its row and appends it to the KV cache.

use crate::shape::{Batch, cache};
use crate::shapes::{met_by_units, shapes};
use crate::{Given, Kernels, Random, compare, numbers_of};
use forge_kernels::prologue_fits;
use forge_ops::{Format, KvSource};

#[test]
fn attention_with_fused_prologue_matches_the_reference() {
    let mut shapes = shapes();
    shapes.extend(met_by_units());
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
            let appends = shape.brings != KvSource::Nothing;
            let qkv = random.numbers(rows * row_width);
            let gains = [0; 2].map(|_| random.numbers(shape.width));
            let sinks = random.numbers(shape.query_heads);
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
                    (if appends { "qkv" } else { "q" }, Given::Numbers(&qkv)),
                    ("query_gain", Given::Numbers(&gains[0])),
                    ("key_gain", Given::Numbers(&gains[1])),
                    ("keys", Given::Bytes(&before[0])),
                    ("values", Given::Bytes(&before[1])),
                    ("sinks", Given::Numbers(&sinks)),
                    ("gates", Given::Numbers(&qkv)),
                    ("slots", Given::Words(&batch.slots)),
                    ("positions", Given::Words(&batch.positions)),
                    ("partials", Given::Unwritten(if many { partials } else { 0 })),
                    ("heads", Given::Unwritten(if many { 0 } else { heads })),
                ],
            );
            let [partials, mut heads_bytes] = [1, 0].map(|last| written[written.len() - 1 - last].clone());
            if many {
                let given = [
                    ("partials", Given::Bytes(&partials)),
                    ("gates", Given::Numbers(&qkv)),
                    ("heads", Given::Unwritten(heads)),
                ];
                heads_bytes = kernels.run(2 * index + 1, &scalars, &given).swap_remove(0);
            }
            // The cache has the row's rounded key and value, and is otherwise unchanged.
            let after =
                [0, 1].map(|which| shape.numbers(if appends { &written[which] } else { &before[which] }));
            let loss = shape.turning_loss();
            let unit = shape.unit() + loss;
            let mut wanted = Vec::new();
            let mut expected = before.map(|bytes| shape.numbers(&bytes));
            for row in 0..rows {
                let (slot, position) = (batch.slots[row], batch.positions[row]);
                let [queries, key, value] =
                    shape.prepared(&qkv[row * row_width..][..row_width], &gains, position);
                for head in 0..if appends { shape.key_heads } else { 0 } {
                    let at = shape.place(slot, head, position as usize);
                    for (which, made) in [(0, &key), (1, &value)] {
                        let made = &made[head * shape.width..][..shape.width];
                        compare(shape, &after[which][at..][..shape.width], made, unit);
                        expected[which][at..][..shape.width]
                            .copy_from_slice(&after[which][at..][..shape.width]);
                    }
                }
                let heads = shape.attended(&queries, &after[0], &after[1], &sinks, slot, position as usize);
                wanted.extend(shape.opened(heads, &qkv[row * row_width..]));
            }
            for (after, expected) in after.iter().zip(&expected) {
                let same = |(a, b): (&f32, &f32)| a == b || (a.is_nan() && b.is_nan());
                assert!(after.iter().zip(expected).all(same), "{shape:?} wrote where it should not");
            }
            compare(shape, &numbers_of(&heads_bytes, Format::F32), &wanted, 1e-5 + loss);
        }
    }
}
