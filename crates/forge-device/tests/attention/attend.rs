//! Attention, with separate and with fused preparation of queries and keys.

use crate::append::raw;
use crate::support::{Argument, NAN, Random, compare, each_level, kernel, run_kernel, to_f32};
use crate::{cache_bytes, cache_values, of_size, rope_parameters, rows_of_a_batch, to_f64};
use forge_device::cpu::{self};
use forge_device::ops::{self, Format, Gates, HeadNorm, KvSource, Pairing, Prologue};
use half::f16;

/// A KV cache of two slots as bytes. Positions that no row may read are NaN.
struct Cached {
    bytes: Vec<u8>,
    numbers: Vec<f32>,
}

fn cached(
    random: &mut Random,
    [key_heads, context, width]: [usize; 3],
    cache: Format,
    seen: impl Fn(u32) -> usize,
) -> Cached {
    let mut all = random.floats(2 * key_heads * context * width);
    for slot in 0..2 {
        for head in 0..key_heads {
            let start = (slot * key_heads + head) * context;
            all[(start + seen(slot as u32)) * width..(start + context) * width].fill(f32::NAN);
        }
    }
    let bytes = cache_bytes(&all, cache);
    Cached { numbers: cache_values(&bytes, cache), bytes }
}

/// The expected output of one query head: `scores` of the visible positions, and the start of the values of
/// the first.
fn softmax(scores: &[f64], sink: Option<f64>, values: &[f32], width: usize) -> Vec<f64> {
    let largest = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let total = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - largest).exp());
    let values = values.chunks_exact(width);
    let mut sums = vec![0.0; width];
    for (weight, value) in weights.iter().zip(values) {
        for (sum, v) in sums.iter_mut().zip(value) {
            *sum += weight * f64::from(*v) / total;
        }
    }
    sums
}

/// A head's output for query `q` over positions `range` of `keys` and `values`, which begin at position 0 of
/// its head.
fn attended(
    shape: &ops::Attend,
    q: &[f64],
    keys: &[f32],
    values: &[f32],
    position: usize,
    sink: Option<f32>,
) -> Vec<f64> {
    let width = shape.width;
    let first = shape.window.map_or(0, |window| (position + 1).saturating_sub(window));
    let range = first * width..(position + 1) * width;
    let scores: Vec<f64> = keys[range.clone()]
        .chunks_exact(width)
        .map(|key| {
            let dot: f64 = q.iter().zip(key).map(|(a, &b)| a * f64::from(b)).sum();
            let score = dot * f64::from(shape.scale);
            shape.softcap.map(f64::from).map_or(score, |cap| cap * (score / cap).tanh())
        })
        .collect();
    softmax(&scores, sink.map(f64::from), &values[range], width)
}

