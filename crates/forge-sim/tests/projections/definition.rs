//! Matmuls by the definition, with tolerances.

use crate::plain::{Bench, Expected, FIRST, Input, Random, compare, stored, to_f32};
use forge_kernels::Spec;
use forge_kernels::spec::{LinearKernel, Operand};
use forge_ops::{Activation, Epilogue, Gating, InlineNorm, UnaryOp};
use forge_sim::Precision;

/// The tolerance of f32 dot products, relative to the magnitude of each product.
const F32_ERROR: f64 = 1e-6;

/// The tolerance with f16 factors: both are rounded to 11 bits.
const HALVES: f64 = 1e-3;

/// The order of floats as integer keys.
pub(crate) fn key(number: f32) -> u32 {
    let bits = (number + 0.0).to_bits();
    if number.is_nan() {
        0
    } else if bits >> 31 == 1 {
        !bits
    } else {
        bits | 1 << 31
    }
}

/// Results before the epilogue, with tolerances.
fn products(
    it: &LinearKernel,
    rows: usize,
    weights: &[f32],
    x: &[f32],
    (squares, x_gain): (&[f32], &[f32]),
    bias: &[f32],
) -> Vec<Expected> {
    let own = |_: &InlineNorm| x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    let outputs = || squares.iter().map(|&square| f64::from(square)).sum::<f64>();
    let epsilon = it.op.norm.map(|norm| norm.epsilon).or(it.op.own_norm.map(|norm| norm.epsilon));
    let factor = epsilon.map_or(1.0, |epsilon| {
        let sum = it.op.own_norm.as_ref().map_or_else(outputs, own);
        1.0 / (sum / it.op.inputs as f64 + f64::from(epsilon)).sqrt()
    });
    let has_gain = it.op.own_norm.is_some_and(|norm| norm.gain);
    let taken = |at: usize| x[at] * if has_gain { x_gain[at] } else { 1.0 };
    // The tolerance of a quantized activation: half a unit, where the largest of its block is at least 16,192
    // units.
    let rounding = |block: usize| {
        let columns = 32 * block..(32 * (block + 1)).min(it.op.inputs);
        let largest = columns.map(|at| taken(at).abs()).fold(0.0, f32::max);
        f64::from(largest) / 16192.0 / 2.0
    };
    let roundings: Vec<f64> = if it.layout.knobs.codes {
        (0..it.op.inputs.div_ceil(32)).map(rounding).collect()
    } else {
        Vec::new()
    };
    let mut all = Vec::new();
    for row in 0..rows {
        for output in 0..it.op.outputs {
            let (mut sum, mut size) = (0.0, 0.0);
            for column in 0..it.op.inputs {
                let gain = if has_gain { f64::from(x_gain[column]) } else { 1.0 };
                let (w, x) = (weights[output * it.op.inputs + column], x[row * it.op.inputs + column]);
                let x = f64::from(x) * gain;
                sum += f64::from(w) * x;
                size += (f64::from(w) * x).abs();
                // A weight with an offset is the difference of its scaled quant and the offset.
                if it.op.format.has_offsets() {
                    size += x.abs();
                }
                if it.layout.knobs.codes {
                    size += f64::from(w).abs() * roundings[column / 32] / F32_ERROR;
                }
            }
            (sum, size) = (sum * factor, size * factor);
            if it.op.bias {
                sum += f64::from(bias[output]);
                size += f64::from(bias[output]).abs();
            }
            match it.op.unary {
                None => {}
                Some(UnaryOp::Softcap(cap)) => {
                    let cap = f64::from(cap);
                    (sum, size) = (cap * (sum / cap).tanh(), size + cap);
                }
                Some(UnaryOp::Scale(factor)) => {
                    (sum, size) = (f64::from(factor) * sum, f64::from(factor).abs() * size);
                }
                // The slope of an activation is at most 1.2.
                Some(UnaryOp::Activate(activation)) => (sum, size) = (activated(activation, sum), 1.2 * size),
            }
            all.push((sum, size));
        }
    }
    all
}

fn activated(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => unreachable!("its numbers are tested by themselves"),
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            x * (1.0 + u.tanh()) / 2.0
        }
    }
}

/// Runs every projection with each batch size.
pub(crate) fn check(projections: &[LinearKernel], rows: &[usize]) {
    let specs: Vec<Spec> = projections.iter().cloned().map(Spec::Linear).collect();
    let bench = Bench::new(&specs);
    let mut random = Random(1);
    for (index, it) in projections.iter().enumerate() {
        let weights = stored(&mut random, it.op.format, it.op.outputs, it.op.inputs);
        for &rows in rows {
            check_one(&bench, index, it, rows, &weights, &mut random);
        }
    }
}

