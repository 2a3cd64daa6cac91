//! Per-head matrices in both directions, against plain f64.

use crate::formats;
use crate::plain::{Bench, Expected, Input, Random, compare, stored, to_f32};
use forge_kernels::Spec;
use forge_kernels::spec::{Kernel, PerHeadKernel, PerHeadLayout};
use forge_ops::PerHeadLinear;

#[test]
fn per_head_linear_matches_the_reference() {
    let mut random = Random(9);
    for format in formats() {
        let sizes: &[[usize; 3]] = &[[3, 7, 30], [2, 21, 70], [2, 12, 1056]];
        let shape = |[heads, rows, columns]: [usize; 3], transposed, (together, each), wider| Kernel {
            op: PerHeadLinear {
                format,
                heads,
                rows,
                columns,
                transposed,
                pitch: heads * if transposed { rows } else { columns } + wider,
            },
            layout: PerHeadLayout { together, each },
        };
        let shapes: Vec<PerHeadKernel> = sizes
            .iter()
            .flat_map(|size| {
                [(1, 4, 0), (4, 1, 5), (2, 2, 8)].into_iter().flat_map(move |(together, each, wider)| {
                    [false, true].map(|transposed| shape(*size, transposed, (together, each), wider))
                })
            })
            .collect();
        let specs: Vec<Spec> = shapes.iter().cloned().map(Spec::PerHeadLinear).collect();
        let bench = Bench::new(&specs);
        for (index, it) in shapes.iter().enumerate() {
            let weights = stored(&mut random, format, it.op.heads * it.op.rows, it.op.columns);
            for rows in [1, 5] {
                let x = random.floats(rows * it.op.pitch);
                let (takes, gives) =
                    if it.op.transposed { (it.op.rows, it.op.columns) } else { (it.op.columns, it.op.rows) };
                let outputs = bench.run(index, rows, |name| match name {
                    "weight_values" | "weight_codes" => Input::Bytes(weights.planes[0].clone()),
                    "weight_scales" => Input::Bytes(weights.planes[1].clone()),
                    "x" => Input::F32(x.clone()),
                    _ => Input::Uninitialized(rows * it.op.heads * gives),
                });
                let product = |row: usize, head: usize, output: usize| {
                    let (mut sum, mut size) = (0.0, 0.0);
                    for input in 0..takes {
                        let (of_row, of_column) =
                            if it.op.transposed { (input, output) } else { (output, input) };
                        let weight = weights.values[(head * it.op.rows + of_row) * it.op.columns + of_column];
                        let x = f64::from(x[row * it.op.pitch + head * takes + input]);
                        sum += f64::from(weight) * x;
                        size += (f64::from(weight) * x).abs();
                        // A weight with an offset is the difference of its scaled quant and the offset.
                        if format.has_offsets() {
                            size += x.abs();
                        }
                    }
                    (sum, size)
                };
                let expected: Vec<Expected> = (0..rows * it.op.heads * gives)
                    .map(|at| product(at / gives / it.op.heads, at / gives % it.op.heads, at % gives))
                    .collect();
                compare(&format!("{rows} rows of {it:?}"), &to_f32(&outputs[0]), &expected, 1e-6);
            }
        }
    }
}
