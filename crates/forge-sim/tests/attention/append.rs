//! RoPE and KV cache append.

use crate::shape::{Shape, shapes};
use crate::{Input, Kernels, compare, to_f32};
use forge_kernels::Spec;
use forge_ops::Format;
use forge_oracle::attention::{prepare, rope};
use forge_oracle::attention_layers::AttentionLayer;
use forge_oracle::{Batch, Random, to_f64};

/// Two adjacent rows of a slot, and the first of another.
fn batch(shape: &Shape) -> Batch {
    let last = shape.layer.context as u32 - 1;
    match last {
        0 => Batch::of(&[(1, 0), (0, 0)]),
        _ => Batch::of(&[(1, last.min(101) - 1), (1, last.min(101)), (0, 0)]),
    }
}

#[test]
fn rope_rotates_queries_and_keys() {
    let mut random = Random(4);
    let mut shapes = shapes();
    shapes.retain(|shape| !shape.layer.rope.is_none());
    let kernels = Kernels::of(shapes.iter().map(|shape| Spec::Rope(shape.layer.rope())));
    for (index, shape) in shapes.iter().enumerate() {
        let batch = batch(shape);
        let x = random.floats(batch.rows() * shape.layer.query_width());
        let positions = ("positions", Input::U32(&batch.positions));
        let inputs = [("x", Input::F32(&x)), positions, ("y", Input::Uninitialized(x.len() * 4))];
        let y = kernels.run(index, &shape.scalars(batch.rows(), 1), &inputs);
        let expected = rope(&shape.layer.rope(), shape.layer.context, &x, &batch.positions);
        compare(shape, &y[0], expected, 2e-6 + shape.rope_error());
    }
}

/// Keys and values are appended unchanged, from separate buffers and from qkv.
#[test]
fn appends_keys_and_values_unchanged() {
    let mut random = Random(5);
    let mut shapes = shapes();
    shapes.retain(|shape| shape.layer.appends());
    let kernels = Kernels::of(shapes.iter().flat_map(|Shape { layer, .. }| {
        [Spec::Append(layer.append()), Spec::RopeAppend(layer.rope_append())]
    }));
    for (index, shape) in shapes.iter().enumerate() {
        let (layer, cache, batch) = (&shape.layer, shape.layer.kv_cache(), batch(shape));
        let rows = batch.rows();
        let scalars = shape.scalars(rows, 1);
        let given = layer.inputs(&mut random, rows);
        let heads = [0; 2].map(|_| random.floats(rows * layer.key_heads * layer.width));
        let before = [0; 2].map(|_| cache.random(&mut random, |_| layer.context));
        let inputs = |q: usize| {
            [
                ("qkv", Input::F32(&given.qkv)),
                ("query_gain", Input::F32(&given.gains[0])),
                ("key_gain", Input::F32(&given.gains[1])),
                ("key", Input::F32(&heads[0])),
                ("value", Input::F32(&heads[1])),
                ("slots", Input::U32(&batch.slots)),
                ("positions", Input::U32(&batch.positions)),
                ("q", Input::Uninitialized(q)),
                ("keys", Input::Bytes(&before[0].0)),
                ("values", Input::Bytes(&before[1].0)),
            ]
        };
        let check = |caches: &[Vec<u8>], own: [&[f64]; 2]| {
            for ((bytes, (_, before)), own) in caches.iter().zip(&before).zip(own) {
                let error = |value: f64| shape.cache_error() * value.abs().max(1.0);
                cache.check_append(shape, [before, &cache.decode(bytes)], own, &batch, error);
            }
        };
        let appended = kernels.run(2 * index, &scalars, &inputs(0));
        check(&appended, heads.each_ref().map(|heads| to_f64(heads)).each_ref().map(|heads| &heads[..]));
        let results = kernels.run(2 * index + 1, &scalars, &inputs(shape.written(rows, 1)[0]));
        let prepared =
            prepare(&layer.rope_append(), layer.context, &given.qkv, given.gains(), &batch.positions);
        check(&results[1..], [&prepared.keys, &prepared.values]);
        compare(shape, &results[0], prepared.queries, 3e-6 + shape.rope_error());
    }
}

/// The contents of a q8_0 KV cache equal the quantized contents of an f32 cache, byte for byte.
#[test]
fn q8_0_kv_cache_equals_the_quantized_f32_cache() {
    let mut random = Random(8);
    let mut coded = shapes();
    coded.retain(|shape| shape.layer.cache == Format::Q8_0 && shape.layer.appends());
    let plain = |Shape { layer, knobs }: &Shape| {
        let layer = AttentionLayer { cache: Format::F32, ..layer.clone() };
        Shape { layer, knobs: *knobs }
    };
    let specs =
        |Shape { layer, .. }: &Shape| [Spec::Append(layer.append()), Spec::RopeAppend(layer.rope_append())];
    let kernels = Kernels::of(coded.iter().flat_map(|shape| [specs(shape), specs(&plain(shape))].concat()));
    let batch = Batch::of(&[(1, 100), (1, 101), (0, 7)]);
    for (index, shape) in coded.iter().enumerate() {
        let rows = batch.rows();
        let given = shape.layer.inputs(&mut random, rows);
        // Values of all magnitudes, and NaN.
        let mut part = || -> Vec<f32> {
            let heads = random.floats(rows * shape.layer.key_heads * shape.layer.width);
            heads.iter().enumerate().map(|(i, x)| x * [1.0, 1e3, 0.0, 1e-6, 1e-9][i / 32 % 5]).collect()
        };
        let (key, value) = (part(), part());
        let caches = [0, 1].map(|kernel| {
            [shape.clone(), plain(shape)].map(|of| {
                let cache = of.layer.kv_cache();
                let empty = cache.encode(&vec![0.0; cache.elements()]);
                let inputs = [
                    ("qkv", Input::F32(&given.qkv)),
                    ("query_gain", Input::F32(&given.gains[0])),
                    ("key_gain", Input::F32(&given.gains[1])),
                    ("key", Input::F32(&key)),
                    ("value", Input::F32(&value)),
                    ("slots", Input::U32(&batch.slots)),
                    ("positions", Input::U32(&batch.positions)),
                    ("q", Input::Uninitialized(of.written(rows, 1)[0])),
                    ("keys", Input::Bytes(&empty)),
                    ("values", Input::Bytes(&empty)),
                ];
                let number = 4 * index + kernel + if of.layer.cache == Format::F32 { 2 } else { 0 };
                let mut written = kernels.run(number, &of.scalars(rows, 1), &inputs);
                written.split_off(written.len() - 2)
            })
        });
        for [codes, numbers] in caches {
            for (codes, numbers) in codes.iter().zip(&numbers) {
                assert!(*codes == shape.layer.kv_cache().encode(&to_f32(numbers)), "{shape:?}");
            }
        }
    }
}
