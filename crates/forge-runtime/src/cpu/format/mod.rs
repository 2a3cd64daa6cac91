//! Storage formats of weight matrices, and how kernels read them.

pub(crate) mod affine;
#[cfg(feature = "moe")]
pub(crate) mod expert_stack;
pub(crate) mod float_formats;
pub(crate) mod k_quants;
pub(crate) mod matrix;
pub(crate) mod mxfp4;
pub(crate) mod q8_0_q4_0;
pub mod repacked;
pub(crate) mod scales;
pub(crate) mod transpose;
pub(crate) mod weight_format;
