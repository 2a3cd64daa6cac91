//! Projections with every epilogue, for one row and for several.

use crate::support::{
    Argument, Random, bytes_of, compare, each_level, kernel, matrix, run_kernel, run_kernel_as, silu, to_f32,
};
use crate::{FORMATS, cancelled, linear, plain, plane_arguments, planes};
use forge_device::cpu;
use forge_device::device::Schedule;
use forge_device::ops::{self, Activation, Epilogue, Gating, UnaryOp};

#[test]
fn linear_is_a_matrix_product() {
    kernel_under_test!(SHAPE, ops::Linear, linear);
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
            let x = random.floats(rows * inputs);
            let bias = random.floats(outputs);
            for (epilogue, with_bias) in [
                (Epilogue::Store, false),
                (Epilogue::Store, true),
                (Epilogue::Add, rows % 2 == 0),
                (Epilogue::Gate(Gating::Plain(Activation::Silu)), rows % 2 == 1),
            ] {
                let unary = match outputs {
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
                    unary,
                    epilogue,
                    chooses: false,
                };
                let gated = matches!(epilogue, Epilogue::Gate(_));
                let width = if gated { outputs / 2 } else { outputs };
                let before = random.floats(rows * width);
                let product = |row: usize, output: usize| {
                    let mut sum = if with_bias { f64::from(bias[output]) } else { 0.0 };
                    let mut size = sum.abs();
                    for column in 0..inputs {
                        let term = f64::from(weight.values[output * inputs + column])
                            * f64::from(x[row * inputs + column]);
                        sum += term;
                        size += term.abs() + cancelled(format, x[row * inputs + column]);
                    }
                    match unary.map(|unary| (unary, sum)) {
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
                    arguments.push(Argument::F32(bias.clone()));
                }
                buffers.extend(["x", "y"]);
                arguments.push(Argument::F32(x.clone()));
                arguments.push(Argument::Output(bytes_of(&before)));
                let kernel = kernel("linear", buffers, run);
                *SHAPE.write().unwrap() = Some(shape);
                each_level(|level, threads| {
                    let y = run_kernel(kernel, &arguments, &[rows as u32], level, threads);
                    compare(&format!("{level:?} {rows} rows {format:?} {shape:?}"), &to_f32(&y[0]), &wanted);
                });
            }
        }
    }
}

/// Batch invariance: the result of a row does not depend on the number of rows.
#[test]
fn projections_are_batch_invariant() {
    kernel_under_test!(SHAPE, ops::Linear, linear);
    let mut random = Random(5);
    // 200 outputs have enough panels for one thread, so that more rows share each.
    for (outputs, inputs) in [(26, 70), (50, 4128), (6, 96), (200, 70)] {
        for format in FORMATS {
            let weight = matrix(&mut random, format, outputs, inputs, 1.0);
            let x = random.floats(300 * inputs);
            let shape = plain(format, outputs, inputs, Epilogue::Store);
            *SHAPE.write().unwrap() = Some(shape);
            let kernel = kernel("linear", [planes(format, "weight"), vec!["x", "y"]].concat(), run);
            let products = |rows: std::ops::Range<usize>, level, threads, exact| {
                let mut arguments = plane_arguments(&weight);
                arguments.push(Argument::F32(x[rows.start * inputs..rows.end * inputs].to_vec()));
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
