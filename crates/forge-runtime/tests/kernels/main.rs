//! CPU kernels of projections, embedding, argmax and sampling against plain f64, for every ISA level of this machine.
//!
//! Shapes are those of real models and edge cases: odd widths, one row, more rows than a block, groups that fill no tile. NaN
//! around each buffer reveals out-of-bounds reads.

#[macro_use]
#[path = "../support/mod.rs"]
mod support;

use forge_runtime::cpu::{self};
use forge_runtime::device::Schedule;
use forge_runtime::ops::{self, Activation, Epilogue, Format, Gating, Scales, Squares, UnaryOp};
use forge_runtime::sampling::sampler::{Sampler, SamplingParams};
use support::{
    Argument, IN_STRIPS, Matrix, NAN, Random, affine, bytes_of, compare, each_level, kernel,
    kernel_in_strips, laid_out, matrix, numbers_of, run_kernel, run_kernel_as, silu, words_of,
};

const FORMATS: [Format; 15] = [
    Format::F32,
    Format::F16,
    Format::Bf16,
    Format::Q8_0,
    Format::Q4_0,
    Format::Q6K,
    Format::Q5K,
    Format::Q4K,
    affine(8, 32, Scales::F16),
    affine(6, 64, Scales::F16),
    affine(5, 32, Scales::F16),
    affine(4, 64, Scales::Bf16),
    affine(3, 128, Scales::F16),
    affine(2, 64, Scales::Bf16),
    Format::Mxfp4,
];

/// Calls a function of [`cpu::Stored`] for the type of a format.
macro_rules! stored {
    ($format:expr, $function:ident, $call:expr, $shape:expr) => {
        match $format {
            Format::F32 => cpu::$function::<cpu::F32>($call, $shape),
            Format::F16 => cpu::$function::<cpu::F16>($call, $shape),
            Format::Bf16 => cpu::$function::<cpu::Bf16>($call, $shape),
            Format::Q8_0 => cpu::$function::<cpu::Q8_0>($call, $shape),
            Format::Q4_0 => cpu::$function::<cpu::Q4_0>($call, $shape),
            Format::Q6K => cpu::$function::<cpu::Q6K>($call, $shape),
            Format::Q5K => cpu::$function::<cpu::Q5K>($call, $shape),
            Format::Q4K => cpu::$function::<cpu::Q4K>($call, $shape),
            Format::Mxfp4 => cpu::$function::<cpu::Mxfp4>($call, $shape),
            Format::Affine(of) => match (of.bits.count(), of.group.columns(), of.scales == Scales::Bf16) {
                (8, 32, false) => cpu::$function::<cpu::Affine<8, 32>>($call, $shape),
                (6, 64, false) => cpu::$function::<cpu::Affine<6, 64>>($call, $shape),
                (5, 32, false) => cpu::$function::<cpu::Affine<5, 32>>($call, $shape),
                (4, 32, false) => cpu::$function::<cpu::Affine<4, 32>>($call, $shape),
                (4, 64, true) => cpu::$function::<cpu::AffineBf16<4, 64>>($call, $shape),
                (4, 128, false) => cpu::$function::<cpu::Affine<4, 128>>($call, $shape),
                (3, 128, false) => cpu::$function::<cpu::Affine<3, 128>>($call, $shape),
                (2, 64, true) => cpu::$function::<cpu::AffineBf16<2, 64>>($call, $shape),
                other => panic!("{other:?} is not a format"),
            },
        }
    };
}

mod coded;

fn project(call: &cpu::KernelArgs<'_>, shape: &ops::Linear) {
    stored!(shape.format, project, call, shape);
}

fn embed(call: &cpu::KernelArgs<'_>, shape: &ops::Embed) {
    stored!(shape.format, embed, call, shape);
}

/// The cancellation error of a product: a weight with an offset is the difference of scaled value and offset.
fn cancelled(format: Format, x: f32) -> f64 {
    if matches!(format, Format::Affine(_) | Format::Q5K | Format::Q4K) {
        2.0 * f64::from(x).abs()
    } else {
        0.0
    }
}

