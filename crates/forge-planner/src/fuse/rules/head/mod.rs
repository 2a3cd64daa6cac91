//! Fusions of the output head.

pub(crate) mod head_argmax;
