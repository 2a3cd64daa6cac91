//! Matrix products: GEMV, small batch and GEMM.

pub(crate) mod context;
pub(crate) mod limits;
pub(crate) mod spec;
