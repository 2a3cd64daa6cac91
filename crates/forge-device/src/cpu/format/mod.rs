//! Storage formats of weight matrices, and how kernels read them.

#[cfg(feature = "moe")]
pub(crate) mod expert_stack;
pub(crate) mod float4;
pub(crate) mod float_formats;
pub(crate) mod fp8;
pub(crate) mod k_quants;
pub(crate) mod matrix;
pub(crate) mod quant_plane;
pub(crate) mod quantized;
pub mod repacked;
pub(crate) mod scale_plane;
pub(crate) mod transpose;
pub(crate) mod weight_format;
