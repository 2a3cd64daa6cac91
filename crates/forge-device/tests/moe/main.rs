//! CPU kernels of experts against plain f64, for every ISA level of this machine.

#[macro_use]
#[path = "../support/mod.rs"]
mod support;

/// Calls a kernel function for the type of a format.
macro_rules! stored {
    ($format:expr, $function:ident, $call:expr, $shape:expr) => {
        match $format {
            Format::F32 => cpu::$function::<cpu::F32>($call, $shape),
            Format::Q8_0 => cpu::$function::<cpu::Q8_0>($call, $shape),
            Format::Q4_0 => cpu::$function::<cpu::Q4_0>($call, $shape),
            Format::Q6K => cpu::$function::<cpu::Q6K>($call, $shape),
            Format::Mxfp4 => cpu::$function::<cpu::Mxfp4>($call, $shape),
            _ => cpu::$function::<cpu::AffineBf16<4, 64>>($call, $shape),
        }
    };
}

mod encoded;
mod grouped;
mod layer;
mod routes;

use forge_device::cpu::{self};
use forge_device::device::Schedule;
use forge_device::ops::{DeferredNorm, Epilogue, ExpertsInner, ExpertsSum, Format, Route, Scales, Squares};
use forge_oracle::compare::{sum as added, term};
use forge_oracle::matrix::affine;
use forge_oracle::moe::{PLAIN, Routes, routed};
use forge_oracle::norm::inverse_rms;
use layer::Layer;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use support::{
    Argument, Call, Expected, Random, bytes_of, compare, each_level, output, run_kernel_as, to_f32, words_of,
};

const FORMATS: [Format; 6] =
    [Format::F32, Format::Q8_0, Format::Q4_0, Format::Q6K, affine(4, 64, Scales::Bf16), Format::Mxfp4];

fn inner(call: &cpu::KernelArgs<'_>, shape: &ExpertsInner) {
    stored!(shape.format, experts_inner, call, shape);
}

fn sum(call: &cpu::KernelArgs<'_>, shape: &ExpertsSum) {
    stored!(shape.format, experts_sum, call, shape);
}

const SIZES: [(usize, [usize; 4]); 5] = [
    (1, [7, 3, 45, 22]),
    (1, [4, 4, 96, 70]),
    (2, [5, 1, 64, 33]),
    (9, [6, 2, 70, 64]),
    (40, [3, 2, 33, 40]),
];

