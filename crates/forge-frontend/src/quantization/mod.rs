//! Quantized matrices: their configuration and their tensors.

pub(crate) mod mlx;
pub(crate) mod mxfp4;
