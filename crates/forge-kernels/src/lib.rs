//! The catalogue of kernels.
pub mod spec;