#[test]
fn attend_is_softmax_times_values() {
    kernel_under_test!(SHAPE, ops::Attend, cpu::attend);
    let mut random = Random(6);
    let plain = (None, None, false);
    for (rows, query_heads, key_heads, width, cache, context, (window, softcap, sinks)) in [
        (1, 4, 4, 2, Format::F32, 1, plain),
        (1, 4, 2, 16, Format::F32, 70, plain),
        (1, 9, 3, 64, Format::F16, 300, plain),
        (6, 8, 1, 10, Format::F16, 65, plain),
        (30, 4, 2, 128, Format::F32, 64, plain),
        (75, 5, 1, 48, Format::F16, 200, plain),
        (3, 7, 7, 80, Format::F32, 129, plain),
        (2, 32, 1, 256, Format::F16, 40, plain),
        (1, 8, 1, 512, Format::F16, 70, plain),
        (20, 4, 2, 512, Format::F32, 40, plain),
        (40, 2, 2, 30, Format::F32, 100, plain),
        (1, 4, 2, 16, Format::F32, 70, (Some(1), None, true)),
        (1, 4, 2, 18, Format::F16, 300, (Some(65), Some(0.5), false)),
        (1, 4, 2, 18, Format::F16, 300, (Some(1000), Some(2.0), true)),
        (30, 6, 2, 20, Format::F32, 200, (Some(7), None, true)),
        (75, 2, 1, 64, Format::F16, 90, (Some(40), Some(1.0), true)),
    ] {
        let scale = 3.0 / (width as f32).sqrt();
        let shape = ops::Attend {
            gates: None,
            query_heads,
            key_heads,
            width,
            cache,
            ring: None,
            scale,
            window,
            softcap,
            sinks,
            prologue: None,
        };
        let q = random.floats(rows * query_heads * width);
        let sink: Vec<f32> = random.floats(query_heads).into_iter().map(|sink| 3.0 * sink).collect();
        let (slots, positions) = rows_of_a_batch(rows, context, &mut random);
        let seen = |slot: u32| {
            let of_slot = (0..rows).filter(|&row| slots[row] == slot);
            of_slot.map(|row| positions[row] as usize + 1).max().unwrap_or(0)
        };
        let [keys, values] = [0; 2].map(|_| cached(&mut random, [key_heads, context, width], cache, seen));
        let mut wanted = Vec::new();
        for row in 0..rows {
            for head in 0..query_heads {
                let key_head = head / (query_heads / key_heads);
                let start = (slots[row] as usize * key_heads + key_head) * context * width;
                wanted.extend(attended(
                    &shape,
                    &to_f64(&q[(row * query_heads + head) * width..][..width]),
                    &keys.numbers[start..],
                    &values.numbers[start..],
                    positions[row] as usize,
                    sinks.then(|| sink[head]),
                ));
            }
        }
        let wanted = of_size(wanted, 2.0);
        let mut buffers = vec!["q", "keys", "values"];
        let mut arguments =
            vec![Argument::F32(q), Argument::Bytes(keys.bytes), Argument::Bytes(values.bytes)];
        if sinks {
            buffers.push("sinks");
            arguments.push(Argument::F32(sink));
        }
        buffers.extend(["slots", "positions", "heads"]);
        arguments.extend([
            Argument::U32(slots),
            Argument::U32(positions),
            Argument::Output(NAN.repeat(wanted.len())),
        ]);
        let kernel = kernel("attend", buffers, run);
        *SHAPE.write().unwrap() = Some(shape.clone());
        each_level(|level, _| {
            let run =
                |threads| run_kernel(kernel, &arguments, &[rows as u32, context as u32], level, threads);
            let heads = run(1);
            compare(&format!("{level:?} {rows} rows {shape:?}"), &to_f32(&heads[0]), &wanted);
            assert_eq!(heads, run(3), "{level:?} {rows} rows {shape:?} on more threads");
        });
    }
}

