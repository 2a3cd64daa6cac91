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

/// Rows of one slot, after their keys and values were appended, have the bits of rows that run one after the
/// other.
#[test]
fn rows_of_one_slot_equal_rows_in_sequence() {
    const ROWS: usize = 3;
    let mut shapes = shapes();
    shapes.extend(with_matrix_units());
    shapes.retain(|shape| {
        let fits = prologue_fits(shape.query_heads, shape.key_heads, shape.width);
        // A ring keeps what the first row sees.
        let ring = shape.ring.zip(shape.window).is_none_or(|(ring, window)| ring + 1 >= window + ROWS);
        fits && ring && shape.kv_source != KvSource::Nothing
    });
    assert!(shapes.len() > 20, "{}", shapes.len());
    let kernels = Kernels::of(shapes.iter().flat_map(|shape| [shape.split(true), shape.rope_append()]));
    let mut random = Random(31);
    for (index, shape) in shapes.iter().enumerate() {
        for (first, splits) in [(0, 1), (18, 3)] {
            let all = Batch::of(&[(1, first), (1, first + 1), (1, first + 2)]);
            let row_width = shape.row_width();
            let qkv = random.floats(ROWS * row_width);
            let gains = [0; 2].map(|_| random.floats(shape.width));
            let sinks = random.floats(shape.query_heads);
            let before =
                [0; 2].map(|_| cache(&mut random, shape, |slot| usize::from(slot == 1) * first as usize).0);
            let heads = shape.query_heads * shape.width * 4;
            let partials = shape.query_heads * splits * (shape.width + 2) * 4;
            let run = |kernel: usize, rows: std::ops::Range<usize>, cache: &[Vec<u8>; 2], appends: usize| {
                let qkv = &qkv[rows.start * row_width..rows.end * row_width];
                let (slots, positions) = (&all.slots[rows.clone()], &all.positions[rows.clone()]);
                let scalars: Vec<(&str, usize)> = shape
                    .scalars(rows.len(), splits)
                    .into_iter()
                    .map(|(name, value)| (name, if name == "appends" { appends } else { value }))
                    .collect();
                let [partials, heads] =
                    if splits > 1 { [rows.len() * partials, 0] } else { [0, rows.len() * heads] };
                kernels.run(
                    kernel,
                    &scalars,
                    &[
                        ("qkv", Input::F32(qkv)),
                        ("query_gain", Input::F32(&gains[0])),
                        ("key_gain", Input::F32(&gains[1])),
                        ("keys", Input::Bytes(&cache[0])),
                        ("values", Input::Bytes(&cache[1])),
                        ("sinks", Input::F32(&sinks)),
                        ("gates", Input::F32(qkv)),
                        ("slots", Input::U32(slots)),
                        ("positions", Input::U32(positions)),
                        ("q", Input::Uninitialized(rows.len() * shape.query_heads * shape.width * 4)),
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
