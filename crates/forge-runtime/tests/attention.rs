//! CPU kernels of norms, rotation, attention and functions element by element, with every set of instructions that this
//! machine has and different numbers of threads, against plain f64.
//!
//! Shapes are what real models have and what nobody expects: odd widths, one row, more rows than a block, windows
//! shorter and longer than a text. Buffers stand between stretches of NaN, so that reading outside shows.

#[macro_use]
mod support;

use forge_runtime::cpu::{
    self, Activation, Each, Format, Function, HeadNorm, Long, Pairing, Prologue, Rotation,
};
use half::f16;
use support::{Argument, NAN, Random, bytes_of, compare, each_level, kernel, numbers_of, run_kernel, silu};

/// Frequencies of base 10,000.
fn rotation(pairs: usize, pairing: Pairing, magnitude: f32) -> Rotation {
    let frequencies: Vec<f32> = (0..pairs).map(|k| 10_000_f32.powf(-(k as f32) / pairs as f32)).collect();
    Rotation { frequencies: Box::leak(frequencies.into_boxed_slice()), pairing, magnitude, long: None }
}

fn normed(x: &[f64], gain: Option<&[f32]>, epsilon: f32) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let factor = 1.0 / (mean + f64::from(epsilon)).sqrt();
    x.iter().enumerate().map(|(i, v)| v * factor * gain.map_or(1.0, |gain| f64::from(gain[i]))).collect()
}

fn rotated(head: &[f64], rotation: &Rotation, position: u32) -> Vec<f64> {
    let pairs = rotation.frequencies.len();
    let mut turned = head.to_vec();
    for (k, frequency) in rotation.frequencies.iter().enumerate() {
        let (one, other) = match rotation.pairing {
            Pairing::Half => (k, k + pairs),
            Pairing::Interleaved => (2 * k, 2 * k + 1),
        };
        let (sine, cosine) = f64::from(position as f32 * frequency).sin_cos();
        let magnitude = f64::from(rotation.magnitude);
        turned[one] = (head[one] * cosine - head[other] * sine) * magnitude;
        turned[other] = (head[other] * cosine + head[one] * sine) * magnitude;
    }
    turned
}

fn wide(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().copied().map(f64::from).collect()
}

/// Each number with a size that an error may be a millionth of.
fn of_size(numbers: impl IntoIterator<Item = f64>, size: f64) -> Vec<(f64, f64)> {
    numbers.into_iter().map(|v| (v, size)).collect()
}

#[test]
fn rms_norm_divides_by_the_root_of_the_mean_square() {
    kernel_under_test!(SHAPE, cpu::RmsNorm, cpu::rms_norm);
    let mut random = Random(3);
    for (rows, width, parts, gain, gather) in [
        (1, 1, 1, true, false),
        (2, 7, 1, false, false),
        (3, 64, 1, true, true),
        (5, 100, 1, true, true),
        (1, 4096, 1, true, false),
        (40, 33, 1, true, false),
        (3, 20, 5, true, false),
        (6, 128, 3, false, true),
    ] {
        let epsilon = 1e-5_f32;
        let x = random.numbers(rows * parts * width);
        let gains = random.numbers(width);
        let wanted_rows: Vec<usize> = if gather { vec![rows - 1, 0] } else { (0..rows).collect() };
        let wanted: Vec<(f64, f64)> = wanted_rows
            .iter()
            .flat_map(|row| x[row * parts * width..(row + 1) * parts * width].chunks_exact(width))
            .flat_map(|part| normed(&wide(part), gain.then_some(&gains), epsilon))
            .map(|y| (y, y.abs()))
            .collect();
        let mut buffers = vec!["x"];
        let mut arguments = vec![Argument::Numbers(x)];
        if gain {
            buffers.push("gain");
            arguments.push(Argument::Numbers(gains));
        }
        if gather {
            buffers.push("wanted");
            arguments.push(Argument::Words(wanted_rows.iter().map(|&row| row as u32).collect()));
        }
        buffers.push("y");
        arguments.push(Argument::Output(NAN.repeat(wanted.len())));
        let kernel = kernel("rms_norm", buffers, run);
        *SHAPE.write().unwrap() = Some(cpu::RmsNorm { width, parts, epsilon, gain, gather });
        each_level(|level, threads| {
            let y = run_kernel(kernel, &arguments, &[wanted_rows.len() as u32], level, threads);
            compare(&format!("{level:?} {rows} {width} {parts}"), &numbers_of(&y[0]), &wanted);
        });
    }
}