#[test]
fn attention_prologue_prepares_its_row() {
    kernel_under_test!(SHAPE, ops::Attend, cpu::attend);
    let mut random = Random(11);
    let norm = Some(HeadNorm { epsilon: 1e-6, after_rope: false, values: false });
    let of_values = Some(HeadNorm { epsilon: 1e-2, after_rope: false, values: true });
    let (both, keys, nothing) = (KvSource::KeysAndValues, KvSource::Keys, KvSource::Nothing);
    let gated = KvSource::KeysValuesAndGates;
    for (
        rows,
        query_heads,
        key_heads,
        width,
        pairs,
        pairing,
        cache,
        (kv_source, norm),
        position,
        (window, softcap, sinks),
    ) in [
        (1, 4, 2, 16, 8, Pairing::Half, Format::F32, (both, None), 0, (None, None, false)),
        (1, 4, 2, 16, 8, Pairing::Half, Format::F16, (both, norm), 69, (None, None, false)),
        (2, 6, 2, 20, 7, Pairing::Half, Format::F32, (both, norm), 130, (Some(64), Some(2.0), true)),
        (1, 3, 3, 128, 64, Pairing::Interleaved, Format::F16, (both, None), 64, (Some(1), None, true)),
        (1, 8, 1, 64, 32, Pairing::Half, Format::F16, (both, norm), 200, (Some(500), None, false)),
        (1, 4, 2, 16, 8, Pairing::Half, Format::F16, (both, of_values), 69, (None, None, false)),
        (2, 6, 2, 20, 7, Pairing::Half, Format::F32, (keys, of_values), 130, (Some(64), None, true)),
        (1, 3, 3, 128, 64, Pairing::Interleaved, Format::F16, (keys, None), 64, (None, None, false)),
        (1, 4, 2, 16, 8, Pairing::Half, Format::F16, (nothing, norm), 69, (None, None, false)),
        (1, 4, 1, 512, 64, Pairing::Half, Format::F16, (keys, of_values), 69, (None, None, false)),
        (2, 6, 2, 20, 7, Pairing::Half, Format::F32, (nothing, None), 130, (Some(64), Some(2.0), true)),
        (1, 4, 2, 16, 8, Pairing::Half, Format::F16, (gated, norm), 69, (None, None, false)),
        (2, 6, 2, 20, 0, Pairing::Half, Format::F32, (gated, None), 130, (Some(64), None, true)),
    ] {
        let context = 256;
        let rope = rope_parameters(pairs, pairing, 1.0);
        let scale = 1.0 / (width as f32).sqrt();
        let pitch = 2 * (query_heads + key_heads) * width;
        let gates = (kv_source == gated).then_some(Gates { pitch, first: pitch - query_heads * width });
        let shape = ops::Attend {
            gates,
            query_heads,
            key_heads,
            width,
            cache,
            ring: None,
            scale,
            window,
            softcap,
            sinks,
            prologue: Some(Prologue { kv_source, norm, rope: rope.clone() }),
        };
        let slots: Vec<u32> = (0..rows).map(|row| 1 - row as u32).collect();
        let positions: Vec<u32> = (0..rows).map(|row| position + row as u32).collect();
        let raw = raw(&mut random, [query_heads, key_heads, width], (kv_source, norm), &rope, &positions);
        let sink = random.floats(query_heads);
        let appends = kv_source != nothing;
        let own = u32::from(!appends);
        let seen = |slot: u32| if slots.contains(&slot) { (position + 1 - slot + own) as usize } else { 0 };
        let seen = |slot: u32| seen(slot).min(context);
        let before = [0; 2].map(|_| cached(&mut random, [key_heads, context, width], cache, seen));
        // The caches afterwards, up to rounding.
        let mut after = [before[0].numbers.clone(), before[1].numbers.clone()];
        for (after, of_rows) in after.iter_mut().zip([&raw.keys, &raw.values]) {
            for (index, head) in of_rows.chunks_exact(width).enumerate() {
                let row = index / key_heads;
                let start = (slots[row] as usize * key_heads + index % key_heads) * context;
                let start = (start + positions[row] as usize) * width;
                for (to, from) in after[start..].iter_mut().zip(head) {
                    *to = *from as f32;
                    if cache == Format::F16 {
                        *to = f16::from_f32(*to).to_f32();
                    }
                }
            }
        }
        let mut wanted = Vec::new();
        for (index, q) in raw.queries.chunks_exact(width).enumerate() {
            let (row, head) = (index / query_heads, index % query_heads);
            let key_head = head / (query_heads / key_heads);
            let start = (slots[row] as usize * key_heads + key_head) * context * width;
            let sink = sinks.then(|| sink[head]);
            let position = positions[row] as usize;
            wanted.extend(attended(&shape, q, &after[0][start..], &after[1][start..], position, sink));
        }
        if let Some(Gates { pitch, first }) = gates {
            let of_rows = raw.qkv.chunks_exact(pitch).flat_map(|row| &row[first..]);
            for (head, gate) in wanted.iter_mut().zip(of_rows) {
                *head /= 1.0 + (-f64::from(*gate)).exp();
            }
        }
        // A key may be rounded to an adjacent f16 value.
        let wanted = of_size(wanted, if cache == Format::F16 { 500.0 } else { 5.0 });
        let mut buffers = vec![if appends { "qkv" } else { "q" }];
        let mut arguments = vec![Argument::F32(raw.qkv.clone())];
        if norm.is_some() {
            let gains = if appends { 2 } else { 1 };
            buffers.extend(&["query_gain", "key_gain"][..gains]);
            arguments.extend(raw.gains.map(Argument::F32).into_iter().take(gains));
        }
        buffers.extend(["keys", "values"]);
        let cached = if appends { Argument::Output } else { Argument::Bytes };
        arguments.extend(before.map(|before| cached(before.bytes)));
        if sinks {
            buffers.push("sinks");
            arguments.push(Argument::F32(sink));
        }
        if gates.is_some() {
            buffers.push("gates");
            arguments.push(Argument::F32(raw.qkv));
        }
        buffers.extend(["slots", "positions", "heads"]);
        arguments.extend([
            Argument::U32(slots),
            Argument::U32(positions),
            Argument::Output(NAN.repeat(wanted.len())),
        ]);
        let kernel = kernel("attend", buffers, run);
        *SHAPE.write().unwrap() = Some(shape.clone());
        each_level(|level, _| {
            let what = format!("{level:?} {shape:?}");
            let run =
                |threads| run_kernel(kernel, &arguments, &[rows as u32, context as u32], level, threads);
            let got = run(1);
            let (heads, caches) = got.split_last().unwrap();
            compare(&what, &to_f32(heads), &wanted);
            for (got, wanted) in caches.iter().zip(&after) {
                for (got, wanted) in cache_values(got, cache).iter().zip(wanted) {
                    let near = (got - wanted).abs() <= 1e-3 * wanted.abs().max(1e-3);
                    assert!(near || (got.is_nan() && wanted.is_nan()), "{what}: {got}, not {wanted}");
                }
            }
            assert_eq!(got, run(3), "{what} on more threads");
        });
    }
}
