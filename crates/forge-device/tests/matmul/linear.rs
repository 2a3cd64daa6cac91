//! Projections with every epilogue, for one row and for several.

use crate::support::{
    Argument, Matrix, Random, compare, each_level, kernel, plane_arguments, plane_buffers, run_kernel_as,
    to_f32,
};
use crate::{FORMATS, linear, linear_call};
use forge_device::cpu;
use forge_device::device::Schedule;
use forge_device::ops::{self, Activation, Epilogue, Linear, UnaryOp};
use forge_oracle::matmul::{self, LinearInputs, SWIGLU, gemm_linears, plain, small_batch_linears};

/// Layers for this many rows: of sizes that fill no block, and deep ones.
fn layers(format: ops::Format) -> Vec<(usize, Linear)> {
    let shapes = [
        (1, 6, 1),
        (2, 8, 3),
        (1, 64, 64),
        (3, 50, 56),
        (4, 22, 70),
        (5, 26, 40),
        (16, 72, 100),
        (131, 30, 96),
        (1, 10, 14336),
        (4, 14, 2080),
        (7, 26, 4128),
    ];
    let of_shape = |(rows, outputs, inputs): (usize, usize, usize)| {
        let unary = match outputs {
            50 => Some(UnaryOp::Softcap(0.75)),
            22 => Some(UnaryOp::Scale(-0.22)),
            26 => Some(UnaryOp::Activate(Activation::Silu)),
            _ => None,
        };
        let epilogues = [
            (Epilogue::Store, false),
            (Epilogue::Store, true),
            (Epilogue::Add, rows % 2 == 0),
            (SWIGLU, rows % 2 == 1),
        ];
        let layer = |(epilogue, bias)| Linear { bias, unary, ..plain(format, outputs, inputs, epilogue) };
        epilogues.map(|options| (rows, layer(options)))
    };
    let few = small_batch_linears(format).into_iter().flat_map(|op| [1, 2, 11].map(|rows| (rows, op)));
    let many = gemm_linears(format).map(|op| (17, op));
    shapes.into_iter().flat_map(of_shape).chain(few).chain(many).collect()
}

#[test]
fn linear_is_a_matrix_product() {
    kernel_under_test!(SHAPE, ops::Linear, linear);
    let mut random = Random(1);
    for (rows, op) in FORMATS.into_iter().flat_map(layers) {
        let given = LinearInputs::random(&mut random, &op, rows);
        let wanted = matmul::linear(&op, &given, &given.taken(&op), 0);
        let call = linear_call(&op, &given, rows, run);
        *SHAPE.write().unwrap() = Some(op);
        each_level(|level, threads| {
            let y = call.run(&[rows], level, threads);
            compare(&format!("{level:?} {rows} rows {op:?}"), &to_f32(&y[0]), &wanted);
        });
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
            let weight = Matrix::random(&mut random, format, outputs, inputs, 1.0);
            let x = random.floats(300 * inputs);
            let shape = plain(format, outputs, inputs, Epilogue::Store);
            *SHAPE.write().unwrap() = Some(shape);
            let kernel = kernel("linear", [plane_buffers(&weight, "weight"), vec!["x", "y"]].concat(), run);
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
