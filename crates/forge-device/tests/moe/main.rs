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
use layer::Layer;
use routes::{PLAIN, routed};
use support::{
    Argument, NAN, Random, affine, bytes_of, compare, each_level, kernel, run_kernel, run_kernel_as, to_f32,
    words_of,
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
            let (mut buffers, mut arguments) = layer.planes(&layer.gate_up, false);
            buffers.extend(["routes", "x"]);
            arguments.extend([Argument::U32(layer.routes.clone()), Argument::F32(layer.x.clone())]);
            if biased {
                layer = layer.biased(&mut random);
                buffers.push("bias");
                arguments.extend(layer.biases.iter().map(|biases| Argument::F32(biases[0].clone())));
            }
            buffers.push("y");
            arguments.push(Argument::Output(NAN.repeat(rows * layer.chosen * layer.inner)));
            *INNER.write().unwrap() = Some(layer.inner_shape());
            let kernel = kernel("experts_inner", buffers, run_inner);
            let wanted = layer.inner(1.0);
            each_level(|level, threads| {
                let y = run_kernel(kernel, &arguments, &[rows as u32], level, threads);
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
            let plain = layer.sum(&given);
            for ending in [Epilogue::Store, Epilogue::Add] {
                let (mut buffers, mut arguments) = layer.planes(&layer.down, false);
                buffers.extend(["routes", "x"]);
                arguments.extend([Argument::U32(layer.routes.clone()), Argument::F32(given.clone())]);
                if let Some(biases) = &layer.biases {
                    buffers.push("bias");
                    arguments.push(Argument::F32(biases[1].clone()));
                }
                buffers.push("y");
                arguments.push(Argument::Output(bytes_of(&before)));
                *SUM.write().unwrap() = Some(layer.sum_shape(ending));
                let kernel = kernel("experts_sum", buffers, run_sum);
                let added = plain
                    .iter()
                    .zip(&before)
                    .map(|((sum, size), before)| (sum + f64::from(*before), size + f64::from(before.abs())));
                let wanted = if ending == Epilogue::Add { added.collect() } else { plain.clone() };
                each_level(|level, threads| {
                    let y = run_kernel(kernel, &arguments, &[rows as u32], level, threads);
                    compare(&format!("{level:?} {rows} {format:?} {sizes:?}"), &to_f32(&y[0]), &wanted);
                });
            }
        }
    }
}

