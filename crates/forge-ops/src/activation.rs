//! Functions of single values.

use serde::Serialize;

/// An elementwise function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// x / (1 + exp(-x))
    Silu,
    /// x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x³)))
    GeluTanh,
    /// x times the normal distribution function of x
    Gelu,
    /// max(x, 0)
    Relu,
    /// max(x, 0)²
    ReluSquared,
    /// 1 / (1 + exp(-x))
    Sigmoid,
}

impl Activation {
    /// Name in printed graphs, plans and kernels.
    pub const fn name(self) -> &'static str {
        match self {
            Activation::Silu => "silu",
            Activation::GeluTanh => "gelu_tanh",
            Activation::Gelu => "gelu",
            Activation::Relu => "relu",
            Activation::ReluSquared => "relu_squared",
            Activation::Sigmoid => "sigmoid",
        }
    }
}

/// How a gate g and its up u are combined.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Gating {
    /// activation(g) * u
    Plain(Activation),
    /// a * (1 / (1 + exp(-sharpness * a))) * (b + 1), where a is g clamped from above and b is u clamped on
    /// both sides.
    Clamped {
        /// Clamp limit.
        limit: f32,
        /// Steepness of the sigmoid.
        sharpness: f32,
    },
}

/// A unary function.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UnaryOp {
    /// `activation(a)`
    Activate(Activation),
    /// `c · tanh(a / c)`
    Softcap(f32),
    /// `c · a`
    Scale(f32),
}
