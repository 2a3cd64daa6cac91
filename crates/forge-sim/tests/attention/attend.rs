//! Attention over prepared queries and a filled KV cache.

use crate::shape::{Batch, Shape, cache};
use crate::shapes::{other_layouts, shapes, with_matrix_units};
use crate::{Input, Kernels, Random, bytes_of, compare, to_f32, to_f64};
use forge_kernels::Spec;
use forge_kernels::spec::{AttentionLayout, CombineLayout, quantizes_heads};
use forge_ops::{Append, Format, Quantize};

#[test]
fn attention_matches_the_reference_for_few_and_many_rows() {
    check_attention(&shapes());
}

#[test]
fn attention_matches_the_reference_in_every_layout() {
    check_attention(&other_layouts());
}

#[test]
fn attention_with_matrix_units_matches_the_reference() {
    check_attention(&with_matrix_units());
}

fn check_attention(shapes: &[Shape]) {
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
            let q = random.floats(rows * shape.query_heads * shape.width);
            let sinks = random.floats(shape.query_heads);
            let row_width = shape.query_heads * shape.width;
            let gates = random.floats(rows * shape.row_width());
            let expected: Vec<f64> = (0..rows)
                .flat_map(|row| {
                    let q = to_f64(&q[row * row_width..][..row_width]);
                    let position = batch.positions[row] as usize;
                    let heads = shape.attended(&q, &keys, &values, &sinks, batch.slots[row], position);
                    shape.opened(heads, &gates[row * shape.row_width()..])
                })
                .collect();
            let stride = shape.width + 2;
            let inputs = |partials, heads| {
                [
                    ("q", Input::F32(&q)),
                    ("keys", Input::Bytes(&key_bytes)),
                    ("values", Input::Bytes(&value_bytes)),
                    ("sinks", Input::F32(&sinks)),
                    ("gates", Input::F32(&gates)),
                    ("slots", Input::U32(&batch.slots)),
                    ("positions", Input::U32(&batch.positions)),
                    ("partials", Input::Uninitialized(partials)),
                    ("heads", Input::Uninitialized(heads)),
                ]
            };
            let heads = rows * row_width * 4;
            let scalars = |splits| shape.scalars(rows, splits);
            let whole = kernels.run(3 * index, &scalars(1), &inputs(0, heads));
            let loss = shape.attention_error();
            compare(shape, &to_f32(&whole[1], Format::F32), &expected, loss);
            let partials = rows * shape.query_heads * splits * stride * 4;
            let partials = match splits {
                1 => continue,
                _ => kernels.run(3 * index, &scalars(splits), &inputs(partials, 0)).swap_remove(0),
            };
            let joined = kernels.run(
                3 * index + 2,
                &scalars(splits),
                &[
                    ("partials", Input::Bytes(&partials)),
                    ("gates", Input::F32(&gates)),
                    ("heads", Input::Uninitialized(heads)),
                ],
            );
            compare(shape, &to_f32(&joined[0], Format::F32), &expected, loss);
            // Tiles need adjacent rows of one sequence.
            if batch.slots.windows(2).filter(|pair| pair[0] != pair[1]).count() < 2 {
                let tiled = kernels.run(3 * index + 1, &scalars(1), &inputs(0, heads));
                compare(shape, &to_f32(&tiled[0], Format::F32), &expected, loss);
            }
        }
    }
}

/// A kernel that also writes quantized rows.
fn quantizing(spec: Spec) -> Spec {
    match spec {
        Spec::AttendSplit(kernel) => {
            Spec::AttendSplit(kernel.with_layout(|layout| AttentionLayout { quantizes: true, ..layout }))
        }
        Spec::AttendCombine(kernel) => {
            Spec::AttendCombine(kernel.with_layout(|_| CombineLayout { quantizes: true }))
        }
        other => other,
    }
}

