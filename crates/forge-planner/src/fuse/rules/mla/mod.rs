//! Fusions of multi-head latent attention.

pub(crate) mod mla_append;
pub(crate) mod mla_projections;
pub(crate) mod mla_prologue;
