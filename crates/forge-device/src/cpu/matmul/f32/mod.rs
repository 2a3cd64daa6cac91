//! GEMM and GEMV with f32 activations.

#[cfg(target_arch = "x86_64")]
pub(crate) mod bf16_split_amx;
pub(crate) mod gemm;
pub(crate) mod microkernel;
pub(crate) mod transposed_gemv;
