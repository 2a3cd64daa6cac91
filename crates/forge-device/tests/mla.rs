//! CPU kernels of multi-head latent attention (MLA) against plain f64, for every ISA level of this machine:
//! per-head matrices in both directions, the latent KV cache, and attention.

#[macro_use]
mod support;

use forge_device::cpu::{self};
use forge_device::device::Schedule;
use forge_device::ops::{
    Format, MlaAppend, MlaAttention, MlaAttentionExpanded, MlaColumns, MlaLoadLatents, MlaPrepare, Pairing,
    PerHeadLinear, RopeParameters, Scales,
};
use support::{
    Argument, NAN, Random, affine, bytes_of, compare, each_level, kernel, matrix, run_kernel, run_kernel_as,
    to_f32,
};

fn each(call: &cpu::KernelArgs<'_>, shape: &PerHeadLinear) {
    match shape.format {
        Format::F32 => cpu::per_head_linear::<cpu::F32>(call, shape),
        Format::Q4_0 => cpu::per_head_linear::<cpu::Q4_0>(call, shape),
        Format::Q6K => cpu::per_head_linear::<cpu::Q6K>(call, shape),
        _ => cpu::per_head_linear::<cpu::AffineBf16<4, 64>>(call, shape),
    }
}

#[test]
fn per_head_matmul_multiplies_each_heads_part() {
    kernel_under_test!(SHAPE, PerHeadLinear, each);
    let mut random = Random(21);
    let affine = affine(4, 64, Scales::Bf16);
    for format in [Format::F32, Format::Q4_0, Format::Q6K, affine] {
        for (heads, of_matrix, columns) in [(3, 7, 30), (2, 70, 90), (1, 5, 300)] {
            for (transposed, wider) in [(false, 0), (false, 5), (true, 0), (true, 5)] {
                let weights = matrix(&mut random, format, heads * of_matrix, columns, 1.0);
                let (takes, gives) = if transposed { (of_matrix, columns) } else { (columns, of_matrix) };
                let pitch = heads * takes + wider;
                let shape = PerHeadLinear { format, heads, rows: of_matrix, columns, transposed, pitch };
                for rows in [1, 2, 7] {
                    let x = random.floats(rows * pitch);
                    let product = |at: usize| {
                        let (row, head, output) = (at / gives / heads, at / gives % heads, at % gives);
                        let term = |input: usize| {
                            let (of_row, of_column) =
                                if transposed { (input, output) } else { (output, input) };
                            let weight = weights.values[(head * of_matrix + of_row) * columns + of_column];
                            let x = f64::from(x[row * pitch + head * takes + input]);
                            // A weight with an offset is the difference of its scaled quant and the offset.
                            let cancelled = if format == affine { 4.0 * x.abs() } else { 0.0 };
                            (f64::from(weight) * x, (f64::from(weight) * x).abs() + cancelled)
                        };
                        (0..takes).map(term).fold((0.0, 0.0), |sum, term| (sum.0 + term.0, sum.1 + term.1))
                    };
                    let wanted: Vec<(f64, f64)> = (0..rows * heads * gives).map(product).collect();
                    let mut buffers = match weights.planes.len() {
                        1 => vec!["weight_values"],
                        _ => vec!["weight_codes", "weight_scales"],
                    };
                    buffers.extend(["x", "y"]);
                    let mut arguments: Vec<Argument> =
                        weights.planes.iter().map(|plane| Argument::Bytes(plane.clone())).collect();
                    arguments.extend([
                        Argument::F32(x.clone()),
                        Argument::Output(NAN.repeat(rows * heads * gives)),
                    ]);
                    let kernel = kernel("per_head_linear", buffers, run);
                    *SHAPE.write().unwrap() = Some(shape);
                    each_level(|level, threads| {
                        let y = run_kernel(kernel, &arguments, &[rows as u32], level, threads);
                        let what = format!("{level:?} {format:?} {rows} rows of {shape:?}");
                        compare(&what, &to_f32(&y[0]), &wanted);
                        // A row of a batch has the same bits as when it is alone.
                        let mut first_row = arguments.clone();
                        let (x_at, y_at) = (first_row.len() - 2, first_row.len() - 1);
                        first_row[x_at] = Argument::F32(x[..pitch].to_vec());
                        first_row[y_at] = Argument::Output(NAN.repeat(heads * gives));
                        let one =
                            run_kernel_as(kernel, &first_row, &[1], Schedule::Batch, level, threads, true);
                        assert!(rows == 1 || one[0] == y[0][..heads * gives * 4], "{what}: one by itself");
                    });
                }
            }
        }
    }
}