#[test]
fn quantized_heads_equal_those_of_the_kernel_that_only_quantizes() {
    let quantizes = |shape: &Shape| quantizes_heads(shape.query_heads, shape.width);
    let shapes: Vec<Shape> = [shapes(), with_matrix_units()].concat().into_iter().filter(quantizes).collect();
    let width = |shape: &Shape| shape.query_heads * shape.width;
    let kernels = Kernels::of(shapes.iter().flat_map(|shape| {
        let alone = Quantize { width: width(shape), gain: false, parts: 0, pitch: None };
        [quantizing(shape.split(false)), quantizing(shape.join()), Spec::Quantize(alone)]
    }));
    let mut random = Random(7);
    for (index, shape) in shapes.iter().enumerate() {
        let rows = 3;
        let batch = Batch::of(&[(0, 33), (1, 2), (0, 90)]);
        let seen = |slot| if slot == 0 { 91 } else { 3 };
        let [(keys, _), (values, _)] = [0; 2].map(|_| cache(&mut random, shape, seen));
        let q = random.floats(rows * width(shape));
        let (sinks, gates) = (random.floats(shape.query_heads), random.floats(rows * shape.row_width()));
        let zeros = vec![0; 4 * Quantize::row_words(width(shape)) * 4];
        for splits in [1, 5] {
            let partials =
                if splits == 1 { 0 } else { rows * shape.query_heads * splits * (shape.width + 2) };
            let heads = rows * width(shape) * 4;
            let scalars = shape.scalars(rows, splits);
            let mut written = kernels.run(
                3 * index,
                &scalars,
                &[
                    ("q", Input::F32(&q)),
                    ("keys", Input::Bytes(&keys)),
                    ("values", Input::Bytes(&values)),
                    ("sinks", Input::F32(&sinks)),
                    ("gates", Input::F32(&gates)),
                    ("slots", Input::U32(&batch.slots)),
                    ("positions", Input::U32(&batch.positions)),
                    ("partials", Input::Uninitialized(partials * 4)),
                    ("heads", Input::Uninitialized(if splits == 1 { heads } else { 0 })),
                    ("quantized_heads", Input::Bytes(&zeros)),
                ],
            );
            if splits > 1 {
                written = kernels.run(
                    3 * index + 1,
                    &scalars,
                    &[
                        ("partials", Input::Bytes(&written[0])),
                        ("gates", Input::F32(&gates)),
                        ("heads", Input::Uninitialized(heads)),
                        ("quantized_heads", Input::Bytes(&zeros)),
                    ],
                );
            }
            let [.., heads, quantized] = &written[..] else { panic!("heads and quantized heads") };
            let x = to_f32(heads, Format::F32);
            let bindings = [("x", Input::F32(&x)), ("quantized_x", Input::Bytes(&zeros))];
            let expected = kernels.run(3 * index + 2, &scalars, &bindings);
            assert!(*quantized == expected[0], "{splits} splits: {shape:?}");
        }
    }
    assert!(
        shapes.iter().any(|shape| shape.knobs.is_none()) && shapes.iter().any(|shape| shape.knobs.is_some())
    );
}

/// The cache of one slot must not affect rows of another in the same tile, even if it has NaN or infinity.
#[test]
fn slots_in_one_tile_do_not_affect_each_other() {
    let shape = Shape { sinks: false, ..shapes().swap_remove(1) };
    let kernels = Kernels::of([shape.tiled()]);
    let mut random = Random(5);
    let batch = Batch::of(&[(0, 7), (0, 8), (0, 9), (1, 20), (1, 21), (0, 3)]);
    for non_finite in [f32::NAN, f32::INFINITY] {
        let [keys, values] = [0; 2].map(|_| {
            let mut numbers = random.floats(shape.cache_count());
            let slot = shape.place(1, 0, 0);
            numbers[slot..].fill(non_finite);
            numbers
        });
        let q = random.floats(batch.rows() * shape.query_heads * shape.width);
        let inputs = [
            ("q", Input::F32(&q)),
            ("keys", Input::Bytes(&bytes_of(&keys, shape.cache))),
            ("values", Input::Bytes(&bytes_of(&values, shape.cache))),
            ("slots", Input::U32(&batch.slots)),
            ("positions", Input::U32(&batch.positions)),
            ("heads", Input::Uninitialized(q.len() * 4)),
        ];
        let heads = kernels.run(0, &shape.scalars(batch.rows(), 1), &inputs);
        let heads = to_f32(&heads[0], Format::F32);
        let row_width = shape.query_heads * shape.width;
        for row in 0..batch.rows() {
            let found = &heads[row * row_width..][..row_width];
            if batch.slots[row] == 1 {
                assert!(found.iter().all(|v| !v.is_finite()), "row {row} does not show what it sees");
                continue;
            }
            let q = to_f64(&q[row * row_width..][..row_width]);
            let expected = shape.attended(&q, &keys, &values, &[], 0, batch.positions[row] as usize);
            compare(&(row, non_finite), found, &expected, 3e-6);
        }
    }
}

