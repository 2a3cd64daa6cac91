//! Storage formats of weight matrices, and how kernels read them.

pub(crate) mod affine;
pub(crate) mod block_quants;
pub(crate) mod codebook;
#[cfg(feature = "moe")]
pub(crate) mod expert_stack;
pub(crate) mod float_formats;
pub(crate) mod fp8;
pub(crate) mod k_quants;
pub(crate) mod matrix;
pub mod repacked;
pub(crate) mod scales;
pub(crate) mod transpose;
pub(crate) mod weight_format;