const CONTEXT: usize = 150;
const SLOTS: usize = 2;
const EPSILON: f32 = 1e-6;
const SCALE: f32 = 0.4;

/// Heads, kv_lora_rank and RoPE width: multiples of the vector width, and others.
const SHAPES: [[usize; 3]; 3] = [[4, 32, 16], [19, 21, 6], [1, 130, 2]];

/// Two slots, neither at the beginning of its sequence nor at the end of a block.
const ROWS: [(u32, u32); 2] = [(1, 5), (0, 131)];

fn rope_parameters(pairs: usize) -> RopeParameters {
    let frequencies: Vec<f32> = (0..pairs).map(|k| 10_000_f32.powf(-(k as f32) / pairs as f32)).collect();
    RopeParameters {
        frequencies: frequencies.into(),
        pairing: Pairing::Interleaved,
        magnitude: 1.25,
        long: None,
    }
}

/// An input row: latent, RoPE key, and RoPE queries in one buffer.
fn prepare([heads, width, rope_width]: [usize; 3]) -> MlaPrepare {
    let pitch = width + rope_width + heads * rope_width;
    let columns = MlaColumns {
        queries_pitch: pitch,
        q_rope_first: width + rope_width,
        latent_pitch: pitch,
        latent_first: 0,
        key_pitch: pitch,
        key_first: width,
    };
    MlaPrepare { heads, columns, epsilon: EPSILON, rope: rope_parameters(rope_width / 2) }
}

fn to_f64(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().copied().map(f64::from).collect()
}

fn rotated(head: &[f64], position: u32) -> Vec<f64> {
    let pairs = head.chunks_exact(2).zip(rope_parameters(head.len() / 2).frequencies.into_owned());
    pairs
        .flat_map(|(pair, frequency)| {
            let (sine, cosine) = f64::from(position as f32 * frequency).sin_cos();
            [1.25 * (pair[0] * cosine - pair[1] * sine), 1.25 * (pair[1] * cosine + pair[0] * sine)]
        })
        .collect()
}

/// The tolerance of values of about 1.
fn near(numbers: &[f64]) -> Vec<(f64, f64)> {
    numbers.iter().map(|x| (*x, 4.0_f64.max(x.abs()))).collect()
}

/// The expected results for a row: its cache entry, and its RoPE queries.
fn prepared(
    row: &[f32],
    gain: &[f32],
    position: u32,
    [heads, width, rope_width]: [usize; 3],
) -> [Vec<f64>; 2] {
    let latent = to_f64(&row[..width]);
    let mean = latent.iter().map(|x| x * x).sum::<f64>() / width as f64;
    let factor = 1.0 / (mean + f64::from(EPSILON)).sqrt();
    let normed = latent.iter().zip(gain).map(|(x, gain)| x * factor * f64::from(*gain));
    let heads = to_f64(&row[width..][..(1 + heads) * rope_width]);
    let mut heads = heads.chunks_exact(rope_width).map(|head| rotated(head, position));
    let key = heads.next().unwrap_or_default();
    [normed.chain(key).collect(), heads.flatten().collect()]
}

fn words(of: impl Fn(&(u32, u32)) -> u32) -> Argument {
    Argument::U32(ROWS.iter().map(of).collect())
}

fn place((slot, position): (u32, u32), record: usize) -> usize {
    (slot as usize * CONTEXT + position as usize) * record
}

