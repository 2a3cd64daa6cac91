//! RoPE and KV cache append.

use crate::shape::{Batch, Shape};
use crate::shapes::shapes;
use crate::{Input, Kernels, Random, compare, rotated, to_f32, to_f64};
use forge_kernels::Spec;
use forge_ops::{Append, Format, KvSource, Rope};

#[test]
fn rope_rotates_queries_and_keys() {
    let mut random = Random(4);
    let mut shapes = shapes();
    shapes.retain(|shape| !shape.rope.is_none());
    let rope = |shape: &Shape| {
        let rope = shape.rope.clone();
        Spec::Rope(Rope { heads: shape.query_heads, width: shape.width, rope })
    };
    let kernels = Kernels::of(shapes.iter().map(rope));
    let batch = Batch::of(&[(1, 100), (1, 101), (0, 0)]);
    let rows = batch.rows();
    for (index, shape) in shapes.iter().enumerate() {
        let Shape { query_heads, width, .. } = *shape;
        let scalars = shape.scalars(rows, 1);
        let positions = ("positions", Input::U32(&batch.positions));
        let x = random.floats(rows * query_heads * width);
        let inputs = [("x", Input::F32(&x)), positions, ("y", Input::Uninitialized(x.len() * 4))];
        let y = kernels.run(index, &scalars, &inputs);
        let heads = x.chunks_exact(width).enumerate();
        let expected = heads
            .flat_map(|(at, head)| rotated(&to_f64(head), &shape.rope, batch.positions[at / query_heads]));
        compare(shape, &to_f32(&y[0], Format::F32), &expected.collect::<Vec<_>>(), 2e-6 + shape.rope_error());
    }
}

/// Keys and values are appended unchanged, from separate buffers and from qkv.
#[test]
fn appends_keys_and_values_unchanged() {
    let mut random = Random(5);
    let mut shapes = shapes();
    shapes.retain(|shape| shape.kv_source != KvSource::Nothing);
    let append = |shape: &Shape| {
        let Shape { key_heads, width, cache, ring, .. } = *shape;
        Spec::Append(Append { key_heads, width, cache, ring })
    };
    let kernels = Kernels::of(shapes.iter().flat_map(|shape| [append(shape), shape.rope_append()]));
    let batch = Batch::of(&[(1, 100), (1, 101), (0, 0)]);
    let rows = batch.rows();
    for (index, shape) in shapes.iter().enumerate() {
        let Shape { query_heads, key_heads, width, .. } = *shape;
        let scalars = shape.scalars(rows, 1);
        let row_width = shape.row_width();
        let qkv = random.floats(rows * row_width);
        let gains = [0; 2].map(|_| random.floats(width));
        let part = |from: usize, heads: usize| -> Vec<f32> {
            let row = |row: usize| qkv[row * row_width + from * width..][..heads * width].to_vec();
            (0..rows).flat_map(row).collect()
        };
        let bytes = shape.bytes(&vec![0.0; shape.cache_count()]).len();
        let loss = shape.rope_error();
        let unit = shape.unit() + loss;
        let first_value =
            if shape.kv_source == KvSource::Keys { query_heads } else { query_heads + key_heads };
        let (key, value) = (part(query_heads, key_heads), part(first_value, key_heads));
        let inputs = |q: usize| {
            [
                ("qkv", Input::F32(&qkv)),
                ("query_gain", Input::F32(&gains[0])),
                ("key_gain", Input::F32(&gains[1])),
                ("key", Input::F32(&key)),
                ("value", Input::F32(&value)),
                ("slots", Input::U32(&batch.slots)),
                ("positions", Input::U32(&batch.positions)),
                ("q", Input::Uninitialized(q)),
                ("keys", Input::Uninitialized(bytes)),
                ("values", Input::Uninitialized(bytes)),
            ]
        };
        let plain = kernels.run(2 * index, &scalars, &inputs(0));
        let results = kernels.run(2 * index + 1, &scalars, &inputs(rows * query_heads * width * 4));
        for row in 0..rows {
            let (slot, position) = (batch.slots[row], batch.positions[row]);
            let [queries, keys, values] =
                shape.prepared(&qkv[row * row_width..][..row_width], &gains, position);
            let q = to_f32(&results[0], Format::F32);
            compare(shape, &q[row * query_heads * width..][..query_heads * width], &queries, 3e-6 + loss);
            for head in 0..key_heads {
                let at = shape.place(slot, head, position as usize);
                let in_row = head * width..(head + 1) * width;
                let in_rows = (row * key_heads + head) * width..(row * key_heads + head + 1) * width;
                let check = |bytes: &[u8], expected: &[f64]| {
                    compare(shape, &shape.to_f32(bytes)[at..][..width], expected, unit)
                };
                check(&results[1], &keys[in_row.clone()]);
                check(&results[2], &values[in_row]);
                check(&plain[0], &to_f64(&key[in_rows.clone()]));
                check(&plain[1], &to_f64(&value[in_rows]));
            }
        }
    }
}

