//! Per-head matrices in both directions, against plain f64.

use crate::execution::{Input, Kernels, to_f32};
use crate::formats;
use forge_kernels::Spec;
use forge_kernels::spec::{Kernel, PerHeadKernel, PerHeadLayout};
use forge_ops::PerHeadLinear;
use forge_oracle::mla::{PER_HEAD_SIZES, per_head_linear};
use forge_oracle::{Matrix, Random, compare};

#[test]
fn per_head_linear_matches_the_reference() {
    let mut random = Random(9);
    for format in formats() {
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
        let shapes: Vec<PerHeadKernel> = PER_HEAD_SIZES
            .iter()
            .flat_map(|size| {
                [(1, 4, 0), (4, 1, 5), (2, 2, 8)].into_iter().flat_map(move |(together, each, wider)| {
                    [false, true].map(|transposed| shape(*size, transposed, (together, each), wider))
                })
            })
            .collect();
        let kernels = Kernels::of(shapes.iter().cloned().map(Spec::PerHeadLinear));
        for (index, it) in shapes.iter().enumerate() {
            let weights = Matrix::random(&mut random, format, it.op.heads * it.op.rows, it.op.columns, 1.0);
            for rows in [1, 5] {
                let x = random.floats(rows * it.op.pitch);
                let expected = per_head_linear(&it.op, &weights, &x);
                let outputs = kernels.run_with(index, &[("rows", rows)], |name| match name {
                    "x" => Input::F32(&x),
                    "y" => Input::Uninitialized(4 * expected.len()),
                    plane => Input::Bytes(weights.plane(plane)),
                });
                compare(format!("{rows} rows of {it:?}"), &to_f32(&outputs[0]), &expected, 1e-6);
            }
        }
    }
}