#[test]
fn grouped_gemm_multiplies_the_rows_of_each_expert() {
    kernel_under_test!(INNER, ExpertsInner, inner);
    let run_inner = run as fn(&cpu::KernelArgs<'_>);
    let mut random = Random(4);
    for (rows, sizes) in SIZES {
        for (format, biased) in FORMATS.into_iter().flat_map(|format| [(format, false), (format, true)]) {
            let mut layer = Layer::new(&mut random, format, rows, sizes);
            if biased {
                layer = layer.biased(&mut random);
            }
            let mut arguments = layer.arguments(0, false);
            arguments.push(("x", Argument::F32(layer.x.clone())));
            arguments.push(("y", output(rows * layer.chosen * layer.inner)));
            let call = Call::new("experts_inner", run_inner, arguments);
            *INNER.write().unwrap() = Some(layer.inner_op());
            let wanted = layer.wanted_inner();
            each_level(|level, threads| {
                let y = call.run(&[rows], level, threads);
                compare(&format!("{level:?} {rows} {format:?} {sizes:?}"), &to_f32(&y[0]), &wanted);
            });
        }
    }
}

#[test]
fn expert_outputs_are_weighted_and_summed() {
    kernel_under_test!(SUM, ExpertsSum, sum);
    let run_sum = run as fn(&cpu::KernelArgs<'_>);
    let mut random = Random(6);
    for (rows, sizes) in SIZES {
        for (format, biased) in FORMATS.into_iter().flat_map(|format| [(format, false), (format, true)]) {
            let mut layer = Layer::new(&mut random, format, rows, sizes);
            if biased {
                layer = layer.biased(&mut random);
            }
            let given = random.floats(rows * layer.chosen * layer.inner);
            let before = random.floats(rows * layer.width);
            for ending in [Epilogue::Store, Epilogue::Add] {
                let mut arguments = layer.arguments(1, false);
                arguments.push(("x", Argument::F32(given.clone())));
                arguments.push(("y", Argument::Output(bytes_of(&before))));
                let call = Call::new("experts_sum", run_sum, arguments);
                *SUM.write().unwrap() = Some(layer.sum_op(ending));
                let mut wanted = layer.wanted_sum(&given);
                if ending == Epilogue::Add {
                    wanted.iter_mut().zip(&before).for_each(|(to, before)| *to = added(*to, term(*before)));
                }
                each_level(|level, threads| {
                    let y = call.run(&[rows], level, threads);
                    compare(&format!("{level:?} {rows} {format:?} {sizes:?}"), &to_f32(&y[0]), &wanted);
                });
            }
        }
    }
}

/// In a batch of any size, and alone.
#[test]
fn results_are_batch_invariant() {
    check_batches(&mut Random(9), 7, [5, 2, 1056, 30], &[0..1, 6..7, 2..4]);
}

/// Batch invariance: the result of a row does not depend on the batch.
#[test]
fn a_row_is_bitwise_identical_in_any_batch() {
    check_batches(&mut Random(5), 30, [5, 2, 70, 40], &[0..2, 1..4, 3..10, 7..29]);
}

/// Compares rows of a layer with the same rows in a smaller batch.
fn check_batches(random: &mut Random, rows: usize, sizes: [usize; 4], parts: &[Range<usize>]) {
    kernel_under_test!(INNER, ExpertsInner, inner);
    // One test at a time uses the kernel's static shape.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _only = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for format in FORMATS {
        let layer = Layer::new(random, format, rows, sizes);
        *INNER.write().unwrap() = Some(layer.inner_op());
        let results = layer.chosen * layer.inner;
        let call_of = |rows: &Range<usize>| {
            let part = Layer {
                x: layer.x[rows.start * layer.width..rows.end * layer.width].to_vec(),
                routes: Routes(layer.routes.0[rows.clone()].to_vec()),
                ..layer.clone()
            };
            let mut arguments = part.arguments(0, false);
            arguments.push(("x", Argument::F32(part.x.clone())));
            arguments.push(("y", output(rows.len() * results)));
            Call::new("experts_inner", run, arguments)
        };
        let (all, calls) = (call_of(&(0..rows)), parts.iter().map(call_of).collect::<Vec<_>>());
        each_level(|level, threads| {
            let run = |call: &Call, rows: usize| {
                let scalars = [rows as u32];
                let batch = Schedule::Batch;
                run_kernel_as(call.kernel, &call.arguments, &scalars, batch, level, threads, true).remove(0)
            };
            let all = run(&all, rows);
            for (part, call) in parts.iter().zip(&calls) {
                let same = run(call, part.len()) == all[part.start * results * 4..part.end * results * 4];
                assert!(same, "{level:?} {format:?}: rows {part:?} of {rows}");
            }
        });
    }
}

/// Decode: fused routing, the deferred norm of x, and the outputs for the following step.
#[test]
fn decode_experts_fuse_routing_norm_and_squares() {
    kernel_under_test!(INNER, ExpertsInner, inner);
    let run_inner = run as fn(&cpu::KernelArgs<'_>);
    let mut random = Random(8);
    // Number of shared experts among these.
    for (sizes, shared, gated) in [
        ([7, 3, 45, 22], 0, false),
        ([40, 9, 64, 33], 0, false),
        ([8, 4, 45, 22], 1, false),
        ([9, 5, 45, 22], 2, true),
    ] {
        for format in FORMATS {
            let [experts, chosen, width, _] = sizes;
            let mut layer = Layer::new(&mut random, format, 1, sizes);
            let route = Route { experts: experts - shared, chosen: chosen - shared, shared, gated, ..PLAIN };
            let logits = random.floats(route.experts + usize::from(gated));
            let wanted_routes = routed(&route, &logits, &[], &[]);
            let routes = wanted_routes.iter().map(|(expert, weight)| (*expert, *weight as f32));
            layer.routes = Routes(vec![routes.collect()]);
            let words = layer.routes.words();
            let parts: Vec<f32> = random.floats(37).iter().map(|number| number.abs()).collect();
            let factor = inverse_rms(parts.iter().map(|part| f64::from(*part)).sum(), width, 1e-5);
            let norm = Some(DeferredNorm { partials: 37, epsilon: 1e-5 });
            let mut arguments = layer.weight(0, false);
            arguments.extend([
                ("logits", Argument::F32(logits)),
                ("routes", output(2 * chosen)),
                ("x", Argument::F32(layer.x.clone())),
                ("squares", Argument::F32(parts)),
                ("y", output(chosen * layer.inner)),
            ]);
            let call = Call::new("experts_inner", run_inner, arguments);
            let shape = ExpertsInner { norm, route: Some(route), ..layer.inner_op() };
            *INNER.write().unwrap() = Some(shape);
            let wanted = layer.inner(&layer.x, &layer.routes, &[factor]);
            each_level(|level, threads| {
                let outputs = call.run(&[1], level, threads);
                let found = words_of(&outputs[0]);
                assert_eq!(found[..chosen], words[..chosen]);
                for (found, (_, wanted)) in found[chosen..].iter().zip(&wanted_routes) {
                    assert!((f64::from(f32::from_bits(*found)) - wanted).abs() < 1e-6);
                }
                compare(&format!("{level:?} {format:?} {sizes:?}"), &to_f32(&outputs[1]), &wanted);
            });
        }
    }
    one_row_writes_squares();
}

fn one_row_writes_squares() {
    kernel_under_test!(SUM, ExpertsSum, sum);
    let run_sum = run as fn(&cpu::KernelArgs<'_>);
    let mut random = Random(9);
    for (partials, gain) in [(3, true), (100, false)] {
        let layer = Layer::new(&mut random, Format::F32, 1, [7, 3, 150, 22]);
        let given = random.floats(layer.chosen * layer.inner);
        let (before, gains) = (random.floats(layer.width), random.floats(layer.width));
        let mut arguments = layer.arguments(1, false);
        arguments.push(("x", Argument::F32(given.clone())));
        arguments.push(("y", Argument::Output(bytes_of(&before))));
        if gain {
            arguments.extend([("gain", Argument::F32(gains.clone())), ("gained", output(layer.width))]);
        }
        arguments.push(("squares_out", output(partials)));
        let call = Call::new("experts_sum", run_sum, arguments);
        let ending = Epilogue::AddSquares(Squares { partials, gain });
        *SUM.write().unwrap() = Some(layer.sum_op(ending));
        let wanted = layer.wanted_sum(&given).into_iter().zip(&before);
        let wanted: Vec<Expected> = wanted.map(|(sum, before)| added(sum, term(*before))).collect();
        each_level(|level, threads| {
            let outputs = call.run(&[1], level, threads);
            let y = to_f32(&outputs[0]);
            compare("y", &y, &wanted);
            if gain {
                for ((gained, y), gain) in to_f32(&outputs[1]).iter().zip(&y).zip(&gains) {
                    assert_eq!(*gained, gain * y);
                }
            }
            let all: f64 = y.iter().map(|y| f64::from(*y).powi(2)).sum();
            let left: f64 = to_f32(outputs.last().unwrap()).iter().map(|x| f64::from(*x)).sum();
            assert!((left - all).abs() <= 1e-5 * all, "{left} {all}");
        });
    }
}
