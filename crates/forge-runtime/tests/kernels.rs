//! CPU kernels other than projections (`projections.rs`), with every set of instructions that this machine has, against
//! plain f64.
//!
//! Shapes are what real models have and what nobody expects: odd widths, one row, more rows than a block, groups
//! that fill no tile. Buffers stand between stretches of NaN, so that reading outside shows.

mod support;

use forge_runtime::cpu::{self, Format, Pairing, Rotation};
use half::f16;
use support::{
    Argument, NAN, Random, bytes_of, compare, each_level, kernel, kernel_under_test, numbers_of, run_kernel,
    words_of,
};

#[test]
fn rms_norm_divides_by_the_root_of_the_mean_square() {
    kernel_under_test!(SHAPE, cpu::RmsNorm, cpu::rms_norm);
    let mut random = Random(3);
    for (rows, width, gather) in
        [(1, 1, false), (2, 7, false), (3, 64, true), (5, 100, true), (1, 4096, false), (40, 33, false)]
    {
        let epsilon = 1e-5_f32;
        let x = random.numbers(rows * width);
        let gain = random.numbers(width);
        let wanted_rows: Vec<usize> = if gather { vec![rows - 1, 0] } else { (0..rows).collect() };
        let mut wanted = Vec::new();
        for &row in &wanted_rows {
            let x = &x[row * width..(row + 1) * width];
            let mean = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / width as f64;
            let factor = 1.0 / (mean + f64::from(epsilon)).sqrt();
            wanted.extend(x.iter().zip(&gain).map(|(&v, &g)| {
                let y = f64::from(v) * factor * f64::from(g);
                (y, y.abs())
            }));
        }
        let mut buffers = vec!["x", "gain"];
        let mut arguments = vec![Argument::Numbers(x), Argument::Numbers(gain)];
        if gather {
            buffers.push("wanted");
            arguments.push(Argument::Words(wanted_rows.iter().map(|&row| row as u32).collect()));
        }
        buffers.push("y");
        arguments.push(Argument::Output(NAN.repeat(wanted.len())));
        let kernel = kernel("rms_norm", buffers, run);
        *SHAPE.write().unwrap() = Some(cpu::RmsNorm { width, epsilon, gather });
        each_level(|level, threads| {
            let y = run_kernel(kernel, &arguments, &[wanted_rows.len() as u32], level, threads);
            compare(&format!("{level:?} {rows} {width}"), &numbers_of(&y[0]), &wanted);
        });
    }
}

#[test]
fn argmax_takes_the_lowest_of_equals() {
    kernel_under_test!(SHAPE, cpu::Argmax, cpu::argmax);
    let mut random = Random(4);
    for vocabulary in [1, 2, 15, 16, 17, 500, 32_001] {
        let mut logits = random.numbers(3 * vocabulary);
        let twice = random.below(vocabulary);
        logits[twice] = 2.0;
        logits[vocabulary - 1] = 2.0;
        logits[vocabulary..2 * vocabulary].fill(-3.5);
        let third = random.below(vocabulary);
        logits[2 * vocabulary + third] = f32::INFINITY;
        let kernel = kernel("argmax", vec!["logits", "ids"], run);
        let arguments = [Argument::Numbers(logits), Argument::Output(vec![0xff; 12])];
        *SHAPE.write().unwrap() = Some(cpu::Argmax { vocabulary });
        each_level(|level, threads| {
            let ids = run_kernel(kernel, &arguments, &[3], level, threads);
            assert_eq!(words_of(&ids[0]), [twice as u32, 0, third as u32], "{level:?} {vocabulary}");
        });
    }
}

/// Rows of two slots at positions that need not follow each other.
fn rows_of_a_batch(rows: usize, context: usize, random: &mut Random) -> (Vec<u32>, Vec<u32>) {
    if rows == 1 {
        return (vec![1], vec![context as u32 - 1]);
    }
    let first = rows.div_ceil(2);
    let start = random.below(context - first + 1) as u32;
    let slots = (0..rows).map(|row| u32::from(row < first)).collect();
    let positions = (0..rows).map(|row| if row < first { start + row as u32 } else { (row - first) as u32 });
    (slots, positions.collect())
}

