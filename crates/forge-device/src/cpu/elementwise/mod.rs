//! Embedding lookup, activation functions and other elementwise kernels.

pub(crate) mod activation;
pub(crate) mod elementwise_op;
pub(crate) mod embed;
pub(crate) mod slice_columns;
