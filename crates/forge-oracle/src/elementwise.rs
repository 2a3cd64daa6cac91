//! Activations, elementwise functions, slices and embeddings.

use crate::compare::{Expected, product, scaled, sum, term};
use crate::matrix::Matrix;
use forge_ops::{Activation, Elementwise, Embed, Function, Gating, SliceColumns, UnaryOp};

/// An activation of a value, by its definition.
pub fn activated(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x * sigmoid(x),
        Activation::Gelu => gelu(x),
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::Sigmoid => sigmoid(x),
        // Half of 1 + tanh(u) without cancellation: the sigmoid of 2 u.
        Activation::GeluTanh => x * sigmoid(2.0 * gelu_argument(x)),
    }
}

/// 1 / (1 + exp(-x))
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// x times its sigmoid.
pub fn silu(x: f64) -> f64 {
    activated(Activation::Silu, x)
}

fn gelu_argument(x: f64) -> f64 {
    (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)
}

/// x times the normal distribution function of x, integrated numerically.
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

/// A gate and its up value combined. The error of the gate counts with the slope of the activation, which is at
/// most 1.1 for SiLU, 1.13 for others and 1.2 if it is clamped.
pub fn gated(gating: Gating, (gate, a): Expected, (up, b): Expected) -> Expected {
    match gating {
        Gating::Plain(activation) => {
            let slope = if activation == Activation::Silu { 1.1 } else { 1.13 };
            let gate = activated(activation, gate);
            (gate * up, slope * a * up.abs() + gate.abs() * b)
        }
        Gating::Clamped { limit, sharpness } => {
            let (limit, sharpness) = (f64::from(limit), f64::from(sharpness));
            let (gate, up) = (gate.min(limit), up.clamp(-limit, limit) + 1.0);
            let gate = gate * sigmoid(sharpness * gate);
            (gate * up, 1.2 * a * up.abs() + gate.abs() * (b + 1.0))
        }
    }
}

/// A unary function of a value that has an error itself.
pub fn unary(function: UnaryOp, (value, magnitude): Expected) -> Expected {
    match function {
        UnaryOp::Softcap(cap) => {
            let cap = f64::from(cap);
            (cap * (value / cap).tanh(), magnitude + cap)
        }
        UnaryOp::Scale(factor) => scaled((value, magnitude), f64::from(factor)),
        // The slope of an activation is at most 1.2.
        UnaryOp::Activate(activation) => (activated(activation, value), 1.2 * magnitude),
    }
}

/// The second operand of a binary function has one value for so many elements of the first.
pub fn spread(op: &Elementwise, rows: usize) -> usize {
    match op.function {
        Function::ScaleRows => op.width,
        Function::ScaleBy => rows * op.width,
        _ => 1,
    }
}

/// [`Elementwise`] of exact values.
pub fn elementwise(op: &Elementwise, a: &[f32], b: &[f32]) -> Vec<Expected> {
    let spread = spread(op, a.len() / op.width);
    // Unary functions have no second operand.
    let second = |at: usize| b.get(at / spread).copied().unwrap_or(0.0);
    let results = a.iter().enumerate().map(|(at, &a)| function(op.function, a, second(at)));
    // Results beyond the range of f32 are infinite.
    let in_range = |(y, magnitude): Expected| match (y as f32).is_infinite() {
        true => (f64::from(y as f32), magnitude),
        false => (y, magnitude),
    };
    results.map(in_range).collect()
}

fn function(function: Function, a: f32, b: f32) -> Expected {
    let x = f64::from(a);
    // Tiny results may be 0.
    let near = |y: f64| (y, y.abs().max(1e-30));
    match function {
        // A rounding error of the exponent u is a relative error of the result, in proportion to |u|.
        Function::Unary(UnaryOp::Activate(Activation::GeluTanh)) => {
            let (y, magnitude) = near(activated(Activation::GeluTanh, x));
            (y, magnitude * (1.0 + gelu_argument(x).abs()))
        }
        // max(x, 0) minus a part of x.
        Function::Unary(UnaryOp::Activate(Activation::Gelu)) => (gelu(x), x.abs().max(1e-30)),
        Function::Unary(UnaryOp::Activate(activation)) => near(activated(activation, x)),
        Function::Unary(UnaryOp::Softcap(cap)) => {
            let y = f64::from(cap) * (x / f64::from(cap)).tanh();
            (y, y.abs())
        }
        Function::Unary(UnaryOp::Scale(factor)) => product(factor, a),
        Function::Multiply | Function::ScaleRows | Function::ScaleBy => product(a, b),
        Function::Add => sum(term(a), term(b)),
    }
}

/// Every function.
pub const FUNCTIONS: [Function; 13] = [
    Function::Unary(UnaryOp::Activate(Activation::Silu)),
    Function::Unary(UnaryOp::Activate(Activation::GeluTanh)),
    Function::Unary(UnaryOp::Activate(Activation::Gelu)),
    Function::Unary(UnaryOp::Activate(Activation::Relu)),
    Function::Unary(UnaryOp::Activate(Activation::ReluSquared)),
    Function::Unary(UnaryOp::Activate(Activation::Sigmoid)),
    Function::Unary(UnaryOp::Softcap(30.0)),
    Function::Unary(UnaryOp::Softcap(0.5)),
    Function::Unary(UnaryOp::Scale(-0.22)),
    Function::Multiply,
    Function::ScaleRows,
    Function::ScaleBy,
    Function::Add,
];

/// [`SliceColumns`] from column `first` on.
pub fn slice_columns(op: &SliceColumns, x: &[f32], first: usize) -> Vec<f32> {
    x.chunks_exact(op.of).flat_map(|row| row[first..first + op.width].iter().copied()).collect()
}

/// [`Embed`]: exact, since a row is only scaled and added. An id outside the table reads row 0.
pub fn embed(op: &Embed, table: &Matrix, ids: &[u32], before: &[f32]) -> Vec<f32> {
    let row = |id: &u32| table.row(if (*id as usize) < op.vocabulary { *id as usize } else { 0 });
    let values = ids.iter().flat_map(row).zip(before);
    values.map(|(value, before)| if op.adds { before + value * op.scale } else { value * op.scale }).collect()
}
