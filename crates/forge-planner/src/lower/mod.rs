//! Lowering: fused operations to kernels, weights and steps.

pub(crate) mod mla_expand;
pub(crate) mod reasons;
pub(crate) mod requirements;
pub(crate) mod section;
pub(crate) mod select;
pub(crate) mod steps;
pub(crate) mod weights;
