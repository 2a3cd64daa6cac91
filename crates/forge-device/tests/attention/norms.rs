//! Norms and elementwise functions.

use crate::support::{Argument, NAN, Random, compare, each_level, kernel, run_kernel, silu, to_f32};
use crate::{normed, to_f64};
use forge_device::cpu::{self};
use forge_device::ops::{self, Activation, Function, UnaryOp};

#[test]
fn rms_norm_divides_by_the_root_of_the_mean_square() {
    kernel_under_test!(SHAPE, ops::RmsNorm, cpu::rms_norm);
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
        let x = random.floats(rows * parts * width);
        let gains = random.floats(width);
        let wanted_rows: Vec<usize> = if gather { vec![rows - 1, 0] } else { (0..rows).collect() };
        let wanted: Vec<(f64, f64)> = wanted_rows
            .iter()
            .flat_map(|row| x[row * parts * width..(row + 1) * parts * width].chunks_exact(width))
            .flat_map(|part| normed(&to_f64(part), gain.then_some(&gains), epsilon))
            .map(|y| (y, y.abs()))
            .collect();
        let mut buffers = vec!["x"];
        let mut arguments = vec![Argument::F32(x)];
        if gain {
            buffers.push("gain");
            arguments.push(Argument::F32(gains));
        }
        if gather {
            buffers.push("wanted");
            arguments.push(Argument::U32(wanted_rows.iter().map(|&row| row as u32).collect()));
        }
        buffers.push("y");
        arguments.push(Argument::Output(NAN.repeat(wanted.len())));
        let kernel = kernel("rms_norm", buffers, run);
        *SHAPE.write().unwrap() = Some(ops::RmsNorm { width, parts, epsilon, gain, gather, pitch: None });
        each_level(|level, threads| {
            let y = run_kernel(kernel, &arguments, &[wanted_rows.len() as u32], level, threads);
            compare(&format!("{level:?} {rows} {width} {parts}"), &to_f32(&y[0]), &wanted);
        });
    }
}

#[test]
fn norm_add_is_in_place() {
    kernel_under_test!(SHAPE, ops::NormAdd, cpu::norm_add);
    let mut random = Random(5);
    for (rows, width, gain, factor, squares) in [
        (1, 1, true, false, None),
        (5, 100, true, false, None),
        (3, 33, false, true, None),
        (1, 70, true, true, Some(ops::Squares { partials: 5, gain: true })),
        (1, 4096, true, false, Some(ops::Squares { partials: 1, gain: false })),
    ] {
        let epsilon = 1e-5_f32;
        let [x, stream] = [0; 2].map(|_| random.floats(rows * width));
        let [norm_gain, next_gain] = [0; 2].map(|_| random.floats(width));
        let times = random.floats(1);
        let added = x
            .chunks_exact(width)
            .flat_map(|row| normed(&to_f64(row), gain.then_some(&norm_gain), epsilon))
            .collect::<Vec<_>>();
        let by = if factor { f64::from(times[0]) } else { 1.0 };
        let sums: Vec<(f64, f64)> = to_f64(&stream)
            .into_iter()
            .zip(added)
            .map(|(h, x)| (by * (h + x), by.abs() * (h.abs() + x.abs())))
            .collect();
        let bytes = stream.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut named = vec![("x", Argument::F32(x))];
        if gain {
            named.push(("norm_gain", Argument::F32(norm_gain)));
        }
        if factor {
            named.push(("factor", Argument::F32(times)));
        }
        if squares.is_some_and(|squares| squares.gain) {
            named.push(("gain", Argument::F32(next_gain.clone())));
        }
        named.push(("stream", Argument::Output(bytes)));
        if squares.is_some_and(|squares| squares.gain) {
            named.push(("gained", Argument::Output(NAN.repeat(width))));
        }
        if let Some(squares) = squares {
            named.push(("squares_out", Argument::Output(NAN.repeat(squares.partials))));
        }
        let (buffers, arguments): (Vec<_>, Vec<_>) = named.into_iter().unzip();
        let kernel = kernel("norm_add", buffers, run);
        *SHAPE.write().unwrap() = Some(ops::NormAdd { width, epsilon, gain, factor, squares });
        each_level(|level, threads| {
            let what = format!("{level:?} {rows} {width}");
            let written = run_kernel(kernel, &arguments, &[rows as u32], level, threads);
            compare(&what, &to_f32(&written[0]), &sums);
            let Some(squares) = squares else { return };
            if squares.gain {
                let gained: Vec<(f64, f64)> = sums
                    .iter()
                    .zip(&next_gain)
                    .map(|((sum, size), gain)| (sum * f64::from(*gain), size * f64::from(gain.abs())))
                    .collect();
                compare(&what, &to_f32(&written[1]), &gained);
            }
            let total: f64 = sums.iter().map(|(sum, _)| sum * sum).sum();
            let size: f64 = sums.iter().map(|(_, size)| 2.0 * size * size).sum();
            let mut left = vec![(0.0, 0.0); squares.partials];
            left[0] = (total, size);
            compare(&what, &to_f32(written.last().unwrap()), &left);
        });
    }
}

