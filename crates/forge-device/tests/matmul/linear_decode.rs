//! Decode projections: the deferred norm of x, and what the following step needs.

use crate::support::{
    Argument, NAN, Random, bytes_of, compare, each_level, kernel, matrix, run_kernel, silu, to_f32, words_of,
};
use crate::{FORMATS, cancelled, linear, plain, plane_arguments, planes};
use forge_device::cpu;
use forge_device::ops::{self, Activation, Epilogue, Gating, Squares};

/// Decode projections: the deferred norm of x, and sums of squares or argmax candidates for the following step.
#[test]
fn deferred_norms_and_epilogues_are_exact() {
    const FIRST: usize = 3;
    kernel_under_test!(SHAPE, ops::Linear, linear);
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
            let (x, bias, gain) = (random.floats(inputs), random.floats(outputs), random.floats(outputs));
            let parts: Vec<f32> = random.floats(partials).iter().map(|number| number.abs()).collect();
            let epsilon = 1e-5;
            let mean = parts.iter().map(|&part| f64::from(part)).sum::<f64>() / inputs as f64;
            let factor = 1.0 / (mean + f64::from(epsilon)).sqrt();
            let width = if matches!(epilogue, Epilogue::Gate(_)) { outputs / 2 } else { outputs };
            let before = random.floats(width);
            let of = if let Epilogue::Multiply { of } = epilogue { of } else { 0 };
            let factors = random.floats(of);
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
            arguments.extend([Argument::F32(bias), Argument::F32(x), Argument::F32(parts)]);
            arguments.push(Argument::Output(bytes_of(&before)));
            match epilogue {
                Epilogue::AddSquares(squares) => {
                    if squares.gain {
                        buffers.extend(["gain", "gained"]);
                        arguments.push(Argument::F32(gain.clone()));
                        arguments.push(Argument::Output(NAN.repeat(outputs)));
                    }
                    buffers.push("squares_out");
                    arguments.push(Argument::Output(NAN.repeat(squares.partials)));
                }
                Epilogue::Multiply { .. } => {
                    buffers.push("factors");
                    arguments.push(Argument::F32(factors));
                }
                Epilogue::Best { candidates } => {
                    buffers.push("candidates");
                    arguments.push(Argument::Output(NAN.repeat(2 * candidates)));
                }
                _ => {}
            }
            let kernel = kernel("linear", buffers, run);
            *SHAPE.write().unwrap() = Some(shape);
            each_level(|level, threads| {
                let what = format!("{level:?} {format:?} {shape:?}");
                let left = run_kernel(kernel, &arguments, &[1, FIRST as u32], level, threads);
                for other in [1, 2, 5] {
                    let again = run_kernel(kernel, &arguments, &[1, FIRST as u32], level, other);
                    assert_eq!(left, again, "{what}: {threads} and {other} threads");
                }
                let y = to_f32(&left[0]);
                compare(&what, &y, &wanted);
                match epilogue {
                    Epilogue::AddSquares(squares) => {
                        if squares.gain {
                            let product: Vec<f32> = y.iter().zip(&gain).map(|(y, gain)| y * gain).collect();
                            assert_eq!(to_f32(&left[1]), product, "{what}");
                        }
                        let parts = to_f32(&left[left.len() - 1]);
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