fn check_one(
    bench: &Bench,
    index: usize,
    it: &LinearKernel,
    rows: usize,
    weights: &crate::plain::Stored,
    random: &mut Random,
) {
    let what = format!("{rows} rows of {it:?}");
    let x = random.floats(rows * it.op.inputs);
    let bias = random.floats(it.op.outputs);
    let gain = random.floats(it.op.outputs);
    let x_gain = random.floats(it.op.inputs);
    let partials = it.op.norm.map_or(0, |norm| norm.partials);
    let squares: Vec<f32> = random.floats(partials).iter().map(|number| number.abs()).collect();
    let width = if matches!(it.op.epilogue, Epilogue::Gate(_)) { it.op.outputs / 2 } else { it.op.outputs };
    let before = random.floats(rows * width);
    let of = if let Epilogue::Multiply { of } = it.op.epilogue { of } else { 0 };
    let factors = random.floats(of);
    let outputs = bench.run(index, rows, |name| match name {
        "weight_values" | "weight_codes" => Input::Bytes(weights.planes[0].clone()),
        "weight_scales" => Input::Bytes(weights.planes[1].clone()),
        "bias" => Input::F32(bias.clone()),
        "x" => Input::F32(x.clone()),
        "x_gain" => Input::F32(x_gain.clone()),
        "factors" => Input::F32(factors.clone()),
        "squares" => Input::F32(squares.clone()),
        "gain" => Input::F32(gain.clone()),
        "y" => match it.op.epilogue {
            Epilogue::Add | Epilogue::AddSquares(_) => Input::F32(before.clone()),
            _ => Input::Uninitialized(rows * width),
        },
        "gained" => Input::Uninitialized(width),
        "squares_out" => match it.op.epilogue {
            Epilogue::AddSquares(squares) => Input::Uninitialized(squares.partials),
            _ => panic!("{what}"),
        },
        "candidates" => Input::Uninitialized(2 * it.op.outputs.div_ceil(outputs_of_a_threadgroup(it))),
        other => panic!("{what} has a buffer `{other}`"),
    });
    let results = products(it, rows, &weights.values, &x, (&squares, &x_gain), &bias);
    let expected: Vec<Expected> = match it.op.epilogue {
        Epilogue::Store | Epilogue::Best { .. } => results,
        Epilogue::Add | Epilogue::AddSquares(_) => {
            let added = |(&(sum, size), &before): (&Expected, &f32)| {
                (sum + f64::from(before), size + f64::from(before).abs())
            };
            results.iter().zip(&before).map(added).collect()
        }
        Epilogue::Multiply { .. } => {
            let factors = factors[FIRST as usize..].iter().map(|&factor| f64::from(factor));
            let times = |(&(sum, size), factor): (&Expected, f64)| (sum * factor, size * factor.abs());
            results.iter().zip(factors).map(times).collect()
        }
        // The effect of an error of the gate: the slope of an activation is at most 1.13.
        Epilogue::Gate(Gating::Clamped { .. }) => panic!("{what}"),
        Epilogue::Gate(Gating::Plain(activation)) => results
            .chunks(2)
            .map(|pair| {
                let ((gate, a), (up, b)) = (pair[0], pair[1]);
                let gate = activated(activation, gate);
                (gate * up, 1.13 * a * up.abs() + gate.abs() * b)
            })
            .collect(),
    };
    let tolerance = match it.layout.operand {
        Operand::F32 => F32_ERROR,
        Operand::F16 => HALVES,
        Operand::Ranged => Precision::own().reduced_precision_error().unwrap_or(F32_ERROR),
    };
    let y = to_f32(&outputs[0]);
    compare(&what, &y, &expected, tolerance);
    match it.op.epilogue {
        Epilogue::AddSquares(leaves) => {
            if leaves.gain {
                let product: Vec<f32> = y.iter().zip(&gain).map(|(y, gain)| y * gain).collect();
                assert_eq!(to_f32(&outputs[1]), product, "{what}");
            }
            let mut parts: Vec<Expected> = y
                .chunks(outputs_of_a_threadgroup(it))
                .map(|part| part.iter().map(|&y| f64::from(y) * f64::from(y)).sum())
                .map(|sum: f64| (sum, sum))
                .collect();
            parts.resize(leaves.partials, (0.0, 0.0));
            compare(&what, &to_f32(&outputs[outputs.len() - 1]), &parts, 1e-6);
        }
        Epilogue::Best { .. } => {
            let each = outputs_of_a_threadgroup(it);
            for (group, (part, candidate)) in y.chunks(each).zip(outputs[1].chunks(2)).enumerate() {
                let best = part.iter().map(|&y| key(y)).max().unwrap_or(0);
                let first = part.iter().position(|&y| key(y) == best).unwrap_or(0) + group * each;
                assert_eq!(candidate, [best, first as u32], "{what}");
            }
        }
        Epilogue::Store | Epilogue::Add | Epilogue::Multiply { .. } | Epilogue::Gate(_) => {}
    }
}

fn outputs_of_a_threadgroup(it: &LinearKernel) -> usize {
    it.layout.knobs.rows_per_simdgroup * it.layout.knobs.simdgroups / it.layout.knobs.split
}
