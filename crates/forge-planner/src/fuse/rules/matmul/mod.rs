//! Fusions of projections with each other and with the operations after them.

pub(crate) mod gate_up;
pub(crate) mod hoist_gate;
pub(crate) mod per_layer_input;
pub(crate) mod residual;
pub(crate) mod split_residual_sum;
pub(crate) mod unary_epilogue;