/// Rows are appended to the latent cache, and other entries do not change.
#[test]
fn mla_append_writes_plain_or_prepared_lines() {
    kernel_under_test!(SHAPE, MlaAppend, cpu::mla_append);
    let mut random = Random(22);
    for sizes @ [heads, width, rope_width] in SHAPES {
        let record = width + rope_width;
        let before = random.floats(SLOTS * CONTEXT * record);
        let scalars = [ROWS.len() as u32, CONTEXT as u32];
        let check = |found: &[u8], lines: &[Vec<f64>]| {
            let mut wanted = to_f64(&before);
            for (row, line) in ROWS.iter().zip(lines) {
                wanted[place(*row, record)..][..record].copy_from_slice(line);
            }
            compare(&format!("{sizes:?}"), &to_f32(found), &near(&wanted));
        };
        let append = |prepare| MlaAppend { width, rope_width, cache: Format::F32, prepare };
        let (latent, key) = (random.floats(2 * width), random.floats(2 * rope_width));
        let lines: Vec<Vec<f64>> = latent
            .chunks_exact(width)
            .zip(key.chunks_exact(rope_width))
            .map(|(latent, key)| [to_f64(latent), to_f64(key)].concat())
            .collect();
        let arguments = [
            Argument::F32(latent),
            Argument::F32(key),
            words(|row| row.0),
            words(|row| row.1),
            Argument::Output(bytes_of(&before)),
        ];
        let plain = kernel("append", vec!["latent", "key", "slots", "positions", "latents"], run);
        *SHAPE.write().unwrap() = Some(append(None));
        each_level(|level, threads| {
            check(&run_kernel(plain, &arguments, &scalars, level, threads)[0], &lines);
        });

        let prepare = prepare(sizes);
        let pitch = prepare.columns.latent_pitch;
        let (rows, gain) = (random.floats(2 * pitch), random.floats(width));
        let made: Vec<[Vec<f64>; 2]> =
            (0..2).map(|row| prepared(&rows[row * pitch..][..pitch], &gain, ROWS[row].1, sizes)).collect();
        let arguments = [
            Argument::F32(rows.clone()),
            Argument::F32(rows.clone()),
            Argument::F32(rows),
            Argument::F32(gain),
            words(|row| row.0),
            words(|row| row.1),
            Argument::Output(NAN.repeat(2 * heads * rope_width)),
            Argument::Output(bytes_of(&before)),
        ];
        let buffers = vec!["queries", "latent", "key", "gain", "slots", "positions", "q_rope", "latents"];
        let kernel = kernel("append", buffers, run);
        *SHAPE.write().unwrap() = Some(append(Some(prepare)));
        let [lines, queries] =
            [0, 1].map(|which| made.iter().map(|of| of[which].clone()).collect::<Vec<_>>());
        each_level(|level, threads| {
            let left = run_kernel(kernel, &arguments, &scalars, level, threads);
            compare(&format!("{sizes:?}"), &to_f32(&left[0]), &near(&queries.concat()));
            check(&left[1], &lines);
        });
    }
}

