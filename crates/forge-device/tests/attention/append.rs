//! KV cache append, with and without RoPE.

use crate::support::{Argument, NAN, Random, compare, each_level, kernel, run_kernel, to_f32};
use crate::{
    cache_bytes, cache_unit, cache_values, long, normed, of_size, rope_parameters, rotated, rows_of_a_batch,
    seventh, to_f64,
};
use forge_device::cpu::{self};
use forge_device::ops::{self, Format, HeadNorm, KvSource, Pairing, RopeParameters};

#[test]
fn append_writes_keys_and_values() {
    kernel_under_test!(SHAPE, ops::Append, cpu::append);
    let mut random = Random(10);
    for (rows, key_heads, width, cache) in
        [(1, 1, 2, Format::F32), (5, 3, 10, Format::F16), (6, 2, 64, Format::F32)]
    {
        let context = 9;
        let [key, value] = [0; 2].map(|_| random.floats(rows * key_heads * width));
        let (slots, positions) = rows_of_a_batch(rows, context, &mut random);
        let before = random.floats(2 * key_heads * context * width);
        let wanted = [&key, &value].map(|of_rows| {
            let mut all = to_f64(&before);
            for (index, head) in of_rows.chunks_exact(width).enumerate() {
                let row = index / key_heads;
                let start = (slots[row] as usize * key_heads + index % key_heads) * context;
                let start = (start + positions[row] as usize) * width;
                all[start..start + width].copy_from_slice(&to_f64(head));
            }
            of_size(all, cache_unit(cache))
        });
        let kernel = kernel("append", vec!["key", "value", "slots", "positions", "keys", "values"], run);
        let arguments = [
            Argument::F32(key),
            Argument::F32(value),
            Argument::U32(slots),
            Argument::U32(positions),
            Argument::Output(cache_bytes(&before, cache)),
            Argument::Output(cache_bytes(&before, cache)),
        ];
        *SHAPE.write().unwrap() = Some(ops::Append { key_heads, width, cache, ring: None });
        each_level(|level, threads| {
            let got = run_kernel(kernel, &arguments, &[rows as u32, context as u32], level, threads);
            for (got, wanted) in got.iter().zip(&wanted) {
                compare(&format!("{level:?} {rows} {width}"), &cache_values(got, cache), wanted);
            }
        });
    }
}

/// Rows before RoPE, with the norm weights of heads, and the expected results.
pub(crate) struct Raw {
    pub(crate) qkv: Vec<f32>,
    pub(crate) gains: [Vec<f32>; 2],
    /// Every row's query heads, prepared.
    pub(crate) queries: Vec<f64>,
    /// Every row's key heads, prepared.
    pub(crate) keys: Vec<f64>,
    /// Every row's value heads, prepared.
    pub(crate) values: Vec<f64>,
}

