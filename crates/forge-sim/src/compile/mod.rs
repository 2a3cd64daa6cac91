//! From the text of `kernels.metal` to callable code.

pub(crate) mod clang;
pub(crate) mod program;
pub(crate) mod rewrite;
