//! CPU kernels of projections, embedding and argmax, with every set of instructions that this machine has, against plain f64.
//!
//! Shapes are what real models have and what nobody expects: odd widths, one row, more rows than a block, groups
//! that fill no tile. Buffers stand between stretches of NaN, so that reading outside shows.

#[macro_use]
mod support;

use forge_runtime::cpu::{self, Activation, Epilogue, Format};
use support::{
    Argument, Matrix, NAN, Random, bytes_of, compare, each_level, kernel, matrix, numbers_of, run_kernel,
    silu, words_of,
};

const FORMATS: [Format; 5] = [Format::F32, Format::F16, Format::Bf16, Format::Q8_0, Format::Q4_0];

fn project(call: &cpu::Call<'_>, (format, shape): &(Format, cpu::Project)) {
    match format {
        Format::F32 => cpu::project::<cpu::F32>(call, shape),
        Format::F16 => cpu::project::<cpu::F16>(call, shape),
        Format::Bf16 => cpu::project::<cpu::Bf16>(call, shape),
        Format::Q8_0 => cpu::project::<cpu::Q8_0>(call, shape),
        Format::Q4_0 => cpu::project::<cpu::Q4_0>(call, shape),
    }
}

fn embed(call: &cpu::Call<'_>, (format, shape): &(Format, cpu::Embed)) {
    match format {
        Format::F32 => cpu::embed::<cpu::F32>(call, shape),
        Format::F16 => cpu::embed::<cpu::F16>(call, shape),
        Format::Bf16 => cpu::embed::<cpu::Bf16>(call, shape),
        Format::Q8_0 => cpu::embed::<cpu::Q8_0>(call, shape),
        Format::Q4_0 => cpu::embed::<cpu::Q4_0>(call, shape),
    }
}

fn planes(format: Format, weight: &'static str) -> Vec<&'static str> {
    match (format, weight) {
        (Format::Q8_0 | Format::Q4_0, "table") => vec!["table_codes", "table_scales"],
        (Format::Q8_0 | Format::Q4_0, _) => vec!["weight_codes", "weight_scales"],
        (_, "table") => vec!["table_values"],
        _ => vec!["weight_values"],
    }
}

fn plane_arguments(matrix: &Matrix) -> Vec<Argument> {
    matrix.planes.iter().map(|plane| Argument::Bytes(plane.clone())).collect()
}

#[test]
fn project_is_a_matrix_product() {
    kernel_under_test!(SHAPE, (Format, cpu::Project), project);
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
                (Epilogue::Gate(Activation::Silu), rows % 2 == 1),
            ] {
                let shape = cpu::Project { outputs, inputs, bias: with_bias, epilogue };
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
                        size += term.abs();
                    }
                    (sum, size)
                };
                let mut wanted = Vec::new();
                for row in 0..rows {
                    for o in 0..width {
                        wanted.push(if gated {
                            let ((gate, a), (up, b)) = (product(row, 2 * o), product(row, 2 * o + 1));
                            // What an error of the gate does: the slope of silu is at most 1.1.
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
                *SHAPE.write().unwrap() = Some((format, shape));
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

#[test]
fn embed_widens_rows_exactly() {
    kernel_under_test!(SHAPE, (Format, cpu::Embed), embed);
    let mut random = Random(2);
    for (vocabulary, width) in [(7, 1), (5, 31), (9, 32), (300, 56), (4, 200)] {
        for format in FORMATS {
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
            arguments.push(Argument::Words(ids.clone()));
            arguments.push(Argument::Output(NAN.repeat(ids.len() * width)));
            let kernel = kernel("embed", buffers, run);
            *SHAPE.write().unwrap() = Some((format, cpu::Embed { vocabulary, width }));
            each_level(|level, threads| {
                let stream = run_kernel(kernel, &arguments, &[ids.len() as u32], level, threads);
                compare(&format!("{level:?} {format:?} {width}"), &numbers_of(&stream[0]), &wanted);
            });
        }
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