fn planes(format: Format, weight: &'static str) -> Vec<&'static str> {
    let quantised = !matches!(format, Format::F32 | Format::F16 | Format::Bf16);
    match (quantised, weight) {
        (true, "table") => vec!["table_codes", "table_scales"],
        (true, _) => vec!["weight_codes", "weight_scales"],
        (_, "table") => vec!["table_values"],
        _ => vec!["weight_values"],
    }
}

/// A projection with this epilogue and no other fusion.
fn plain(format: Format, outputs: usize, inputs: usize, epilogue: Epilogue) -> ops::Linear {
    let (norm, own_norm, each) = (None, None, None);
    ops::Linear { format, outputs, inputs, norm, own_norm, bias: false, each, epilogue, chooses: false }
}

fn plane_arguments(matrix: &Matrix) -> Vec<Argument> {
    matrix.planes.iter().map(|plane| Argument::Bytes(plane.clone())).collect()
}

#[test]
fn project_is_a_matrix_product() {
    kernel_under_test!(SHAPE, ops::Linear, project);
    let mut random = Random(1);
    let shapes = [
        (1, 6, 1),
        (2, 8, 3),
        (1, 64, 64),
        (3, 50, 56),
        (4, 22, 70),
        (5, 26, 40),
        (16, 72, 100),
        (131, 30, 96),
    ];
    let deep = [(1, 10, 14336), (4, 14, 2080), (7, 26, 4128)];
    for (rows, outputs, inputs) in shapes.into_iter().chain(deep) {
        for format in FORMATS {
            let weight = matrix(&mut random, format, outputs, inputs, 1.0);
            let x = random.numbers(rows * inputs);
            let bias = random.numbers(outputs);
            for (epilogue, with_bias) in [
                (Epilogue::Store, false),
                (Epilogue::Store, true),
                (Epilogue::Add, rows % 2 == 0),
                (Epilogue::Gate(Gating::Plain(Activation::Silu)), rows % 2 == 1),
            ] {
                let each = match outputs {
                    50 => Some(UnaryOp::Softcap(0.75)),
                    22 => Some(UnaryOp::Scale(-0.22)),
                    26 => Some(UnaryOp::Activate(Activation::Silu)),
                    _ => None,
                };
                let shape = ops::Linear {
                    format,
                    outputs,
                    inputs,
                    norm: None,
                    own_norm: None,
                    bias: with_bias,
                    each,
                    epilogue,
                    chooses: false,
                };
                let gated = matches!(epilogue, Epilogue::Gate(_));
                let width = if gated { outputs / 2 } else { outputs };
                let before = random.numbers(rows * width);
                let product = |row: usize, output: usize| {
                    let mut sum = if with_bias { f64::from(bias[output]) } else { 0.0 };
                    let mut size = sum.abs();
                    for column in 0..inputs {
                        let term = f64::from(weight.values[output * inputs + column])
                            * f64::from(x[row * inputs + column]);
                        sum += term;
                        size += term.abs() + cancelled(format, x[row * inputs + column]);
                    }
                    match each.map(|each| (each, sum)) {
                        Some((UnaryOp::Softcap(cap), sum)) => {
                            (f64::from(cap) * (sum / f64::from(cap)).tanh(), size + f64::from(cap))
                        }
                        Some((UnaryOp::Scale(factor), sum)) => {
                            (f64::from(factor) * sum, f64::from(factor).abs() * size)
                        }
                        // The slope of an activation is at most 1.2.
                        Some((UnaryOp::Activate(_), sum)) => (silu(sum), 1.2 * size),
                        None => (sum, size),
                    }
                };
                let mut wanted = Vec::new();
                for row in 0..rows {
                    for o in 0..width {
                        wanted.push(if gated {
                            let ((gate, a), (up, b)) = (product(row, 2 * o), product(row, 2 * o + 1));
                            // The effect of an error of the gate: the slope of SiLU is at most 1.1.
                            (silu(gate) * up, 1.1 * a * up.abs() + silu(gate).abs() * b)
                        } else {
                            let (v, size) = product(row, o);
                            let old = f64::from(before[row * width + o]);
                            if epilogue == Epilogue::Add { (v + old, size + old.abs()) } else { (v, size) }
                        });
                    }
                }
                let mut buffers = planes(format, "weight");
                let mut arguments = plane_arguments(&weight);
                if with_bias {
                    buffers.push("bias");
                    arguments.push(Argument::Numbers(bias.clone()));
                }
                buffers.extend(["x", "y"]);
                arguments.push(Argument::Numbers(x.clone()));
                arguments.push(Argument::Output(bytes_of(&before)));
                let kernel = kernel("project", buffers, run);
                *SHAPE.write().unwrap() = Some(shape);
                each_level(|level, threads| {
                    let y = run_kernel(kernel, &arguments, &[rows as u32], level, threads);
                    compare(
                        &format!("{level:?} {rows} rows {format:?} {shape:?}"),
                        &numbers_of(&y[0]),
                        &wanted,
                    );
                });
            }
        }
    }
}

/// Batch invariance: the result of a row does not depend on the number of rows.
#[test]
fn a_row_among_others_is_projected_to_the_same_bits_however_many_they_are() {
    kernel_under_test!(SHAPE, ops::Linear, project);
    let mut random = Random(5);
    // Of 200 outputs there are panels enough for one thread, so that more rows share each.
    for (outputs, inputs) in [(26, 70), (50, 4128), (6, 96), (200, 70)] {
        for format in FORMATS {
            let weight = matrix(&mut random, format, outputs, inputs, 1.0);
            let x = random.numbers(300 * inputs);
            let shape = plain(format, outputs, inputs, Epilogue::Store);
            *SHAPE.write().unwrap() = Some(shape);
            let kernel = kernel("project", [planes(format, "weight"), vec!["x", "y"]].concat(), run);
            let products = |rows: std::ops::Range<usize>, level, threads, exact| {
                let mut arguments = plane_arguments(&weight);
                arguments.push(Argument::Numbers(x[rows.start * inputs..rows.end * inputs].to_vec()));
                arguments.push(Argument::Output(vec![0; rows.len() * outputs * 4]));
                let scalars = [rows.len() as u32];
                run_kernel_as(kernel, &arguments, &scalars, Schedule::Batch, level, threads, exact).remove(0)
            };
            each_level(|level, threads| {
                for exact in [true, false] {
                    let all = products(0..300, level, threads, exact);
                    for rows in [
                        0..1,
                        299..300,
                        0..2,
                        1..4,
                        3..7,
                        2..7,
                        9..16,
                        0..8,
                        120..138,
                        127..129,
                        5..139,
                        250..300,
                    ] {
                        let some = products(rows.clone(), level, threads, exact);
                        let same = some == all[rows.start * outputs * 4..rows.end * outputs * 4];
                        assert!(
                            same,
                            "{level:?} {format:?} {outputs}x{inputs} {exact}: rows {rows:?} of 300"
                        );
                    }
                }
            });
        }
    }
}

#[test]
fn embed_widens_rows_exactly() {
    kernel_under_test!(SHAPE, ops::Embed, embed);
    let mut random = Random(2);
    let shapes = [(7, 1), (5, 31), (9, 32), (300, 56), (4, 200), (48, 70)];
    for ((vocabulary, width), format) in
        shapes.iter().flat_map(|shape| FORMATS.map(|format| (*shape, format)))
    {
        let strips = vocabulary % 16 == 0 && IN_STRIPS.contains(&format);
        for in_strips in if strips { vec![false, true] } else { vec![false] } {
            let table = matrix(&mut random, format, vocabulary, width, 1.0);
            let mut ids: Vec<u32> = (0..11).map(|_| random.below(vocabulary) as u32).collect();
            ids.push(vocabulary as u32 - 1);
            ids.push(vocabulary as u32);
            let wanted: Vec<(f64, f64)> = ids
                .iter()
                .map(|&id| if id as usize == vocabulary { 0 } else { id as usize })
                .flat_map(|id| {
                    table.values[id * width..(id + 1) * width].iter().map(|&v| (f64::from(v), 0.0))
                })
                .collect();
            let mut buffers = planes(format, "table");
            buffers.extend(["ids", "stream"]);
            let mut arguments = plane_arguments(&table);
            if in_strips {
                arguments = table.planes.iter().cloned().map(Argument::Weights).collect();
            }
            arguments.push(Argument::Words(ids.clone()));
            arguments.push(Argument::Output(NAN.repeat(ids.len() * width)));
            let kernel = match in_strips {
                false => kernel("embed", buffers, run),
                true => kernel_in_strips("embed", buffers, laid_out(&table), run),
            };
            let before = random.numbers(ids.len() * width);
            for adds in [false, true] {
                let shape = ops::Embed { format, vocabulary, width, scale: 1.0, adds, squares: None };
                *SHAPE.write().unwrap() = Some(shape);
                let mut wanted = wanted.clone();
                if adds {
                    *arguments.last_mut().unwrap() = Argument::Output(bytes_of(&before));
                    for (wanted, before) in wanted.iter_mut().zip(&before) {
                        *wanted = (f64::from(wanted.0 as f32 + before), 0.0);
                    }
                }
                each_level(|level, threads| {
                    let stream = run_kernel_as(
                        kernel,
                        &arguments,
                        &[ids.len() as u32],
                        Schedule::Batch,
                        level,
                        threads,
                        !in_strips,
                    );
                    compare(
                        &format!("{level:?} {format:?} {width} {in_strips}"),
                        &numbers_of(&stream[0]),
                        &wanted,
                    );
                });
            }
        }
    }
}

/// Decode projections: the deferred norm of x, and sums of squares or argmax candidates for the following step.
#[test]
fn a_row_is_normed_late_and_leaves_what_follows_needs() {
    const FIRST: usize = 3;
    kernel_under_test!(SHAPE, ops::Linear, project);
    let mut random = Random(7);
    let squares = |partials, gain| Epilogue::AddSquares(Squares { partials, gain });
    for (outputs, inputs, partials, epilogue) in [
        (1, 1, 1, Epilogue::Store),
        (50, 70, 128, Epilogue::Gate(Gating::Plain(Activation::Silu))),
        (300, 96, 37, squares(3, true)),
        (70, 256, 9, squares(100, false)),
        (90, 33, 300, Epilogue::Best { candidates: 7 }),
        (600, 128, 4, Epilogue::Best { candidates: 2 }),
        (9, 40, 5, Epilogue::Best { candidates: 40 }),
        (30, 64, 8, Epilogue::Multiply { of: 33 }),
        (150, 40, 8, Epilogue::Multiply { of: 160 }),
    ] {
        for format in FORMATS {
            let weight = matrix(&mut random, format, outputs, inputs, 1.0);
            let (x, bias, gain) = (random.numbers(inputs), random.numbers(outputs), random.numbers(outputs));
            let parts: Vec<f32> = random.numbers(partials).iter().map(|number| number.abs()).collect();
            let epsilon = 1e-5;
            let mean = parts.iter().map(|&part| f64::from(part)).sum::<f64>() / inputs as f64;
            let factor = 1.0 / (mean + f64::from(epsilon)).sqrt();
            let width = if matches!(epilogue, Epilogue::Gate(_)) { outputs / 2 } else { outputs };
            let before = random.numbers(width);
            let of = if let Epilogue::Multiply { of } = epilogue { of } else { 0 };
            let factors = random.numbers(of);
            let results: Vec<(f64, f64)> = (0..outputs)
                .map(|output| {
                    let of_row = &weight.values[output * inputs..(output + 1) * inputs];
                    let (mut sum, mut size) = (0.0, 0.0);
                    for (&w, &x) in of_row.iter().zip(&x) {
                        let term = f64::from(w) * f64::from(x);
                        sum += term * factor;
                        size += (term.abs() + cancelled(format, x)) * factor;
                    }
                    (sum + f64::from(bias[output]), size + f64::from(bias[output]).abs())
                })
                .collect();
            let wanted: Vec<(f64, f64)> = match epilogue {
                Epilogue::Gate(_) => results
                    .chunks(2)
                    .map(|pair| {
                        let ((gate, a), (up, b)) = (pair[0], pair[1]);
                        (silu(gate) * up, 1.1 * a * up.abs() + silu(gate).abs() * b)
                    })
                    .collect(),
                Epilogue::AddSquares(_) => {
                    let added = |((sum, size), before): (&(f64, f64), &f32)| {
                        (sum + f64::from(*before), size + f64::from(*before).abs())
                    };
                    results.iter().zip(&before).map(added).collect()
                }
                Epilogue::Multiply { .. } => {
                    let times = |((sum, size), factor): (&(f64, f64), &f32)| {
                        (sum * f64::from(*factor), size * f64::from(*factor).abs())
                    };
                    results.iter().zip(&factors[FIRST..]).map(times).collect()
                }
                _ => results,
            };
            let norm = Some(ops::DeferredNorm { partials, epsilon });
            let shape = ops::Linear { norm, bias: true, ..plain(format, outputs, inputs, epilogue) };
            let mut buffers = planes(format, "weight");
            buffers.extend(["bias", "x", "squares", "y"]);
            let mut arguments = plane_arguments(&weight);
            arguments.extend([Argument::Numbers(bias), Argument::Numbers(x), Argument::Numbers(parts)]);
            arguments.push(Argument::Output(bytes_of(&before)));
            match epilogue {
                Epilogue::AddSquares(squares) => {
                    if squares.gain {
                        buffers.extend(["gain", "gained"]);
                        arguments.push(Argument::Numbers(gain.clone()));
                        arguments.push(Argument::Output(NAN.repeat(outputs)));
                    }
                    buffers.push("squares_out");
                    arguments.push(Argument::Output(NAN.repeat(squares.partials)));
                }
                Epilogue::Multiply { .. } => {
                    buffers.push("factors");
                    arguments.push(Argument::Numbers(factors));
                }
                Epilogue::Best { candidates } => {
                    buffers.push("candidates");
                    arguments.push(Argument::Output(NAN.repeat(2 * candidates)));
                }
                _ => {}
            }
            let kernel = kernel("project", buffers, run);
            *SHAPE.write().unwrap() = Some(shape);
            each_level(|level, threads| {
                let what = format!("{level:?} {format:?} {shape:?}");
                let left = run_kernel(kernel, &arguments, &[1, FIRST as u32], level, threads);
                for other in [1, 2, 5] {
                    let again = run_kernel(kernel, &arguments, &[1, FIRST as u32], level, other);
                    assert_eq!(left, again, "{what}: {threads} and {other} threads");
                }
                let y = numbers_of(&left[0]);
                compare(&what, &y, &wanted);
                match epilogue {
                    Epilogue::AddSquares(squares) => {
                        if squares.gain {
                            let product: Vec<f32> = y.iter().zip(&gain).map(|(y, gain)| y * gain).collect();
                            assert_eq!(numbers_of(&left[1]), product, "{what}");
                        }
                        let parts = numbers_of(&left[left.len() - 1]);
                        let sum = parts.iter().map(|&part| f64::from(part)).sum::<f64>() as f32;
                        let all = y.iter().map(|&y| f64::from(y) * f64::from(y)).sum::<f64>();
                        compare(&what, &[sum], &[(all, all)]);
                    }
                    Epilogue::Best { .. } => {
                        let best = y.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                        let first = y.iter().position(|&y| y == best).unwrap() as u32;
                        let pairs = words_of(&left[1]);
                        let found = pairs.chunks(2).map(|pair| (pair[0], u32::MAX - pair[1])).max().unwrap();
                        assert_eq!(u32::MAX - found.1, first, "{what}");
                        // All candidates are written; those without an output are NaN.
                        assert!(pairs.chunks(2).all(|pair| pair[0] != u32::MAX), "{what}");
                    }
                    _ => {}
                }
            });
        }
    }
}

#[test]
fn embedding_leaves_squares() {
    kernel_under_test!(SHAPE, ops::Embed, embed);
    let mut random = Random(8);
    for (width, partials, gain) in [(1, 1, true), (56, 128, false), (200, 3, true)] {
        for format in FORMATS {
            let table = matrix(&mut random, format, 5, width, 1.0);
            let gains = random.numbers(width);
            let row: Vec<f32> = table.values[3 * width..4 * width].iter().map(|x| x * 0.5).collect();
            let mut buffers = planes(format, "table");
            let mut arguments = plane_arguments(&table);
            buffers.push("ids");
            arguments.push(Argument::Words(vec![3]));
            if gain {
                buffers.push("gain");
                arguments.push(Argument::Numbers(gains.clone()));
            }
            buffers.push("stream");
            arguments.push(Argument::Output(NAN.repeat(width)));
            if gain {
                buffers.push("gained");
                arguments.push(Argument::Output(NAN.repeat(width)));
            }
            buffers.push("squares");
            arguments.push(Argument::Output(NAN.repeat(partials)));
            let kernel = kernel("embed", buffers, run);
            let squares = Some(Squares { partials, gain });
            *SHAPE.write().unwrap() =
                Some(ops::Embed { format, vocabulary: 5, width, scale: 0.5, adds: false, squares });
            each_level(|level, threads| {
                let what = format!("{level:?} {format:?} {width}");
                let left = run_kernel(kernel, &arguments, &[1], level, threads);
                assert_eq!(numbers_of(&left[0]), row, "{what}");
                if gain {
                    let product: Vec<f32> = row.iter().zip(&gains).map(|(x, gain)| x * gain).collect();
                    assert_eq!(numbers_of(&left[1]), product, "{what}");
                }
                let all = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
                let mut wanted = vec![(0.0, 0.0); partials];
                wanted[0] = (all, all);
                compare(&what, &numbers_of(&left[left.len() - 1]), &wanted);
            });
        }
    }
}

#[test]
fn the_best_candidate_is_the_lowest_of_equals() {
    kernel_under_test!(SHAPE, ops::ArgmaxJoin, cpu::argmax_join);
    let mut random = Random(9);
    for candidates in [1, 2, 100] {
        let mut pairs: Vec<(u32, u32)> =
            (0..2 * candidates).map(|_| (random.below(9) as u32, random.below(1000) as u32)).collect();
        // In the second row there is no number.
        pairs[candidates..].iter_mut().for_each(|pair| pair.0 = 0);
        let best = pairs[..candidates].iter().map(|&(key, id)| (key, u32::MAX - id)).max().unwrap();
        let wanted = if best.0 == 0 { 0 } else { u32::MAX - best.1 };
        let words = pairs.iter().flat_map(|&(key, id)| [key, id]).collect();
        let kernel = kernel("argmax_join", vec!["candidates", "ids"], run);
        *SHAPE.write().unwrap() = Some(ops::ArgmaxJoin { candidates });
        let arguments = [Argument::Words(words), Argument::Output(vec![0xff; 8])];
        each_level(|level, threads| {
            let ids = run_kernel(kernel, &arguments, &[2], level, threads);
            assert_eq!(words_of(&ids[0]), [wanted, 0], "{level:?} {candidates}");
        });
    }
}

#[test]
fn ids_are_those_that_the_sampler_draws() {
    kernel_under_test!(SHAPE, ops::Sample, cpu::sample);
    let plain = SamplingParams::default();
    let settings = [
        plain.clone(),
        SamplingParams { temperature: 0.2, top_k: 7, ..plain.clone() },
        SamplingParams { temperature: 1.5, top_p: 0.4, ..plain.clone() },
        SamplingParams { min_p: 0.1, ..plain.clone() },
        SamplingParams { temperature: 3.0, top_k: 40, top_p: 0.9, min_p: 0.3, ..plain },
        SamplingParams::greedy(),
    ];
    let mut random = Random(12);
    for vocabulary in [1, 17, 500, 32_001] {
        let rows = settings.len();
        // Many logits are equal, and some are NaN.
        let logit = |random: &mut Random| match random.below(40) {
            0 => f32::NAN,
            1 => f32::NEG_INFINITY,
            of => (random.number() * 9.0 * of as f32).round() / of as f32,
        };
        let logits: Vec<f32> = (0..rows * vocabulary).map(|_| logit(&mut random)).collect();
        let kernel = kernel("sample", vec!["logits", "draws", "ids"], run);
        *SHAPE.write().unwrap() = Some(ops::Sample { vocabulary });
        for seed in 0..if vocabulary > 1000 { 3 } else { 200 } {
            let mut samplers: Vec<Sampler> =
                settings.iter().map(|sampling| Sampler::new(sampling.clone(), seed, &[])).collect();
            for index in 0..2 {
                let draws =
                    settings.iter().flat_map(|sampling| sampling.device_sampling(seed, index).words());
                let draws = Argument::Words(draws.collect());
                let arguments =
                    [Argument::Numbers(logits.clone()), draws, Argument::Output(vec![0xff; 4 * rows])];
                let wanted: Vec<u32> = samplers
                    .iter_mut()
                    .zip(logits.chunks(vocabulary))
                    .map(|(sampler, logits)| sampler.sample(logits))
                    .collect();
                each_level(|level, threads| {
                    let ids = run_kernel(kernel, &arguments, &[rows as u32], level, threads);
                    assert_eq!(words_of(&ids[0]), wanted, "{level:?} {vocabulary} {seed}");
                });
            }
        }
    }
}

#[test]
fn argmax_takes_the_lowest_of_equals() {
    kernel_under_test!(SHAPE, ops::Argmax, cpu::argmax);
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
        *SHAPE.write().unwrap() = Some(ops::Argmax { vocabulary });
        each_level(|level, threads| {
            let ids = run_kernel(kernel, &arguments, &[3], level, threads);
            assert_eq!(words_of(&ids[0]), [twice as u32, 0, third as u32], "{level:?} {vocabulary}");
        });
    }
}