/// In a batch of any size, and alone.
#[test]
fn results_are_batch_invariant() {
    kernel_under_test!(INNER, ExpertsInner, inner);
    let run_inner = run as fn(&cpu::KernelArgs<'_>);
    let mut random = Random(9);
    let (rows, sizes) = (7, [5, 2, 1056, 30]);
    for format in FORMATS {
        let layer = Layer::new(&mut random, format, rows, sizes);
        let (mut buffers, of_matrix) = layer.planes(&layer.gate_up, false);
        buffers.extend(["routes", "x", "y"]);
        *INNER.write().unwrap() = Some(layer.inner_shape());
        let kernel = kernel("experts_inner", buffers, run_inner);
        let results = layer.chosen * layer.inner;
        each_level(|level, threads| {
            let of = |rows: std::ops::Range<usize>| {
                let mut arguments = of_matrix.clone();
                let part = |width: usize| rows.start * width..rows.end * width;
                arguments.push(Argument::U32(layer.routes[part(2 * layer.chosen)].to_vec()));
                arguments.push(Argument::F32(layer.x[part(layer.width)].to_vec()));
                arguments.push(Argument::Output(NAN.repeat(rows.len() * results)));
                let scalars = [rows.len() as u32];
                run_kernel_as(kernel, &arguments, &scalars, Schedule::Batch, level, threads, true).remove(0)
            };
            let all = of(0..rows);
            for some in [0..1, 6..7, 2..4] {
                let same = of(some.clone()) == all[some.start * results * 4..some.end * results * 4];
                assert!(same, "{level:?} {format:?}: rows {some:?} of {rows}");
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
            let bits = wanted_routes.iter().map(|(_, weight)| (*weight as f32).to_bits());
            layer.routes = wanted_routes.iter().map(|(expert, _)| *expert as u32).chain(bits).collect();
            let parts: Vec<f32> = random.floats(37).iter().map(|number| number.abs()).collect();
            let mean = parts.iter().map(|part| f64::from(*part)).sum::<f64>() / width as f64;
            let norm = Some(DeferredNorm { partials: 37, epsilon: 1e-5 });
            let (mut buffers, mut arguments) = layer.planes(&layer.gate_up, false);
            buffers.extend(["logits", "routes", "x", "squares", "y"]);
            arguments.extend([
                Argument::F32(logits),
                Argument::Output(NAN.repeat(2 * chosen)),
                Argument::F32(layer.x.clone()),
                Argument::F32(parts),
                Argument::Output(NAN.repeat(chosen * layer.inner)),
            ]);
            let shape = ExpertsInner { norm, route: Some(route), ..layer.inner_shape() };
            *INNER.write().unwrap() = Some(shape);
            let kernel = kernel("experts_inner", buffers, run_inner);
            let wanted = layer.inner(1.0 / (mean + 1e-5).sqrt());
            each_level(|level, threads| {
                let outputs = run_kernel(kernel, &arguments, &[1], level, threads);
                let found = words_of(&outputs[0]);
                assert_eq!(found[..chosen], layer.routes[..chosen]);
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
        let (mut buffers, mut arguments) = layer.planes(&layer.down, false);
        buffers.extend(["routes", "x", "y"]);
        arguments.extend([Argument::U32(layer.routes.clone()), Argument::F32(given.clone())]);
        arguments.push(Argument::Output(bytes_of(&before)));
        if gain {
            buffers.extend(["gain", "gained"]);
            arguments.push(Argument::F32(gains.clone()));
            arguments.push(Argument::Output(NAN.repeat(layer.width)));
        }
        buffers.push("squares_out");
        arguments.push(Argument::Output(NAN.repeat(partials)));
        let ending = Epilogue::AddSquares(Squares { partials, gain });
        *SUM.write().unwrap() = Some(layer.sum_shape(ending));
        let kernel = kernel("experts_sum", buffers, run_sum);
        let wanted: Vec<(f64, f64)> = layer
            .sum(&given)
            .iter()
            .zip(&before)
            .map(|((sum, size), before)| (sum + f64::from(*before), size + f64::from(before.abs())))
            .collect();
        each_level(|level, threads| {
            let outputs = run_kernel(kernel, &arguments, &[1], level, threads);
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

/// Batch invariance: the result of a row does not depend on the batch.
#[test]
fn a_row_is_bitwise_identical_in_any_batch() {
    kernel_under_test!(INNER, ExpertsInner, inner);
    let run_inner = run as fn(&cpu::KernelArgs<'_>);
    let mut random = Random(5);
    for format in FORMATS {
        let layer = Layer::new(&mut random, format, 30, [5, 2, 70, 40]);
        let (mut names, weights) = layer.planes(&layer.gate_up, false);
        names.extend(["routes", "x", "y"]);
        let kernel = kernel("experts_inner", names, run_inner);
        *INNER.write().unwrap() = Some(layer.inner_shape());
        let of = |rows: std::ops::Range<usize>, level, threads| {
            let mut arguments = weights.clone();
            arguments.push(Argument::U32(layer.routes[rows.start * 4..rows.end * 4].to_vec()));
            arguments.push(Argument::F32(layer.x[rows.start * 70..rows.end * 70].to_vec()));
            arguments.push(Argument::Output(vec![0; rows.len() * 2 * 40 * 4]));
            run_kernel(kernel, &arguments, &[rows.len() as u32], level, threads).remove(0)
        };
        each_level(|level, threads| {
            let all = of(0..30, level, threads);
            for rows in [0..2, 1..4, 3..10, 7..29] {
                let same = of(rows.clone(), level, threads) == all[rows.start * 320..rows.end * 320];
                assert!(same, "{level:?} {format:?} rows {rows:?} of 30");
            }
        });
    }
}
