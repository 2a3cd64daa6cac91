//! Fusions of mixtures of experts.

pub(crate) mod fused_routing;
pub(crate) mod merge_shared_experts;
