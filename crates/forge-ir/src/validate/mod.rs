//! Validates a draft and returns a graph, or all errors.
//!
//! Checks that indices are in range, that parameters and bindings agree in number and shape, that every
//! weight and body is used, and that the prologue starts from token ids, bodies pass on the residual stream,
//! and the epilogue ends in one logit per vocabulary entry. `check` checks bodies and bindings, `shape_check`
//! operations, `cross_layer` states and the per-layer inputs.

mod check;
mod cross_layer;
pub(crate) mod graph;
mod mla;
mod recurrent;
mod routing;
mod shape_check;
#[cfg(test)]
mod tests;