fn cache_bytes(values: &[f32], cache: Format) -> Vec<u8> {
    match cache {
        Format::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_ne_bytes()).collect(),
        _ => bytes_of(values),
    }
}

fn cache_numbers(bytes: &[u8], cache: Format) -> Vec<f32> {
    match cache {
        Format::F16 => {
            bytes.chunks_exact(2).map(|v| f16::from_ne_bytes(v.try_into().unwrap()).to_f32()).collect()
        }
        _ => numbers_of(bytes),
    }
}

#[test]
fn rotate_append_turns_pairs_and_fills_the_cache() {
    kernel_under_test!(SHAPE, cpu::RotateAppend, cpu::rotate_append);
    let mut random = Random(5);
    for (rows, query_heads, key_heads, width, pairs, pairing, cache) in [
        (1, 4, 2, 16, 8, Pairing::Half, Format::F32),
        (5, 6, 2, 10, 5, Pairing::Interleaved, Format::F16),
        (9, 3, 3, 64, 16, Pairing::Half, Format::F16),
        (4, 2, 1, 256, 128, Pairing::Interleaved, Format::F32),
        (3, 2, 1, 6, 0, Pairing::Half, Format::F32),
    ] {
        let context = 12;
        let frequencies: Vec<f32> = (0..pairs).map(|k| 10_000_f32.powf(-(k as f32) / pairs as f32)).collect();
        let frequencies: &'static [f32] = Box::leak(frequencies.into_boxed_slice());
        let magnitude = if rows == 9 { 1.25 } else { 1.0 };
        let rotation = Rotation { frequencies, pairing, magnitude };
        let shape = cpu::RotateAppend { query_heads, key_heads, width, cache, rotation };
        let row_width = (query_heads + 2 * key_heads) * width;
        let qkv = random.numbers(rows * row_width);
        let (slots, positions) = rows_of_a_batch(rows, context, &mut random);
        let before = random.numbers(2 * key_heads * context * width);
        let rotated = |row: usize, head: usize, channel: usize| -> f64 {
            let at = |channel: usize| f64::from(qkv[row * row_width + head * width + channel]);
            if channel >= 2 * pairs || head >= query_heads + key_heads {
                return at(channel);
            }
            let (pair, first, other) = match pairing {
                Pairing::Half => (channel % pairs, channel < pairs, (channel + pairs) % (2 * pairs)),
                Pairing::Interleaved => (channel / 2, channel.is_multiple_of(2), channel ^ 1),
            };
            let angle = f64::from(positions[row] as f32 * frequencies[pair]);
            let sign = if first { -1.0 } else { 1.0 };
            (at(channel) * angle.cos() + sign * at(other) * angle.sin()) * f64::from(magnitude)
        };
        let (mut q, mut keys, mut values) = (Vec::new(), before.clone(), before.clone());
        for row in 0..rows {
            for head in 0..query_heads {
                q.extend((0..width).map(|channel| (rotated(row, head, channel), 3.0)));
            }
            for head in 0..key_heads {
                let start = (slots[row] as usize * key_heads + head) * context + positions[row] as usize;
                for channel in 0..width {
                    keys[start * width + channel] = rotated(row, query_heads + head, channel) as f32;
                    values[start * width + channel] =
                        qkv[row * row_width + (query_heads + key_heads + head) * width + channel];
                }
            }
        }
        let kernel = kernel("rotate_append", vec!["qkv", "slots", "positions", "q", "keys", "values"], run);
        let arguments = [
            Argument::Numbers(qkv.clone()),
            Argument::Words(slots.clone()),
            Argument::Words(positions.clone()),
            Argument::Output(NAN.repeat(rows * query_heads * width)),
            Argument::Output(cache_bytes(&before, cache)),
            Argument::Output(cache_bytes(&before, cache)),
        ];
        *SHAPE.write().unwrap() = Some(shape);
        each_level(|level, threads| {
            let what = format!("{level:?} {shape:?}");
            let got = run_kernel(kernel, &arguments, &[rows as u32, context as u32], level, threads);
            compare(&what, &numbers_of(&got[0]), &q);
            // A half is rounded by 2^-11 of itself; what is not appended stays as it was.
            let unit = if cache == Format::F16 { 600.0 } else { 2.0 };
            for (got, wanted) in [(&got[1], &keys), (&got[2], &values)] {
                let wanted: Vec<(f64, f64)> = wanted.iter().map(|&v| (f64::from(v), unit)).collect();
                compare(&what, &cache_numbers(got, cache), &wanted);
            }
        });
    }
}

