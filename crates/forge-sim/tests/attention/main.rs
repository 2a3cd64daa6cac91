//! Kernels of norms, RoPE, attention and elementwise functions against plain f64. The kernel checker must
//! find no faults.

mod append;
mod attend;
#[path = "../execution/mod.rs"]
mod execution;
mod latents;
mod mla_expanded;
mod norms;
mod on_core;
mod prologue;
mod recurrent;
mod shape;
mod shapes;

pub(crate) use execution::{Input, Kernels, to_f32};
use forge_ops::{LongContext, RopeParameters};
use forge_oracle::attention_layers::CONTEXT;
use forge_oracle::relative;
use forge_sim::Precision;
use std::fmt::Debug;

/// Compares values, with a tolerance relative to those expected, or to 1 if they are less.
pub(crate) fn compare(what: &dyn Debug, found: &[u8], expected: impl IntoIterator<Item = f64>, error: f64) {
    forge_oracle::compare(what, &to_f32(found), &relative(expected, 1.0), error);
}

/// The additional tolerance of RoPE, if the frequencies depend on the context length and are computed.
pub(crate) fn rope_error(rope: &RopeParameters) -> f64 {
    let is_computed = matches!(rope.long, Some(LongContext::DynamicNtk { .. }));
    if is_computed { Precision::own().function_error(CONTEXT as f64) } else { 0.0 }
}