/// A pass whose last row would overwrite a position that the first row reads, if the ring were one position smaller.
#[test]
fn a_ring_buffer_one_position_too_small_changes_the_result() {
    let (first, rows, window) = (48, 12, 7);
    let whole = Shape { window: Some(window), ..shapes().swap_remove(1) };
    let mut random = Random(7);
    let numbers = [0; 2].map(|_| random.floats(whole.cache_count()));
    let q = random.floats(rows * whole.query_heads * whole.width);
    let batch = Batch::of(&(first..first + rows as u32).map(|position| (1, position)).collect::<Vec<_>>());
    let row_width = whole.query_heads * whole.width;
    let expected: Vec<f64> = (0..rows)
        .flat_map(|row| {
            let q = to_f64(&q[row * row_width..][..row_width]);
            whole.attended(&q, &numbers[0], &numbers[1], &[], 1, first as usize + row)
        })
        .collect();
    for (ring, is_right) in [(window + rows - 1, true), (window + rows - 2, false)] {
        let shape = Shape { ring: Some(ring), ..whole.clone() };
        let append =
            Append { key_heads: shape.key_heads, width: shape.width, cache: shape.cache, ring: shape.ring };
        let kernels = Kernels::of([Spec::Append(append), shape.split(false), shape.tiled()]);
        // The rows of earlier passes, then those of this one.
        let place =
            |at: usize, head, position| [whole.place(1, head, position), shape.place(1, head, position)][at];
        let outputs = numbers.each_ref().map(|numbers| {
            let mut outputs = vec![0.0; shape.cache_count()];
            for (position, head) in
                (0..first as usize).flat_map(|p| (0..shape.key_heads).map(move |h| (p, h)))
            {
                let from = &numbers[place(0, head, position)..][..shape.width];
                outputs[place(1, head, position)..][..shape.width].copy_from_slice(from);
            }
            bytes_of(&outputs, shape.cache)
        });
        let new = numbers.each_ref().map(|numbers| -> Vec<f32> {
            let heads = |row| (0..shape.key_heads).map(move |head| (row, head));
            let of = |(row, head)| numbers[place(0, head, first as usize + row)..][..shape.width].to_vec();
            (0..rows).flat_map(heads).flat_map(of).collect()
        });
        let scalars = shape.scalars(rows, 1);
        let cache = kernels.run(
            0,
            &scalars,
            &[
                ("key", Input::F32(&new[0])),
                ("value", Input::F32(&new[1])),
                ("slots", Input::U32(&batch.slots)),
                ("positions", Input::U32(&batch.positions)),
                ("keys", Input::Bytes(&outputs[0])),
                ("values", Input::Bytes(&outputs[1])),
            ],
        );
        for kernel in [1, 2] {
            let inputs = [
                ("q", Input::F32(&q)),
                ("keys", Input::Bytes(&cache[0])),
                ("values", Input::Bytes(&cache[1])),
                ("slots", Input::U32(&batch.slots)),
                ("positions", Input::U32(&batch.positions)),
                ("partials", Input::Uninitialized(0)),
                ("heads", Input::Uninitialized(expected.len() * 4)),
            ];
            let heads = kernels.run(kernel, &scalars, &inputs).pop().unwrap_or_default();
            let found = to_f32(&heads, Format::F32);
            let off = |(found, expected): (&f32, &f64)| (f64::from(*found) - expected).abs();
            let worst = found.iter().zip(&expected).map(off).fold(0.0, f64::max);
            assert_eq!(worst < 3e-6, is_right, "a ring of {ring}: {worst:e}");
            assert!(is_right || worst > 1e-2, "a ring of {ring}: {worst:e}");
        }
    }
}
