//! GEMM and GEMV with int8 activations and quantized weights.

#[cfg(target_arch = "x86_64")]
pub(crate) mod int8_amx;
pub(crate) mod int8_gemm;
pub(crate) mod int8_gemv;
pub(crate) mod int8_panel;
pub(crate) mod packed_panel;
pub(crate) mod quantize;
pub(crate) mod quantized_rows;
pub(crate) mod repacked_gemv;
pub(crate) mod scaled_products;
