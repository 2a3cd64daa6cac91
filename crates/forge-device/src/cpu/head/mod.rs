//! Kernels that select tokens from logits: argmax and sampling.

pub(crate) mod argmax;
pub(crate) mod sample;