/// Exact GELU: x times the normal distribution's CDF, integrated numerically.
fn gelu(x: f64) -> f64 {
    let density = |y: f64| (-y * y / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if x.abs() > 12.0 {
        return x.max(0.0);
    }
    let (end, steps) = (x.abs(), 2000);
    let step = end / f64::from(steps);
    // Simpson's rule.
    let weight = |i: i32| if i == 0 || i == steps { 1.0 } else { f64::from(2 + i % 2 * 2) };
    let integral = (0..=steps).map(|i| weight(i) * density(f64::from(i) * step)).sum::<f64>() * step / 3.0;
    x * (0.5 + integral * x.signum())
}

#[test]
fn layer_norm_subtracts_the_mean() {
    kernel_under_test!(SHAPE, ops::LayerNorm, cpu::layer_norm);
    let mut random = Random(14);
    for (rows, width, bias, gather) in [
        (1, 1, true, false),
        (2, 7, false, false),
        (3, 64, true, true),
        (5, 100, false, true),
        (1, 4096, true, false),
    ] {
        let epsilon = 1e-5_f32;
        let x: Vec<f32> = random.floats(rows * width).into_iter().map(|x| x + 3.0).collect();
        let [gains, biases] = [0; 2].map(|_| random.floats(width));
        let wanted_rows: Vec<usize> = if gather { vec![rows - 1, 0] } else { (0..rows).collect() };
        let mut wanted = Vec::new();
        for row in &wanted_rows {
            let row = to_f64(&x[row * width..(row + 1) * width]);
            let mean = row.iter().sum::<f64>() / width as f64;
            let rest: Vec<f64> = row.iter().map(|x| x - mean).collect();
            for (i, y) in normed(&rest, Some(&gains), epsilon).into_iter().enumerate() {
                let y = y + if bias { f64::from(biases[i]) } else { 0.0 };
                // The subtracted mean is up to 4.
                wanted.push((y, 10.0 + 1.0 / f64::from(epsilon).sqrt() * f64::from(u8::from(width == 1))));
            }
        }
        let mut buffers = vec!["x", "gain"];
        let mut arguments = vec![Argument::F32(x), Argument::F32(gains)];
        if bias {
            buffers.push("bias");
            arguments.push(Argument::F32(biases));
        }
        if gather {
            buffers.push("wanted");
            arguments.push(Argument::U32(wanted_rows.iter().map(|&row| row as u32).collect()));
        }
        buffers.push("y");
        arguments.push(Argument::Output(NAN.repeat(wanted.len())));
        let kernel = kernel("layer_norm", buffers, run);
        *SHAPE.write().unwrap() = Some(ops::LayerNorm { width, epsilon, bias, gather });
        each_level(|level, threads| {
            let y = run_kernel(kernel, &arguments, &[wanted_rows.len() as u32], level, threads);
            compare(&format!("{level:?} {rows} {width}"), &to_f32(&y[0]), &wanted);
        });
    }
}

#[test]
fn elementwise_applies_its_function() {
    kernel_under_test!(SHAPE, ops::Elementwise, cpu::elementwise);
    let mut random = Random(8);
    for (rows, width) in [(1, 1), (3, 17), (2, 1500)] {
        // From tiny values to far beyond where the functions saturate.
        let spread = |x: f32| x * 10_f32.powi((x.to_bits() % 13) as i32 - 8);
        let a: Vec<f32> = random.floats(rows * width).into_iter().map(spread).collect();
        let b = random.floats(rows * width);
        for (function, binary) in [
            (Function::Unary(UnaryOp::Activate(Activation::Silu)), false),
            (Function::Unary(UnaryOp::Activate(Activation::GeluTanh)), false),
            (Function::Unary(UnaryOp::Activate(Activation::Gelu)), false),
            (Function::Unary(UnaryOp::Activate(Activation::Relu)), false),
            (Function::Unary(UnaryOp::Activate(Activation::ReluSquared)), false),
            (Function::Unary(UnaryOp::Activate(Activation::Sigmoid)), false),
            (Function::Unary(UnaryOp::Softcap(30.0)), false),
            (Function::Unary(UnaryOp::Softcap(0.5)), false),
            (Function::Unary(UnaryOp::Scale(-0.22)), false),
            (Function::Multiply, true),
            (Function::ScaleRows, true),
            (Function::ScaleBy, true),
            (Function::Add, true),
        ] {
            // One factor per row, one for all rows, or one per element.
            let spread = match function {
                Function::ScaleRows => width,
                Function::ScaleBy => rows * width,
                _ => 1,
            };
            let b = &b[..rows * width / spread];
            let wanted: Vec<(f64, f64)> = to_f64(&a)
                .into_iter()
                .zip(to_f64(b).into_iter().flat_map(|b| std::iter::repeat_n(b, spread)))
                .map(|(a, b)| match function {
                    Function::Unary(UnaryOp::Activate(Activation::Silu)) => {
                        (silu(a), silu(a).abs().max(1e-30))
                    }
                    Function::Unary(UnaryOp::Activate(Activation::GeluTanh)) => {
                        let u = (2.0 / std::f64::consts::PI).sqrt() * (a + 0.044715 * a * a * a);
                        // 1 + tanh(u) cancels for small values. Twice the logistic function of 2 u is the
                        // same without cancellation.
                        let y = a / (1.0 + (-2.0 * u).exp());
                        // A rounding error of the exponent u is a relative error of the result, in proportion
                        // to |u|.
                        (y, y.abs().max(1e-30) * (1.0 + u.abs()))
                    }
                    // The result is max(x, 0) minus a part of x, so the tolerance is relative to x.
                    Function::Unary(UnaryOp::Activate(Activation::Gelu)) => (gelu(a), a.abs().max(1e-30)),
                    Function::Unary(UnaryOp::Activate(Activation::Relu)) => (a.max(0.0), a.abs()),
                    Function::Unary(UnaryOp::Activate(Activation::ReluSquared)) => {
                        (a.max(0.0).powi(2), a.max(0.0).powi(2))
                    }
                    Function::Unary(UnaryOp::Activate(Activation::Sigmoid)) => {
                        let y = 1.0 / (1.0 + (-a).exp());
                        (y, y.max(1e-30))
                    }
                    Function::Unary(UnaryOp::Softcap(cap)) => {
                        let y = f64::from(cap) * (a / f64::from(cap)).tanh();
                        (y, y.abs())
                    }
                    Function::Unary(UnaryOp::Scale(factor)) => {
                        let y = f64::from(factor) * a;
                        (y, y.abs())
                    }
                    Function::Multiply | Function::ScaleRows | Function::ScaleBy => (a * b, (a * b).abs()),
                    Function::Add => (a + b, a.abs() + b.abs()),
                })
                .collect();
            let mut buffers = vec!["a"];
            let mut arguments = vec![Argument::F32(a.clone())];
            if binary {
                buffers.push("b");
                arguments.push(Argument::F32(b.to_vec()));
            }
            buffers.push("y");
            arguments.push(Argument::Output(NAN.repeat(rows * width)));
            let kernel = kernel("elementwise", buffers, run);
            *SHAPE.write().unwrap() = Some(ops::Elementwise { function, width });
            each_level(|level, threads| {
                let y = run_kernel(kernel, &arguments, &[rows as u32], level, threads);
                compare(&format!("{level:?} {rows} {width} {function:?}"), &to_f32(&y[0]), &wanted);
            });
        }
    }
}

#[test]
fn slice_columns_copies_columns() {
    kernel_under_test!(SHAPE, ops::SliceColumns, cpu::slice_columns);
    let mut random = Random(9);
    for (rows, width, of, first) in [(1, 1, 1, 0), (3, 7, 30, 0), (2, 8, 24, 16), (5, 33, 70, 11)] {
        let x = random.floats(rows * of);
        let taken = x.chunks_exact(of).flat_map(|row| &row[first..first + width]);
        let wanted: Vec<(f64, f64)> = taken.map(|x| (f64::from(*x), 0.0)).collect();
        let kernel = kernel("slice_columns", vec!["x", "y"], run);
        let arguments = [Argument::F32(x.clone()), Argument::Output(NAN.repeat(rows * width))];
        *SHAPE.write().unwrap() = Some(ops::SliceColumns { width, of });
        each_level(|level, threads| {
            let y = run_kernel(kernel, &arguments, &[rows as u32, first as u32], level, threads);
            compare(&format!("{level:?} {rows} {width} of {of}"), &to_f32(&y[0]), &wanted);
        });
    }
}