#[test]
fn mla_heads_share_latents() {
    kernel_under_test!(SHAPE, MlaAttention, cpu::mla_attention);
    let mut random = Random(23);
    for sizes @ [heads, width, rope_width] in SHAPES {
        let record = width + rope_width;
        let prepare = prepare(sizes);
        let pitch = prepare.columns.latent_pitch;
        let (rows, gain) = (random.floats(2 * pitch), random.floats(width));
        let q = random.floats(2 * heads * width);
        let made: Vec<[Vec<f64>; 2]> =
            (0..2).map(|row| prepared(&rows[row * pitch..][..pitch], &gain, ROWS[row].1, sizes)).collect();
        let mut lines = random.floats(SLOTS * CONTEXT * record);
        let before = lines.clone();
        for (row, made) in ROWS.iter().zip(&made) {
            let line: Vec<f32> = made[0].iter().map(|x| *x as f32).collect();
            lines[place(*row, record)..][..record].copy_from_slice(&line);
        }
        let mut wanted = Vec::new();
        for (row, (slot, position)) in ROWS.iter().enumerate() {
            for head in 0..heads {
                let plain = to_f64(&q[(row * heads + head) * width..][..width]);
                let query = [plain, made[row][1][head * rope_width..][..rope_width].to_vec()].concat();
                let line = |position: u32| to_f64(&lines[place((*slot, position), record)..][..record]);
                let score = |position: u32| {
                    let products = query.iter().zip(line(position)).map(|(q, c)| q * c);
                    f64::from(SCALE) * products.sum::<f64>()
                };
                let scores: Vec<f64> = (0..=*position).map(score).collect();
                let largest = scores.iter().copied().fold(f64::MIN, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
                let total: f64 = weights.iter().sum();
                let mut sums = vec![(0.0, 0.0); width];
                for (position, weight) in (0..=*position).zip(&weights) {
                    for (sum, c) in sums.iter_mut().zip(line(position)) {
                        // Scores are about 4, and so is the error of a weight.
                        *sum = (sum.0 + weight / total * c, sum.1 + 8.0 * weight / total * c.abs());
                    }
                }
                wanted.extend(sums);
            }
        }
        let attend =
            |prologue| MlaAttention { heads, width, rope_width, cache: Format::F32, scale: SCALE, prologue };
        let scalars = [2, CONTEXT as u32, 1];
        let output = || Argument::Output(NAN.repeat(2 * heads * width));
        let q_rope: Vec<f32> = made.iter().flat_map(|made| &made[1]).map(|x| *x as f32).collect();
        let arguments = [
            Argument::F32(q.clone()),
            Argument::F32(q_rope),
            Argument::F32(lines.clone()),
            words(|row| row.0),
            words(|row| row.1),
            output(),
        ];
        let plain = kernel("attend", vec!["q", "q_rope", "latents", "slots", "positions", "heads"], run);
        *SHAPE.write().unwrap() = Some(attend(None));
        each_level(|level, threads| {
            let left = run_kernel(plain, &arguments, &scalars, level, threads);
            compare(&format!("{level:?} {sizes:?}"), &to_f32(&left[0]), &wanted);
        });

        let arguments = [
            Argument::F32(q),
            Argument::F32(rows.clone()),
            Argument::F32(rows.clone()),
            Argument::F32(rows),
            Argument::F32(gain),
            Argument::Output(bytes_of(&before)),
            words(|row| row.0),
            words(|row| row.1),
            output(),
        ];
        let buffers = vec!["q", "queries", "latent", "key", "gain", "latents", "slots", "positions", "heads"];
        let kernel = kernel("attend", buffers, run);
        *SHAPE.write().unwrap() = Some(attend(Some(prepare)));
        each_level(|level, threads| {
            let left = run_kernel(kernel, &arguments, &scalars, level, threads);
            compare(&format!("{level:?} {sizes:?}"), &to_f32(&left[0]), &near(&to_f64(&lines)));
            compare(&format!("{level:?} {sizes:?}"), &to_f32(&left[1]), &wanted);
        });
    }
}

#[test]
fn load_latents_reads_a_kv_tile() {
    kernel_under_test!(SHAPE, MlaLoadLatents, cpu::load_latents);
    let mut random = Random(24);
    for [_, width, rope_width] in SHAPES {
        let record = width + rope_width;
        let lines = random.floats(SLOTS * CONTEXT * record);
        let (begin, rows) = (7, 70);
        let own = to_f64(&lines[place((1, begin), record)..][..rows * record]);
        let part = |range: std::ops::Range<usize>| -> Vec<(f64, f64)> {
            let line = |line: &[f64]| line[range.clone()].to_vec();
            own.chunks_exact(record).flat_map(line).map(|x| (x, 0.0)).collect()
        };
        let kernel = kernel("load_latents", vec!["latents", "slots", "latent_tile", "k_rope"], run);
        let arguments = [
            Argument::F32(lines),
            Argument::U32(vec![1]),
            Argument::Output(NAN.repeat(rows * width)),
            Argument::Output(NAN.repeat(rows * rope_width)),
        ];
        *SHAPE.write().unwrap() = Some(MlaLoadLatents { width, rope_width, cache: Format::F32 });
        each_level(|level, threads| {
            let scalars = [rows as u32, CONTEXT as u32, begin];
            let left = run_kernel(kernel, &arguments, &scalars, level, threads);
            compare(&format!("{level:?} {width}"), &to_f32(&left[0]), &part(0..width));
            compare(&format!("{level:?} {rope_width}"), &to_f32(&left[1]), &part(width..record));
        });
    }
}

/// Attention tile by tile equals attention over all positions.
#[test]
fn attention_over_kv_splits_is_exact() {
    kernel_under_test!(SHAPE, MlaAttentionExpanded, cpu::attend_expanded);
    let mut random = Random(25);
    for [heads, keys, rope_width, values] in [[4, 32, 16, 32], [3, 9, 10, 5], [1, 40, 2, 100]] {
        let (rows, first) = (5, 140);
        let (length, queries_pitch) = (first + rows, heads * keys + 3);
        let q = random.floats(rows * queries_pitch);
        let q_rope = random.floats(rows * heads * rope_width);
        let [k, t, v] = [heads * keys, rope_width, heads * values].map(|width| random.floats(length * width));
        let mut wanted = Vec::new();
        for (row, head) in (0..rows).flat_map(|row| (0..heads).map(move |head| (row, head))) {
            let plain = &q[row * queries_pitch + head * keys..][..keys];
            let query = to_f64(&[plain, &q_rope[(row * heads + head) * rope_width..][..rope_width]].concat());
            let score = |position: usize| {
                let key = &k[(position * heads + head) * keys..][..keys];
                let key = to_f64(&[key, &t[position * rope_width..][..rope_width]].concat());
                f64::from(SCALE) * query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>()
            };
            let scores: Vec<f64> = (0..=first + row).map(score).collect();
            let largest = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut sums = vec![(0.0, 0.0); values];
            for (position, weight) in weights.iter().enumerate() {
                for (sum, v) in
                    sums.iter_mut().zip(to_f64(&v[(position * heads + head) * values..][..values]))
                {
                    // Scores are about 4, and so is the error of a weight.
                    *sum = (sum.0 + weight / total * v, sum.1 + 8.0 * weight / total * v.abs());
                }
            }
            wanted.extend(sums);
        }
        let buffers = vec!["q", "q_rope", "keys", "k_rope", "values", "positions", "heads", "carried"];
        let kernel = kernel("attend", buffers, run);
        let shape = MlaAttentionExpanded { heads, keys, rope_width, values, queries_pitch, scale: SCALE };
        *SHAPE.write().unwrap() = Some(shape);
        each_level(|level, threads| {
            let mut left = [NAN.repeat(rows * heads * values), NAN.repeat(rows * heads * 2)];
            for begin in (0..length).step_by(57) {
                let end = length.min(begin + 57);
                let part =
                    |x: &[f32]| Argument::F32(x[x.len() / length * begin..x.len() / length * end].to_vec());
                let [out, carried] = left.clone().map(Argument::Output);
                let arguments = [
                    Argument::F32(q.clone()),
                    Argument::F32(q_rope.clone()),
                    part(&k),
                    part(&t),
                    part(&v),
                    Argument::U32((first as u32..length as u32).collect()),
                    out,
                    carried,
                ];
                let scalars = [rows, begin, end].map(|scalar| scalar as u32);
                left = run_kernel(kernel, &arguments, &scalars, level, threads)
                    .try_into()
                    .expect("it writes two");
            }
            compare(&format!("{level:?} {shape:?}"), &to_f32(&left[0]), &wanted);
        });
    }
}