pub(crate) fn raw(
    random: &mut Random,
    [query_heads, key_heads, width]: [usize; 3],
    (kv_source, norm): (KvSource, Option<HeadNorm>),
    rope: &RopeParameters,
    positions: &[u32],
) -> Raw {
    let row_heads = match kv_source {
        KvSource::KeysAndValues => query_heads + 2 * key_heads,
        KvSource::KeysValuesAndGates => 2 * query_heads + 2 * key_heads,
        KvSource::Keys => query_heads + key_heads,
        KvSource::Nothing => query_heads,
    };
    let qkv = random.floats(positions.len() * row_heads * width);
    let gains = [0; 2].map(|_| random.floats(width));
    let (mut queries, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for (row, &position) in qkv.chunks_exact(row_heads * width).zip(positions) {
        let mut heads = row.chunks_exact(width).map(to_f64);
        let of_queries: Vec<_> = heads.by_ref().take(query_heads).collect();
        let of_keys: Vec<_> = heads.by_ref().take(key_heads).collect();
        let of_values = match kv_source {
            KvSource::Keys => of_keys.clone(),
            _ => heads.take(key_heads).collect(),
        };
        let prepared = |heads: Vec<Vec<f64>>, gain: &[f32]| -> Vec<f64> {
            let norm = |head: Vec<f64>, after| match norm {
                Some(HeadNorm { epsilon, after_rope, .. }) if after_rope == after => {
                    normed(&head, Some(gain), epsilon)
                }
                _ => head,
            };
            let prepare = |head| norm(rotated(&norm(head, false), rope, position), true);
            heads.into_iter().flat_map(prepare).collect()
        };
        queries.extend(prepared(of_queries, &gains[0]));
        keys.extend(prepared(of_keys, &gains[1]));
        values.extend(of_values.into_iter().flat_map(|head| match norm {
            Some(HeadNorm { epsilon, values: true, .. }) => normed(&head, None, epsilon),
            _ => head,
        }));
    }
    Raw { qkv, gains, queries, keys, values }
}

#[test]
fn rope_append_normalizes_rotates_and_appends() {
    kernel_under_test!(SHAPE, ops::RopeAppend, cpu::rope_append);
    let mut random = Random(5);
    let norm = Some(HeadNorm { epsilon: 1e-6, after_rope: false, values: false });
    let norm_after_rope = Some(HeadNorm { epsilon: 1e-6, after_rope: true, values: false });
    let of_values = Some(HeadNorm { epsilon: 1e-2, after_rope: false, values: true });
    let (both, keys) = (KvSource::KeysAndValues, KvSource::Keys);
    for (rows, query_heads, key_heads, width, pairs, pairing, cache, (kv_source, norm)) in [
        (1, 4, 2, 16, 8, Pairing::Half, Format::F32, (both, None)),
        (5, 6, 2, 10, 5, Pairing::Interleaved, Format::F16, (both, norm)),
        (9, 3, 3, 64, 16, Pairing::Half, Format::F16, (both, None)),
        (4, 2, 1, 256, 128, Pairing::Interleaved, Format::F32, (both, None)),
        (2, 2, 1, 512, 64, Pairing::Half, Format::F16, (keys, of_values)),
        (3, 2, 1, 6, 0, Pairing::Half, Format::F32, (both, None)),
        (7, 4, 2, 128, 64, Pairing::Half, Format::F32, (both, norm)),
        (6, 4, 2, 18, 8, Pairing::Half, Format::F32, (both, norm_after_rope)),
        (8, 4, 2, 16, 8, Pairing::Half, Format::F32, (both, None)),
        (5, 4, 2, 20, 5, Pairing::Half, Format::F32, (both, of_values)),
        (5, 6, 3, 16, 8, Pairing::Half, Format::F32, (keys, of_values)),
        (3, 5, 1, 18, 9, Pairing::Half, Format::F16, (keys, None)),
        (4, 4, 2, 18, 9, Pairing::Half, Format::F32, (KvSource::KeysValuesAndGates, norm)),
    ] {
        let context = 12;
        let mut rope = rope_parameters(pairs, pairing, if rows == 9 { 1.25 } else { 1.0 });
        let mut seen = rope.clone();
        if rows == 8 {
            rope = long(rope, context - 1);
            seen.frequencies = seventh(&seen);
        }
        let shape =
            ops::RopeAppend { query_heads, key_heads, width, cache, ring: None, kv_source, norm, rope };
        let (slots, positions) = rows_of_a_batch(rows, context, &mut random);
        let raw = raw(&mut random, [query_heads, key_heads, width], (kv_source, norm), &seen, &positions);
        let before = random.floats(2 * key_heads * context * width);
        let cached = [&raw.keys, &raw.values].map(|of_rows| {
            let mut all = to_f64(&before);
            for (index, head) in of_rows.chunks_exact(width).enumerate() {
                let row = index / key_heads;
                let start = (slots[row] as usize * key_heads + index % key_heads) * context;
                let start = (start + positions[row] as usize) * width;
                all[start..start + width].copy_from_slice(head);
            }
            // Normed heads are as large as the norm weight times the root of the width.
            let size = if norm.is_some() { 5.0 } else { 1.0 };
            of_size(all, size * cache_unit(cache))
        });
        let mut buffers = vec!["qkv"];
        let mut arguments = vec![Argument::F32(raw.qkv)];
        if norm.is_some() {
            buffers.extend(["query_gain", "key_gain"]);
            arguments.extend(raw.gains.map(Argument::F32));
        }
        buffers.extend(["slots", "positions", "q", "keys", "values"]);
        arguments.extend([
            Argument::U32(slots),
            Argument::U32(positions),
            Argument::Output(NAN.repeat(rows * query_heads * width)),
            Argument::Output(cache_bytes(&before, cache)),
            Argument::Output(cache_bytes(&before, cache)),
        ]);
        let kernel = kernel("rope_append", buffers, run);
        *SHAPE.write().unwrap() = Some(shape.clone());
        let queries = of_size(raw.queries, if norm.is_some() { 10.0 } else { 3.0 });
        each_level(|level, threads| {
            let what = format!("{level:?} {shape:?}");
            let got = run_kernel(kernel, &arguments, &[rows as u32, context as u32], level, threads);
            compare(&what, &to_f32(&got[0]), &queries);
            for (got, wanted) in got[1..].iter().zip(&cached) {
                compare(&what, &cache_values(got, cache), wanted);
            }
        });
    }
}
