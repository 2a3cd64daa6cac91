//! The graph under construction, and the tensors bound to its weights.

pub(crate) mod binding;
pub(crate) mod builder;
pub(crate) mod operations;