/// x times the normal distribution's share below x, which is summed up in so many steps.
fn gelu(x: f64) -> f64 {
    let density = |y: f64| (-y * y / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if x.abs() > 12.0 {
        return x.max(0.0);
    }
    let (end, steps) = (x.abs(), 2000);
    let step = end / f64::from(steps);
    // Simpson's rule.
    let weight = |i: i32| if i == 0 || i == steps { 1.0 } else { f64::from(2 + i % 2 * 2) };
    let share = (0..=steps).map(|i| weight(i) * density(f64::from(i) * step)).sum::<f64>() * step / 3.0;
    x * (0.5 + share * x.signum())
}

#[test]
fn layer_norm_takes_the_mean_off() {
    kernel_under_test!(SHAPE, cpu::LayerNorm, cpu::layer_norm);
    let mut random = Random(14);
    for (rows, width, bias, gather) in [
        (1, 1, true, false),
        (2, 7, false, false),
        (3, 64, true, true),
        (5, 100, false, true),
        (1, 4096, true, false),
    ] {
        let epsilon = 1e-5_f32;
        let x: Vec<f32> = random.numbers(rows * width).into_iter().map(|x| x + 3.0).collect();
        let [gains, biases] = [0; 2].map(|_| random.numbers(width));
        let wanted_rows: Vec<usize> = if gather { vec![rows - 1, 0] } else { (0..rows).collect() };
        let mut wanted = Vec::new();
        for row in &wanted_rows {
            let row = wide(&x[row * width..(row + 1) * width]);
            let mean = row.iter().sum::<f64>() / width as f64;
            let rest: Vec<f64> = row.iter().map(|x| x - mean).collect();
            for (i, y) in normed(&rest, Some(&gains), epsilon).into_iter().enumerate() {
                let y = y + if bias { f64::from(biases[i]) } else { 0.0 };
                // What the mean takes off is as large as 4.
                wanted.push((y, 10.0 + 1.0 / f64::from(epsilon).sqrt() * f64::from(u8::from(width == 1))));
            }
        }
        let mut buffers = vec!["x", "gain"];
        let mut arguments = vec![Argument::Numbers(x), Argument::Numbers(gains)];
        if bias {
            buffers.push("bias");
            arguments.push(Argument::Numbers(biases));
        }
        if gather {
            buffers.push("wanted");
            arguments.push(Argument::Words(wanted_rows.iter().map(|&row| row as u32).collect()));
        }
        buffers.push("y");
        arguments.push(Argument::Output(NAN.repeat(wanted.len())));
        let kernel = kernel("layer_norm", buffers, run);
        *SHAPE.write().unwrap() = Some(cpu::LayerNorm { width, epsilon, bias, gather });
        each_level(|level, threads| {
            let y = run_kernel(kernel, &arguments, &[wanted_rows.len() as u32], level, threads);
            compare(&format!("{level:?} {rows} {width}"), &numbers_of(&y[0]), &wanted);
        });
    }
}

#[test]
fn elementwise_is_its_function() {
    kernel_under_test!(SHAPE, cpu::Elementwise, cpu::elementwise);
    let mut random = Random(8);
    for (rows, width) in [(1, 1), (3, 17), (2, 1500)] {
        // From tiny to far beyond where a function is flat.
        let spread = |x: f32| x * 10_f32.powi((x.to_bits() % 13) as i32 - 8);
        let a: Vec<f32> = random.numbers(rows * width).into_iter().map(spread).collect();
        let b = random.numbers(rows * width);
        for (function, binary) in [
            (Function::Each(Each::Activate(Activation::Silu)), false),
            (Function::Each(Each::Activate(Activation::GeluTanh)), false),
            (Function::Each(Each::Activate(Activation::Gelu)), false),
            (Function::Each(Each::Activate(Activation::Relu)), false),
            (Function::Each(Each::Softcap(30.0)), false),
            (Function::Each(Each::Softcap(0.5)), false),
            (Function::Each(Each::Scale(-0.22)), false),
            (Function::Multiply, true),
            (Function::Add, true),
        ] {
            let wanted: Vec<(f64, f64)> = wide(&a)
                .into_iter()
                .zip(wide(&b))
                .map(|(a, b)| match function {
                    Function::Each(Each::Activate(Activation::Silu)) => (silu(a), silu(a).abs().max(1e-30)),
                    Function::Each(Each::Activate(Activation::GeluTanh)) => {
                        let u = (2.0 / std::f64::consts::PI).sqrt() * (a + 0.044715 * a * a * a);
                        // 1 + tanh(u) loses all digits where it is small, and this does not: twice the logistic of 2 u.
                        let y = a / (1.0 + (-2.0 * u).exp());
                        // An error of the exponent's last place is one of as many parts as the exponent is large.
                        (y, y.abs().max(1e-30) * (1.0 + u.abs()))
                    }
                    // A part of x is taken off max(x, 0): an error is one of x.
                    Function::Each(Each::Activate(Activation::Gelu)) => (gelu(a), a.abs().max(1e-30)),
                    Function::Each(Each::Activate(Activation::Relu)) => (a.max(0.0), a.abs()),
                    Function::Each(Each::Softcap(cap)) => {
                        let y = f64::from(cap) * (a / f64::from(cap)).tanh();
                        (y, y.abs())
                    }
                    Function::Each(Each::Scale(factor)) => {
                        let y = f64::from(factor) * a;
                        (y, y.abs())
                    }
                    Function::Multiply => (a * b, (a * b).abs()),
                    Function::Add => (a + b, a.abs() + b.abs()),
                })
                .collect();
            let mut buffers = vec!["a"];
            let mut arguments = vec![Argument::Numbers(a.clone())];
            if binary {
                buffers.push("b");
                arguments.push(Argument::Numbers(b.clone()));
            }
            buffers.push("y");
            arguments.push(Argument::Output(NAN.repeat(rows * width)));
            let kernel = kernel("elementwise", buffers, run);
            *SHAPE.write().unwrap() = Some(cpu::Elementwise { function, width });
            each_level(|level, threads| {
                let y = run_kernel(kernel, &arguments, &[rows as u32], level, threads);
                compare(&format!("{level:?} {rows} {width} {function:?}"), &numbers_of(&y[0]), &wanted);
            });
        }
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

/// What a cached number may be off by: a half is rounded by 2^-11 of itself.
fn cache_unit(cache: Format) -> f64 {
    if cache == Format::F16 { 600.0 } else { 2.0 }
}

/// A rotation that contexts of more than so many positions turn at a seventh of the speed.
fn long(rotation: Rotation, beyond: usize) -> Rotation {
    Rotation { long: Some(Long::Other { beyond, frequencies: seventh(rotation) }), ..rotation }
}

/// Its frequencies at a seventh of the speed.
fn seventh(rotation: Rotation) -> &'static [f32] {
    let frequencies: Vec<f32> = rotation.frequencies.iter().map(|frequency| frequency / 7.0).collect();
    Box::leak(frequencies.into_boxed_slice())
}

#[test]
fn long_contexts_turn_heads_their_own_way() {
    kernel_under_test!(SHAPE, cpu::Rotate, cpu::rotate);
    let mut random = Random(12);
    let (rows, heads, width) = (3, 2, 16);
    let usual = rotation(8, Pairing::Half, 1.25);
    let shape = cpu::Rotate { heads, width, rotation: long(usual, 40) };
    let slow = Rotation { frequencies: seventh(usual), ..usual };
    let growing = Rotation { long: Some(Long::Stretched { beyond: 40, factor: 4.0 }), ..usual };
    // Twice the context: 4 * 2 - 3 times the wave that was longest.
    let stretched = usual.frequencies.iter().enumerate().map(|(k, own)| own * 5_f32.powf(-(k as f32) / 7.0));
    let stretched = Rotation { frequencies: stretched.collect::<Vec<_>>().leak(), ..usual };
    for (context, rotation, turned_by) in [
        (40_u32, shape.rotation, usual),
        (41, shape.rotation, slow),
        (40, growing, usual),
        (80, growing, stretched),
    ] {
        let shape = cpu::Rotate { rotation, ..shape };
        let x = random.numbers(rows * heads * width);
        let positions = [0, 3, 39];
        let turned =
            |(index, head): (usize, &[f32])| rotated(&wide(head), &turned_by, positions[index / heads]);
        let wanted = of_size(x.chunks_exact(width).enumerate().flat_map(turned), 3.0);
        let kernel = kernel("rotate", vec!["x", "positions", "y"], run);
        let arguments = [
            Argument::Numbers(x),
            Argument::Words(positions.to_vec()),
            Argument::Output(NAN.repeat(rows * heads * width)),
        ];
        *SHAPE.write().unwrap() = Some(shape);
        each_level(|level, threads| {
            let y = run_kernel(kernel, &arguments, &[rows as u32, context], level, threads);
            compare(&format!("{level:?} {context}"), &numbers_of(&y[0]), &wanted);
        });
    }
}

#[test]
fn rotate_turns_pairs() {
    kernel_under_test!(SHAPE, cpu::Rotate, cpu::rotate);
    let mut random = Random(9);
    for (rows, heads, width, pairs, pairing, magnitude) in [
        (1, 3, 2, 1, Pairing::Half, 1.0),
        (4, 1, 20, 8, Pairing::Half, 1.25),
        (3, 4, 128, 64, Pairing::Half, 1.0),
        (5, 2, 22, 11, Pairing::Interleaved, 1.0),
    ] {
        let shape = cpu::Rotate { heads, width, rotation: rotation(pairs, pairing, magnitude) };
        let x = random.numbers(rows * heads * width);
        let positions: Vec<u32> = (0..rows).map(|_| random.below(5000) as u32).collect();
        let wanted = of_size(
            x.chunks_exact(width)
                .enumerate()
                .flat_map(|(index, head)| rotated(&wide(head), &shape.rotation, positions[index / heads])),
            3.0,
        );
        let kernel = kernel("rotate", vec!["x", "positions", "y"], run);
        let arguments = [
            Argument::Numbers(x),
            Argument::Words(positions),
            Argument::Output(NAN.repeat(rows * heads * width)),
        ];
        *SHAPE.write().unwrap() = Some(shape);
        each_level(|level, threads| {
            let y = run_kernel(kernel, &arguments, &[rows as u32], level, threads);
            compare(&format!("{level:?} {shape:?}"), &numbers_of(&y[0]), &wanted);
        });
    }
}

#[test]
fn append_fills_the_cache() {
    kernel_under_test!(SHAPE, cpu::Append, cpu::append);
    let mut random = Random(10);
    for (rows, key_heads, width, cache) in
        [(1, 1, 2, Format::F32), (5, 3, 10, Format::F16), (6, 2, 64, Format::F32)]
    {
        let context = 9;
        let [key, value] = [0; 2].map(|_| random.numbers(rows * key_heads * width));
        let (slots, positions) = rows_of_a_batch(rows, context, &mut random);
        let before = random.numbers(2 * key_heads * context * width);
        let wanted = [&key, &value].map(|of_rows| {
            let mut all = wide(&before);
            for (index, head) in of_rows.chunks_exact(width).enumerate() {
                let row = index / key_heads;
                let start = (slots[row] as usize * key_heads + index % key_heads) * context;
                let start = (start + positions[row] as usize) * width;
                all[start..start + width].copy_from_slice(&wide(head));
            }
            of_size(all, cache_unit(cache))
        });
        let kernel = kernel("append", vec!["key", "value", "slots", "positions", "keys", "values"], run);
        let arguments = [
            Argument::Numbers(key),
            Argument::Numbers(value),
            Argument::Words(slots),
            Argument::Words(positions),
            Argument::Output(cache_bytes(&before, cache)),
            Argument::Output(cache_bytes(&before, cache)),
        ];
        *SHAPE.write().unwrap() = Some(cpu::Append { key_heads, width, cache });
        each_level(|level, threads| {
            let got = run_kernel(kernel, &arguments, &[rows as u32, context as u32], level, threads);
            for (got, wanted) in got.iter().zip(&wanted) {
                compare(&format!("{level:?} {rows} {width}"), &cache_numbers(got, cache), wanted);
            }
        });
    }
}

/// Rows before rotation, with the gains of heads, and what is to become of them.
struct Raw {
    qkv: Vec<f32>,
    gains: [Vec<f32>; 2],
    /// Every row's query heads, prepared.
    queries: Vec<f64>,
    /// Every row's key heads, prepared.
    keys: Vec<f64>,
    /// Every row's value heads.
    values: Vec<f64>,
}

fn raw(
    random: &mut Random,
    [query_heads, key_heads, width]: [usize; 3],
    norm: Option<HeadNorm>,
    rotation: &Rotation,
    positions: &[u32],
) -> Raw {
    let row_heads = query_heads + 2 * key_heads;
    let qkv = random.numbers(positions.len() * row_heads * width);
    let gains = [0; 2].map(|_| random.numbers(width));
    let (mut queries, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for (index, head) in qkv.chunks_exact(width).enumerate() {
        let (row, number) = (index / row_heads, index % row_heads);
        let mut head = wide(head);
        let is_query = number < query_heads;
        if number < query_heads + key_heads {
            let norm = |head: Vec<f64>, after| match norm {
                Some(HeadNorm { epsilon, turned }) if turned == after => {
                    normed(&head, Some(&gains[usize::from(!is_query)]), epsilon)
                }
                _ => head,
            };
            head = norm(rotated(&norm(head, false), rotation, positions[row]), true);
        }
        let to = match number {
            _ if is_query => &mut queries,
            _ if number < query_heads + key_heads => &mut keys,
            _ => &mut values,
        };
        to.extend(head);
    }
    Raw { qkv, gains, queries, keys, values }
}

#[test]
fn rotate_append_norms_turns_and_fills_the_cache() {
    kernel_under_test!(SHAPE, cpu::RotateAppend, cpu::rotate_append);
    let mut random = Random(5);
    let norm = Some(HeadNorm { epsilon: 1e-6, turned: false });
    let turned = Some(HeadNorm { epsilon: 1e-6, turned: true });
    for (rows, query_heads, key_heads, width, pairs, pairing, cache, norm) in [
        (1, 4, 2, 16, 8, Pairing::Half, Format::F32, None),
        (5, 6, 2, 10, 5, Pairing::Interleaved, Format::F16, norm),
        (9, 3, 3, 64, 16, Pairing::Half, Format::F16, None),
        (4, 2, 1, 256, 128, Pairing::Interleaved, Format::F32, None),
        (3, 2, 1, 6, 0, Pairing::Half, Format::F32, None),
        (7, 4, 2, 128, 64, Pairing::Half, Format::F32, norm),
        (6, 4, 2, 18, 8, Pairing::Half, Format::F32, turned),
        (8, 4, 2, 16, 8, Pairing::Half, Format::F32, None),
    ] {
        let context = 12;
        let mut rotation = rotation(pairs, pairing, if rows == 9 { 1.25 } else { 1.0 });
        let mut seen = rotation;
        if rows == 8 {
            rotation = long(rotation, context - 1);
            seen.frequencies = seventh(seen);
        }
        let shape = cpu::RotateAppend { query_heads, key_heads, width, cache, norm, rotation };
        let (slots, positions) = rows_of_a_batch(rows, context, &mut random);
        let raw = raw(&mut random, [query_heads, key_heads, width], norm, &seen, &positions);
        let before = random.numbers(2 * key_heads * context * width);
        let cached = [&raw.keys, &raw.values].map(|of_rows| {
            let mut all = wide(&before);
            for (index, head) in of_rows.chunks_exact(width).enumerate() {
                let row = index / key_heads;
                let start = (slots[row] as usize * key_heads + index % key_heads) * context;
                let start = (start + positions[row] as usize) * width;
                all[start..start + width].copy_from_slice(head);
            }
            // Normed heads are as large as their gain and the root of their width.
            let size = if norm.is_some() { 5.0 } else { 1.0 };
            of_size(all, size * cache_unit(cache))
        });
        let mut buffers = vec!["qkv"];
        let mut arguments = vec![Argument::Numbers(raw.qkv)];
        if norm.is_some() {
            buffers.extend(["query_gain", "key_gain"]);
            arguments.extend(raw.gains.map(Argument::Numbers));
        }
        buffers.extend(["slots", "positions", "q", "keys", "values"]);
        arguments.extend([
            Argument::Words(slots),
            Argument::Words(positions),
            Argument::Output(NAN.repeat(rows * query_heads * width)),
            Argument::Output(cache_bytes(&before, cache)),
            Argument::Output(cache_bytes(&before, cache)),
        ]);
        let kernel = kernel("rotate_append", buffers, run);
        *SHAPE.write().unwrap() = Some(shape);
        let queries = of_size(raw.queries, if norm.is_some() { 10.0 } else { 3.0 });
        each_level(|level, threads| {
            let what = format!("{level:?} {shape:?}");
            let got = run_kernel(kernel, &arguments, &[rows as u32, context as u32], level, threads);
            compare(&what, &numbers_of(&got[0]), &queries);
            for (got, wanted) in got[1..].iter().zip(&cached) {
                compare(&what, &cache_numbers(got, cache), wanted);
            }
        });
    }
}

/// A cache of two slots, as bytes, in which positions that no row may see are not numbers.
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
    let mut all = random.numbers(2 * key_heads * context * width);
    for slot in 0..2 {
        for head in 0..key_heads {
            let start = (slot * key_heads + head) * context;
            all[(start + seen(slot as u32)) * width..(start + context) * width].fill(f32::NAN);
        }
    }
    let bytes = cache_bytes(&all, cache);
    Cached { numbers: cache_numbers(&bytes, cache), bytes }
}

/// What attention gives for one query head: `scores` of the positions that it sees, and where values of the first begin.
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

/// A head's result, of query q over positions `range` of `keys` and `values`, which begin at position 0 of its head.
fn attended(
    shape: &cpu::Attend,
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
    kernel_under_test!(SHAPE, cpu::Attend, cpu::attend);
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
        (40, 2, 2, 30, Format::F32, 100, plain),
        (1, 4, 2, 16, Format::F32, 70, (Some(1), None, true)),
        (1, 4, 2, 18, Format::F16, 300, (Some(65), Some(0.5), false)),
        (1, 4, 2, 18, Format::F16, 300, (Some(1000), Some(2.0), true)),
        (30, 6, 2, 20, Format::F32, 200, (Some(7), None, true)),
        (75, 2, 1, 64, Format::F16, 90, (Some(40), Some(1.0), true)),
    ] {
        let scale = 3.0 / (width as f32).sqrt();
        let shape = cpu::Attend {
            query_heads,
            key_heads,
            width,
            cache,
            scale,
            window,
            softcap,
            sinks,
            prologue: None,
        };
        let q = random.numbers(rows * query_heads * width);
        let sink: Vec<f32> = random.numbers(query_heads).into_iter().map(|sink| 3.0 * sink).collect();
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
                    &wide(&q[(row * query_heads + head) * width..][..width]),
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
            vec![Argument::Numbers(q), Argument::Bytes(keys.bytes), Argument::Bytes(values.bytes)];
        if sinks {
            buffers.push("sinks");
            arguments.push(Argument::Numbers(sink));
        }
        buffers.extend(["slots", "positions", "heads"]);
        arguments.extend([
            Argument::Words(slots),
            Argument::Words(positions),
            Argument::Output(NAN.repeat(wanted.len())),
        ]);
        let kernel = kernel("attend", buffers, run);
        *SHAPE.write().unwrap() = Some(shape);
        each_level(|level, _| {
            let run =
                |threads| run_kernel(kernel, &arguments, &[rows as u32, context as u32], level, threads);
            let heads = run(1);
            compare(&format!("{level:?} {rows} rows {shape:?}"), &numbers_of(&heads[0]), &wanted);
            assert_eq!(heads, run(3), "{level:?} {rows} rows {shape:?} on more threads");
        });
    }
}

#[test]
fn attend_prepares_its_own_row() {
    kernel_under_test!(SHAPE, cpu::Attend, cpu::attend);
    let mut random = Random(11);
    let norm = Some(HeadNorm { epsilon: 1e-6, turned: false });
    for (
        rows,
        query_heads,
        key_heads,
        width,
        pairs,
        pairing,
        cache,
        norm,
        position,
        (window, softcap, sinks),
    ) in [
        (1, 4, 2, 16, 8, Pairing::Half, Format::F32, None, 0, (None, None, false)),
        (1, 4, 2, 16, 8, Pairing::Half, Format::F16, norm, 69, (None, None, false)),
        (2, 6, 2, 20, 7, Pairing::Half, Format::F32, norm, 130, (Some(64), Some(2.0), true)),
        (1, 3, 3, 128, 64, Pairing::Interleaved, Format::F16, None, 64, (Some(1), None, true)),
        (1, 8, 1, 64, 32, Pairing::Half, Format::F16, norm, 200, (Some(500), None, false)),
    ] {
        let context = 256;
        let rotation = rotation(pairs, pairing, 1.0);
        let scale = 1.0 / (width as f32).sqrt();
        let shape = cpu::Attend {
            query_heads,
            key_heads,
            width,
            cache,
            scale,
            window,
            softcap,
            sinks,
            prologue: Some(Prologue { norm, rotation }),
        };
        let slots: Vec<u32> = (0..rows).map(|row| 1 - row as u32).collect();
        let positions: Vec<u32> = (0..rows).map(|row| position + row as u32).collect();
        let raw = raw(&mut random, [query_heads, key_heads, width], norm, &rotation, &positions);
        let sink = random.numbers(query_heads);
        let seen = |slot: u32| if slots.contains(&slot) { (position + 1 - slot) as usize } else { 0 };
        let seen = |slot: u32| seen(slot).min(context);
        let before = [0; 2].map(|_| cached(&mut random, [key_heads, context, width], cache, seen));
        // The caches afterwards, exact but for rounding.
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
        // A key may be rounded to the next half.
        let wanted = of_size(wanted, if cache == Format::F16 { 500.0 } else { 5.0 });
        let mut buffers = vec!["qkv"];
        let mut arguments = vec![Argument::Numbers(raw.qkv)];
        if norm.is_some() {
            buffers.extend(["query_gain", "key_gain"]);
            arguments.extend(raw.gains.map(Argument::Numbers));
        }
        buffers.extend(["keys", "values"]);
        arguments.extend(before.map(|before| Argument::Output(before.bytes)));
        if sinks {
            buffers.push("sinks");
            arguments.push(Argument::Numbers(sink));
        }
        buffers.extend(["slots", "positions", "heads"]);
        arguments.extend([
            Argument::Words(slots),
            Argument::Words(positions),
            Argument::Output(NAN.repeat(wanted.len())),
        ]);
        let kernel = kernel("attend", buffers, run);
        *SHAPE.write().unwrap() = Some(shape);
        each_level(|level, _| {
            let what = format!("{level:?} {shape:?}");
            let run =
                |threads| run_kernel(kernel, &arguments, &[rows as u32, context as u32], level, threads);
            let got = run(1);
            compare(&what, &numbers_of(&got[2]), &wanted);
            for (got, wanted) in got.iter().zip(&after) {
                for (got, wanted) in cache_numbers(got, cache).iter().zip(wanted) {
                    let near = (got - wanted).abs() <= 1e-3 * wanted.abs().max(1e-3);
                    assert!(near || (got.is_nan() && wanted.is_nan()), "{what}: {got}, not {wanted}");
                }
            }
            assert_eq!(got, run(3), "{what} on more threads");
        });
    }
}
