//! Kernels that choose tokens from logits.

pub(crate) mod argmax;
pub(crate) mod sample;
