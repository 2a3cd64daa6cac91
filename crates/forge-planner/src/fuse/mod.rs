//! Fusion: the graph as a list of operations, and the rules that rewrite it.

pub(crate) mod list;
pub(crate) mod rules;
