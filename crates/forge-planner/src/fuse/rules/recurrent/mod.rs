//! Fusions of Gated DeltaNet layers.

pub(crate) mod delta_net;
pub(crate) mod delta_prologue;
