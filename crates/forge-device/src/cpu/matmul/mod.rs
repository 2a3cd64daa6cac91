//! Matrix multiplication with epilogue, `y = W x`, for decode (GEMV) and prefill (GEMM).

pub(crate) mod epilogue;
pub(crate) mod epilogue_kernels;
pub(crate) mod f32;
pub(crate) mod gemv;
pub(crate) mod int8;
pub(crate) mod linear;
pub(crate) mod output_partition;
pub(crate) mod shared_weight_rows;
