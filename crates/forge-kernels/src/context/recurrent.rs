//! What the templates of convolutions and delta rules read.

use super::Base;
use crate::spec::{Convolve, DeltaRule};
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct ConvolveContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a Convolve,
    threads: usize,
}

impl<'a> ConvolveContext<'a> {
    pub(super) fn of(base: Base<'a>, spec: &'a Convolve) -> ConvolveContext<'a> {
        ConvolveContext { base, spec, threads: spec.width.next_multiple_of(32).min(128) }
    }
}

#[derive(Serialize)]
pub(super) struct DeltaRuleContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a DeltaRule,
    /// Value heads that share a key head.
    group: usize,
    /// What a lane loads at once, and how many numbers that is.
    vector: &'static str,
    step: usize,
    /// Those of a lane.
    chunks: usize,
    threads: usize,
}

/// Lanes that share a column of a memory.
pub(crate) const LANES: usize = 4;

impl<'a> DeltaRuleContext<'a> {
    pub(super) fn of(base: Base<'a>, spec: &'a DeltaRule) -> DeltaRuleContext<'a> {
        let (vector, step) = if spec.keys.is_multiple_of(4) { ("float4", 4) } else { ("float", 1) };
        DeltaRuleContext {
            base,
            spec,
            group: spec.heads / spec.key_heads,
            vector,
            step,
            chunks: spec.keys.div_ceil(LANES * step),
            threads: (LANES * spec.values).next_multiple_of(32),
        }
    }
}
