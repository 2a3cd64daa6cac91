//! Norms and other kernels that work row by row.

pub(crate) mod context;
