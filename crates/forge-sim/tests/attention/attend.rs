//! Attention of rows that are prepared and in the cache.

use crate::shape::{Batch, Shape, cache, shapes};
use crate::{CONTEXT, Given, Kernels, Random, bytes_of, compare, numbers_of, wide};
use forge_ir::Format;

#[test]
fn attention_of_few_and_many_rows() {
    let shapes = shapes();
    let kernels =
        Kernels::of(shapes.iter().flat_map(|shape| [shape.split(false), shape.tiled(), shape.join()]));
    let mut random = Random(2);
    for (index, shape) in shapes.iter().enumerate() {
        let batches = [
            (Batch::of(&[(0, 0)]), 1),
            (Batch::of(&[(1, 150)]), 5),
            (Batch::of(&[(0, 33), (1, 2), (0, 90)]), 16),
            (Batch::of(&(0..3).map(|i| (1, i)).chain((40..52).map(|i| (0, i))).collect::<Vec<_>>()), 2),
        ];
        for (batch, splits) in batches {
            let rows = batch.rows();
            let seen = |slot| {
                let of_slot = batch.slots.iter().zip(&batch.positions).filter(|(of, _)| **of == slot);
                of_slot.map(|(_, position)| *position as usize + 1).max().unwrap_or(0)
            };
            let [(key_bytes, keys), (value_bytes, values)] = [0; 2].map(|_| cache(&mut random, shape, seen));
            let q = random.numbers(rows * shape.query_heads * shape.width);
            let sinks = random.numbers(shape.query_heads);
            let row_width = shape.query_heads * shape.width;
            let wanted: Vec<f64> = (0..rows)
                .flat_map(|row| {
                    let q = wide(&q[row * row_width..][..row_width]);
                    let position = batch.positions[row] as usize;
                    shape.attended(&q, &keys, &values, &sinks, batch.slots[row], position)
                })
                .collect();
            let share = shape.width + 2;
            let given = |partials, heads| {
                [
                    ("q", Given::Numbers(&q)),
                    ("keys", Given::Bytes(&key_bytes)),
                    ("values", Given::Bytes(&value_bytes)),
                    ("sinks", Given::Numbers(&sinks)),
                    ("slots", Given::Words(&batch.slots)),
                    ("positions", Given::Words(&batch.positions)),
                    ("partials", Given::Unwritten(partials)),
                    ("heads", Given::Unwritten(heads)),
                ]
            };
            let heads = rows * row_width * 4;
            let scalars = |splits| [("rows", rows), ("context", CONTEXT), ("splits", splits)];
            let whole = kernels.run(3 * index, &scalars(1), &given(0, heads));
            compare(shape, &numbers_of(&whole[1], Format::F32), &wanted, 3e-6);
            let partials = rows * shape.query_heads * splits * share * 4;
            let partials = match splits {
                1 => continue,
                _ => kernels.run(3 * index, &scalars(splits), &given(partials, 0)).swap_remove(0),
            };
            let joined = kernels.run(
                3 * index + 2,
                &scalars(splits),
                &[("partials", Given::Bytes(&partials)), ("heads", Given::Unwritten(heads))],
            );
            compare(shape, &numbers_of(&joined[0], Format::F32), &wanted, 3e-6);
            // Tiles want rows of a slot to be neighbours.
            if batch.slots.windows(2).filter(|pair| pair[0] != pair[1]).count() < 2 {
                let tiled = kernels.run(3 * index + 1, &scalars(1), &given(0, heads));
                compare(shape, &numbers_of(&tiled[0], Format::F32), &wanted, 3e-6);
            }
        }
    }
}

/// What one slot's cache holds must not reach another's rows, though a tile has both: neither NaN nor infinity.
#[test]
fn slots_of_a_tile_do_not_meet() {
    let shape = Shape { sinks: false, ..shapes().swap_remove(1) };
    let kernels = Kernels::of([shape.tiled()]);
    let mut random = Random(5);
    let batch = Batch::of(&[(0, 7), (0, 8), (0, 9), (1, 20), (1, 21), (0, 3)]);
    for broken in [f32::NAN, f32::INFINITY] {
        let [keys, values] = [0; 2].map(|_| {
            let mut numbers = random.numbers(shape.cache_count());
            let slot = shape.place(1, 0, 0);
            numbers[slot..].fill(broken);
            numbers
        });
        let q = random.numbers(batch.rows() * shape.query_heads * shape.width);
        let given = [
            ("q", Given::Numbers(&q)),
            ("keys", Given::Bytes(&bytes_of(&keys, shape.cache))),
            ("values", Given::Bytes(&bytes_of(&values, shape.cache))),
            ("slots", Given::Words(&batch.slots)),
            ("positions", Given::Words(&batch.positions)),
            ("heads", Given::Unwritten(q.len() * 4)),
        ];
        let heads = kernels.run(0, &[("rows", batch.rows()), ("context", CONTEXT)], &given);
        let heads = numbers_of(&heads[0], Format::F32);
        let row_width = shape.query_heads * shape.width;
        for row in 0..batch.rows() {
            let found = &heads[row * row_width..][..row_width];
            if batch.slots[row] == 1 {
                assert!(found.iter().all(|v| !v.is_finite()), "row {row} does not show what it sees");
                continue;
            }
            let q = wide(&q[row * row_width..][..row_width]);
            let wanted = shape.attended(&q, &keys, &values, &[], 0, batch.positions[row] as usize);
            compare(&(row, broken), found, &wanted, 3e-6);
        }
    }
}