/// The contents of a q8_0 KV cache equal the quantized contents of an f32 cache, byte for byte.
#[test]
fn q8_0_kv_cache_equals_the_quantized_f32_cache() {
    let mut random = Random(8);
    let mut coded = shapes();
    coded.retain(|shape| shape.cache == Format::Q8_0 && shape.kv_source != KvSource::Nothing);
    let plain = |shape: &Shape| Shape { cache: Format::F32, ..shape.clone() };
    let specs = |shape: &Shape| {
        let Shape { key_heads, width, cache, ring, .. } = *shape;
        [Spec::Append(Append { key_heads, width, cache, ring }), shape.rope_append()]
    };
    let kernels = Kernels::of(coded.iter().flat_map(|shape| [specs(shape), specs(&plain(shape))].concat()));
    let batch = Batch::of(&[(1, 100), (1, 101), (0, 7)]);
    for (index, shape) in coded.iter().enumerate() {
        let Shape { query_heads, key_heads, width, .. } = *shape;
        let rows = batch.rows();
        let qkv = random.floats(rows * shape.row_width());
        // Values of all magnitudes, and NaN.
        let mut part = || -> Vec<f32> {
            let heads = random.floats(rows * key_heads * width);
            heads.iter().enumerate().map(|(i, x)| x * [1.0, 1e3, 0.0, 1e-6, 1e-9][i / 32 % 5]).collect()
        };
        let (key, value) = (part(), part());
        let gains = [0; 2].map(|_| random.floats(width));
        let caches = [0, 1].map(|kernel| {
            [shape.clone(), plain(shape)].map(|of| {
                let empty = of.bytes(&vec![0.0; of.cache_count()]);
                let inputs = [
                    ("qkv", Input::F32(&qkv)),
                    ("query_gain", Input::F32(&gains[0])),
                    ("key_gain", Input::F32(&gains[1])),
                    ("key", Input::F32(&key)),
                    ("value", Input::F32(&value)),
                    ("slots", Input::U32(&batch.slots)),
                    ("positions", Input::U32(&batch.positions)),
                    ("q", Input::Uninitialized(rows * query_heads * width * 4)),
                    ("keys", Input::Bytes(&empty)),
                    ("values", Input::Bytes(&empty)),
                ];
                let number = 4 * index + kernel + if of.cache == Format::F32 { 2 } else { 0 };
                let mut written = kernels.run(number, &of.scalars(rows, 1), &inputs);
                written.split_off(written.len() - 2)
            })
        });
        for [codes, numbers] in caches {
            for (codes, numbers) in codes.iter().zip(&numbers) {
                assert!(*codes == shape.bytes(&to_f32(numbers, Format::F32)), "{shape:?}");
            }
        }
    }
}