#[test]
fn attend_is_softmax_times_values() {
    kernel_under_test!(SHAPE, cpu::Attend, cpu::attend);
    let mut random = Random(6);
    for (rows, query_heads, key_heads, width, cache, context) in [
        (1, 4, 4, 2, Format::F32, 1),
        (1, 4, 2, 16, Format::F32, 70),
        (1, 9, 3, 64, Format::F16, 300),
        (6, 8, 1, 10, Format::F16, 65),
        (30, 4, 2, 128, Format::F32, 64),
        (75, 5, 1, 48, Format::F16, 200),
        (3, 7, 7, 80, Format::F32, 129),
        (2, 32, 1, 256, Format::F16, 40),
        (40, 2, 2, 30, Format::F32, 100),
    ] {
        let scale = 3.0 / (width as f32).sqrt();
        let shape = cpu::Attend { query_heads, key_heads, width, cache, scale };
        let q = random.numbers(rows * query_heads * width);
        let (slots, positions) = rows_of_a_batch(rows, context, &mut random);
        let cached = 2 * key_heads * context * width;
        let (mut keys, mut values) = (random.numbers(cached), random.numbers(cached));
        // Positions that no row may see are not numbers.
        for slot in 0..2 {
            let end =
                (0..rows).filter(|&row| slots[row] == slot).map(|row| positions[row] + 1).max().unwrap_or(0);
            for head in 0..key_heads {
                for position in end as usize..context {
                    let start = ((slot as usize * key_heads + head) * context + position) * width;
                    keys[start..start + width].fill(f32::NAN);
                    values[start..start + width].fill(f32::NAN);
                }
            }
        }
        let (keys, values) = (cache_bytes(&keys, cache), cache_bytes(&values, cache));
        let (exact_keys, exact_values) = (cache_numbers(&keys, cache), cache_numbers(&values, cache));
        let mut wanted = Vec::new();
        for row in 0..rows {
            for head in 0..query_heads {
                let key_head = head / (query_heads / key_heads);
                let start = (slots[row] as usize * key_heads + key_head) * context * width;
                let q = &q[(row * query_heads + head) * width..][..width];
                let scores: Vec<f64> = (0..=positions[row] as usize)
                    .map(|p| {
                        let key = &exact_keys[start + p * width..][..width];
                        let dot: f64 = q.iter().zip(key).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                        dot * f64::from(scale)
                    })
                    .collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
                let total: f64 = weights.iter().sum();
                for channel in 0..width {
                    let sum: f64 = weights
                        .iter()
                        .enumerate()
                        .map(|(p, weight)| weight * f64::from(exact_values[start + p * width + channel]))
                        .sum();
                    wanted.push((sum / total, 2.0));
                }
            }
        }
        let kernel = kernel("attend", vec!["q", "keys", "values", "slots", "positions", "heads"], run);
        let arguments = [
            Argument::Numbers(q),
            Argument::Bytes(keys),
            Argument::Bytes(values),
            Argument::Words(slots),
            Argument::Words(positions),
            Argument::Output(NAN.repeat(wanted.len())),
        ];
        *SHAPE.write().unwrap() = Some(shape);
        each_level(|level, threads| {
            let heads = run_kernel(kernel, &arguments, &[rows as u32, context as u32], level, threads);
            compare(&format!("{level:?} {rows} rows {shape:?}"), &numbers_of(&heads[0]), &wanted);
        });
    }
}
