//! Matmuls by the definition, with tolerances.

use crate::execution::{Input, Kernels, to_f32, words_of};
use crate::{FIRST, scalars};
use forge_kernels::Spec;
use forge_kernels::spec::{LinearKernel, Operand};
use forge_ops::{Epilogue, Format};
use forge_oracle::head::best;
use forge_oracle::matmul::{LinearInputs, linear, row_len};
use forge_oracle::{Expected, Matrix, Random, compare};
use forge_sim::Precision;

/// The tolerance of f32 dot products, relative to the magnitude of each product.
const F32_ERROR: f64 = 1e-6;

/// The tolerance with f16 factors: both are rounded to 11 bits.
const F16_ERROR: f64 = 1e-3;

/// Rows of x as a kernel multiplies them. A quantized activation is off by half a unit, where the largest of its
/// block of 32 is at least 16,192 units.
fn taken(it: &LinearKernel, given: &LinearInputs) -> Vec<Expected> {
    let mut x = given.taken(&it.op);
    if it.layout.knobs.quantizes_x(it.op.format) {
        for block in x.chunks_exact_mut(it.op.inputs).flat_map(|row| row.chunks_mut(32)) {
            let largest = block.iter().map(|(_, magnitude)| *magnitude).fold(0.0, f64::max);
            let rounding = largest / 16192.0 / 2.0;
            block.iter_mut().for_each(|(_, magnitude)| *magnitude += rounding / F32_ERROR);
        }
    }
    x
}

/// Runs every projection with each batch size.
pub(crate) fn check(projections: &[LinearKernel], rows: &[usize]) {
    check_language(projections, rows, 300);
}

/// The same as this version of Metal's language sees the kernels.
pub(crate) fn check_language(projections: &[LinearKernel], rows: &[usize], version: u32) {
    let kernels = Kernels::of_language(projections.iter().cloned().map(Spec::Linear), version);
    let mut random = Random(1);
    for (index, it) in projections.iter().enumerate() {
        let mut weight = Matrix::random(&mut random, it.op.format, it.op.outputs, it.op.inputs, 1.0);
        for &rows in rows {
            let given = LinearInputs::of(weight, &mut random, &it.op, rows);
            check_one(&kernels, index, it, rows, &given);
            weight = given.weight;
        }
    }
}

fn check_one(kernels: &Kernels, index: usize, it: &LinearKernel, rows: usize, given: &LinearInputs) {
    let what = format!("{rows} rows of {it:?}");
    let outputs = kernels.run_with(index, &scalars(rows), |name| match (name, given.floats(&it.op, name)) {
        (_, Some(numbers)) => Input::F32(numbers),
        ("candidates", _) => Input::Uninitialized(8 * it.op.outputs.div_ceil(outputs_of_a_threadgroup(it))),
        _ => match row_len(&it.op, name) {
            Some(len) => Input::Uninitialized(4 * rows * len),
            None => Input::Bytes(given.weight.plane(name)),
        },
    });
    let expected = linear(&it.op, given, &taken(it, given), FIRST);
    let tolerance = match it.layout.operand {
        Operand::F32 => F32_ERROR,
        // Weights in bf16 are not rounded.
        Operand::F16Weights if it.op.format == Format::Bf16 => F32_ERROR,
        Operand::F16 | Operand::F16Weights => F16_ERROR,
        Operand::Ranged => Precision::own().reduced_precision_error().unwrap_or(F32_ERROR),
    };
    let y = to_f32(&outputs[0]);
    compare(&what, &y, &expected, tolerance);
    let groups = y.chunks(outputs_of_a_threadgroup(it));
    match it.op.epilogue {
        Epilogue::AddSquares(squares) => {
            if squares.gain {
                let product: Vec<f32> = y.iter().zip(&given.gain).map(|(y, gain)| y * gain).collect();
                assert_eq!(to_f32(&outputs[1]), product, "{what}");
            }
            let of_group = |part: &[f32]| part.iter().map(|&y| f64::from(y) * f64::from(y)).sum();
            let mut parts: Vec<Expected> = groups.map(of_group).map(|sum: f64| (sum, sum)).collect();
            parts.resize(squares.partials, (0.0, 0.0));
            compare(&what, &to_f32(&outputs[outputs.len() - 1]), &parts, 1e-6);
        }
        Epilogue::Best { .. } => {
            for (group, (part, candidate)) in groups.zip(words_of(&outputs[1]).chunks(2)).enumerate() {
                assert_eq!(candidate, best(part, group * outputs_of_a_threadgroup(it)), "{what}");
            }
        }
        Epilogue::Store | Epilogue::Add | Epilogue::Multiply { .. } | Epilogue::Gate(_) => {}
    }
}

fn outputs_of_a_threadgroup(it: &LinearKernel) -> usize {
    it.layout.knobs.rows_per_simdgroup * it.layout.knobs.simdgroups / it.layout.knobs.split
}
