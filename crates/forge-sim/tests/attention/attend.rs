//! Attention over prepared queries and a filled KV cache.

use crate::shape::{Shape, shapes};
use crate::shapes::{on_apple_gpus, other_layouts, with_matrix_units};
use crate::{Input, Kernels, compare, to_f32};
use forge_kernels::Spec;
use forge_kernels::spec::{AttentionLayout, CombineLayout, quantizes_heads};
use forge_ops::Quantize;
use forge_oracle::attention::{attend, gated_heads};
use forge_oracle::attention_layers::AttentionLayer;
use forge_oracle::{Batch, Random, to_f64, values_of};

#[test]
fn attention_matches_the_reference_for_few_and_many_rows() {
    check_attention(&shapes(), METAL_3);
}

#[test]
fn attention_matches_the_reference_in_every_layout() {
    check_attention(&other_layouts(), METAL_3);
}

#[test]
fn attention_on_apple_gpus_matches_the_reference() {
    check_attention(&on_apple_gpus(), METAL_3);
}

#[test]
#[cfg_attr(feature = "gpu", ignore = "NVIDIA GPUs have no tensors of Metal 4")]
fn attention_with_tensors_matches_the_reference() {
    let mut shapes = on_apple_gpus();
    shapes.retain(|shape| shape.tiled().tensor_operand().is_some());
    assert!(shapes.len() >= 4, "{}", shapes.len());
    check_attention(&shapes, METAL_4);
}

#[test]
fn attention_with_matrix_units_matches_the_reference() {
    check_attention(&with_matrix_units(), METAL_3);
}

/// Versions of Metal's language.
const METAL_3: u32 = 300;
const METAL_4: u32 = 400;

/// The tolerance of tensors, for values up to 1: queries and weights are rounded to 11 bits.
const TENSOR_ERROR: f64 = 1e-3;

fn check_attention(shapes: &[Shape], version: u32) {
    let specs = shapes.iter().flat_map(|shape| [shape.split(false), shape.tiled(), shape.join()]);
    let kernels = Kernels::of_language(specs, version);
    let mut random = Random(2);
    for (index, shape) in shapes.iter().enumerate() {
        let (op, cache) = (shape.layer.attend(), shape.layer.kv_cache());
        let last = shape.layer.context as u32 - 1;
        let batches = [
            (Batch::of(&[(0, 0)]), 1),
            (Batch::of(&[(1, last.min(150))]), 5),
            (Batch::of(&[(0, 33), (1, 2), (0, 90)]), 16),
            (Batch::of(&(0..3).map(|i| (1, i)).chain((40..60).map(|i| (0, i))).collect::<Vec<_>>()), 2),
        ];
        for (batch, splits) in shape.within(batches) {
            let rows = batch.rows();
            let [(key_bytes, keys), (value_bytes, values)] =
                [0; 2].map(|_| cache.random(&mut random, |slot| batch.reach(slot)));
            let q = random.floats(rows * shape.layer.query_width());
            let given = shape.layer.inputs(&mut random, rows);
            let expected = attend(&op, &cache, &to_f64(&q), [&keys, &values], &given.sinks, &batch);
            let expected = gated_heads(op.gates, expected, &given.qkv);
            let inputs = |[heads, partials]: [usize; 2]| {
                [
                    ("q", Input::F32(&q)),
                    ("keys", Input::Bytes(&key_bytes)),
                    ("values", Input::Bytes(&value_bytes)),
                    ("sinks", Input::F32(&given.sinks)),
                    ("gates", Input::F32(&given.qkv)),
                    ("slots", Input::U32(&batch.slots)),
                    ("positions", Input::U32(&batch.positions)),
                    ("partials", Input::Uninitialized(partials)),
                    ("heads", Input::Uninitialized(heads)),
                ]
            };
            let check = |found: &[u8]| compare(shape, found, values_of(&expected), shape.attention_error());
            let whole = shape.written(rows, 1);
            check(&kernels.run(3 * index, &shape.scalars(rows, 1), &inputs(whole))[1]);
            if splits == 1 {
                continue;
            }
            let scalars = shape.scalars(rows, splits);
            let partials = kernels.run(3 * index, &scalars, &inputs(shape.written(rows, splits)));
            let inputs_of_join = [
                ("partials", Input::Bytes(&partials[0])),
                ("gates", Input::F32(&given.qkv)),
                ("heads", Input::Uninitialized(whole[0])),
            ];
            check(&kernels.run(3 * index + 2, &scalars, &inputs_of_join)[0]);
            // Tiles need adjacent rows of one sequence.
            if batch.slots.windows(2).filter(|pair| pair[0] != pair[1]).count() < 2 {
                let found = kernels.run(3 * index + 1, &shape.scalars(rows, 1), &inputs(whole));
                let error = if version == METAL_4 { TENSOR_ERROR } else { shape.attention_error() };
                compare(shape, &found[0], values_of(&expected), error);
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
    let quantizes = |shape: &Shape| quantizes_heads(shape.layer.query_heads, shape.layer.width);
    let shapes: Vec<Shape> = [shapes(), with_matrix_units()].concat().into_iter().filter(quantizes).collect();
    let kernels = Kernels::of(shapes.iter().flat_map(|shape| {
        let alone = Quantize { width: shape.layer.query_width(), gain: false, parts: 0, pitch: None };
        [quantizing(shape.split(false)), quantizing(shape.join()), Spec::Quantize(alone)]
    }));
    let mut random = Random(7);
    for (index, shape) in shapes.iter().enumerate() {
        let last = shape.layer.context as u32 - 1;
        let batch = Batch::of(&[(0, last.min(33)), (1, last.min(2)), (0, last.min(90))]);
        let (rows, cache) = (batch.rows(), shape.layer.kv_cache());
        let [(keys, _), (values, _)] = [0; 2].map(|_| cache.random(&mut random, |slot| batch.reach(slot)));
        let q = random.floats(rows * shape.layer.query_width());
        let given = shape.layer.inputs(&mut random, rows);
        let zeros = vec![0; 4 * Quantize::row_words(shape.layer.query_width()) * 4];
        for splits in [1, 5] {
            let [heads, partials] = shape.written(rows, splits);
            let scalars = shape.scalars(rows, splits);
            let mut written = kernels.run(
                3 * index,
                &scalars,
                &[
                    ("q", Input::F32(&q)),
                    ("keys", Input::Bytes(&keys)),
                    ("values", Input::Bytes(&values)),
                    ("sinks", Input::F32(&given.sinks)),
                    ("gates", Input::F32(&given.qkv)),
                    ("slots", Input::U32(&batch.slots)),
                    ("positions", Input::U32(&batch.positions)),
                    ("partials", Input::Uninitialized(partials)),
                    ("heads", Input::Uninitialized(heads)),
                    ("quantized_heads", Input::Bytes(&zeros)),
                ],
            );
            if splits > 1 {
                written = kernels.run(
                    3 * index + 1,
                    &scalars,
                    &[
                        ("partials", Input::Bytes(&written[0])),
                        ("gates", Input::F32(&given.qkv)),
                        ("heads", Input::Uninitialized(shape.written(rows, 1)[0])),
                        ("quantized_heads", Input::Bytes(&zeros)),
                    ],
                );
            }
            let [.., heads, quantized] = &written[..] else { panic!("heads and quantized heads") };
            let x = to_f32(heads);
            let bindings = [("x", Input::F32(&x)), ("quantized_x", Input::Bytes(&zeros))];
            let expected = kernels.run(3 * index + 2, &scalars, &bindings);
            assert!(*quantized == expected[0], "{splits} splits: {shape:?}");
        }
    }
    assert!(
        shapes.iter().any(|shape| shape.knobs.is_none()) && shapes.iter().any(|shape| shape.knobs.is_some())
    );
}

/// An odd layer with an f32 cache, without options of attention.
fn odd_layer() -> AttentionLayer {
    shapes().swap_remove(1).layer
}

/// The cache of one slot must not affect rows of another in the same tile, even if it has NaN or infinity.
#[test]
fn slots_in_one_tile_do_not_affect_each_other() {
    let shape = Shape { layer: odd_layer(), knobs: None };
    let (op, cache) = (shape.layer.attend(), shape.layer.kv_cache());
    let kernels = Kernels::of([shape.tiled(), shape.for_apple_gpus().tiled()]);
    let mut random = Random(5);
    let batch = Batch::of(&[(0, 7), (0, 8), (0, 9), (1, 20), (1, 21), (0, 3)]);
    for (kernel, non_finite) in [(0, f32::NAN), (0, f32::INFINITY), (1, f32::NAN), (1, f32::INFINITY)] {
        let [keys, values] = [0; 2].map(|_| {
            let mut numbers = random.floats(cache.elements());
            numbers[cache.place(1, 0, 0)..].fill(non_finite);
            numbers
        });
        let q = random.floats(batch.rows() * shape.layer.query_width());
        let inputs = [
            ("q", Input::F32(&q)),
            ("keys", Input::Bytes(&cache.encode(&keys))),
            ("values", Input::Bytes(&cache.encode(&values))),
            ("slots", Input::U32(&batch.slots)),
            ("positions", Input::U32(&batch.positions)),
            ("heads", Input::Uninitialized(q.len() * 4)),
        ];
        let heads = kernels.run(kernel, &shape.scalars(batch.rows(), 1), &inputs);
        let expected = attend(&op, &cache, &to_f64(&q), [&keys, &values], &[], &batch);
        let of_rows = expected.chunks_exact(op.query_heads * op.width);
        for (row, (found, expected)) in
            heads[0].chunks_exact(op.query_heads * op.width * 4).zip(of_rows).enumerate()
        {
            if batch.slots[row] == 1 {
                assert!(to_f32(found).iter().all(|v| !v.is_finite()), "row {row} does not show what it sees");
            } else {
                compare(&(kernel, row, non_finite), found, values_of(expected), 3e-6);
            }
        }
    }
}

/// A pass whose last row would overwrite a position that the first row reads, if the ring were one position smaller.
#[test]
fn a_ring_buffer_one_position_too_small_changes_the_result() {
    let (first, rows, window) = (48, 12, 7);
    let whole = AttentionLayer { window: Some(window), ..odd_layer() };
    let cache = whole.kv_cache();
    let mut random = Random(7);
    let numbers = [0; 2].map(|_| random.floats(cache.elements()));
    let q = random.floats(rows * whole.query_width());
    let of_slot = |positions: std::ops::Range<u32>| Batch::of(&positions.map(|p| (1, p)).collect::<Vec<_>>());
    let batch = of_slot(first..first + rows as u32);
    let caches = numbers.each_ref().map(|numbers| &numbers[..]);
    let expected = attend(&whole.attend(), &cache, &to_f64(&q), caches, &[], &batch);
    for (ring, is_right) in [(window + rows - 1, true), (window + rows - 2, false)] {
        let shape = Shape { layer: AttentionLayer { ring: Some(ring), ..whole.clone() }, knobs: None };
        let of_ring = shape.layer.kv_cache();
        let append = Spec::Append(shape.layer.append());
        let on_apple_gpus = shape.for_apple_gpus().tiled();
        let kernels = Kernels::of([append, shape.split(false), shape.tiled(), on_apple_gpus]);
        // The rows of earlier passes, then those of this one.
        let earlier = numbers.each_ref().map(|numbers| {
            let mut in_ring = vec![0.0; of_ring.elements()];
            for (position, head) in (0..first as usize).flat_map(|p| (0..cache.heads).map(move |h| (p, h))) {
                let from = &numbers[cache.place(1, head, position)..][..cache.width];
                in_ring[of_ring.place(1, head, position)..][..cache.width].copy_from_slice(from);
            }
            of_ring.encode(&in_ring)
        });
        let [key, value] = numbers.each_ref().map(|numbers| -> Vec<f32> {
            let places =
                batch.positions.iter().flat_map(|&p| (0..cache.heads).map(move |head| (p as usize, head)));
            places.flat_map(|(p, head)| numbers[cache.place(1, head, p)..][..cache.width].to_vec()).collect()
        });
        let scalars = shape.scalars(rows, 1);
        let appended = kernels.run(
            0,
            &scalars,
            &[
                ("key", Input::F32(&key)),
                ("value", Input::F32(&value)),
                ("slots", Input::U32(&batch.slots)),
                ("positions", Input::U32(&batch.positions)),
                ("keys", Input::Bytes(&earlier[0])),
                ("values", Input::Bytes(&earlier[1])),
            ],
        );
        for kernel in [1, 2, 3] {
            let inputs = [
                ("q", Input::F32(&q)),
                ("keys", Input::Bytes(&appended[0])),
                ("values", Input::Bytes(&appended[1])),
                ("slots", Input::U32(&batch.slots)),
                ("positions", Input::U32(&batch.positions)),
                ("partials", Input::Uninitialized(0)),
                ("heads", Input::Uninitialized(expected.len() * 4)),
            ];
            let heads = kernels.run(kernel, &scalars, &inputs).pop().unwrap_or_default();
            let off = |(found, expected): (f32, f64)| (f64::from(found) - expected).abs();
            let worst = to_f32(&heads).into_iter().zip(values_of(&expected)).map(off).fold(0.0, f64::max);
            assert_eq!(worst < 3e-6, is_right, "a ring of {ring}: {worst:e}");
            assert!(is_right || worst > 1e-2, "a ring of {ring}: {worst:e}");
        }
    }
}
