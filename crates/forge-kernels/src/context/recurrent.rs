//! What the templates of convolutions and delta rules read.

use super::Base;
use super::vectors::Applied;
use crate::spec::{Convolve, DeltaRule, DeltaStep, Each};
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct ConvolveContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a Convolve,
    /// What is written, of `sum`.
    result: String,
    /// The support unit that it calls.
    #[serde(skip)]
    pub(super) support: Option<&'static str>,
    threads: usize,
}

impl<'a> ConvolveContext<'a> {
    pub(super) fn of(base: Base<'a>, spec: &'a Convolve) -> ConvolveContext<'a> {
        let applied = spec.activation.map(|activation| Applied::of(Each::Activate(activation)));
        let (result, support) = match applied {
            Some(Applied { before, after, unit }) => (format!("{before}sum{after}"), unit),
            None => ("sum".to_owned(), None),
        };
        ConvolveContext { base, spec, result, support, threads: spec.width.next_multiple_of(32).min(128) }
    }
}

#[derive(Serialize)]
pub(super) struct DeltaRuleContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a DeltaRule,
    /// Rows that a result of the convolution is made of; 0 where that was another kernel's business.
    taps: usize,
    /// Channels of queries, keys and values together, and numbers of a row of inputs.
    channels: usize,
    pitch: usize,
    /// Value heads that share a key head.
    group: usize,
    /// What a lane loads at once, and how many numbers that is.
    vector: &'static str,
    step: usize,
    /// Those of a lane.
    chunks: usize,
    /// Whether some lanes have fewer.
    guarded: bool,
    /// Those of a head's query, key and value.
    convolved: usize,
    values_float: f32,
    threads: usize,
    simdgroups: usize,
    /// Whether there are more threads than columns have lanes.
    padded: bool,
}

/// Lanes that share a column of a memory.
pub(crate) const LANES: usize = 4;

impl<'a> DeltaRuleContext<'a> {
    pub(super) fn of(base: Base<'a>, spec: &'a DeltaRule) -> DeltaRuleContext<'a> {
        // Rows of channels that are side by side lie at multiples of their number.
        let aligned =
            spec.keys.is_multiple_of(4) && (spec.gated.is_none() || spec.channels().is_multiple_of(4));
        let (vector, step) = if aligned { ("float4", 4) } else { ("float", 1) };
        let chunks = spec.keys.div_ceil(LANES * step);
        let threads = (LANES * spec.values).next_multiple_of(32);
        DeltaRuleContext {
            base,
            spec,
            taps: 0,
            channels: spec.channels(),
            pitch: spec.inputs(),
            group: spec.heads / spec.key_heads,
            vector,
            step,
            chunks,
            guarded: chunks * LANES * step != spec.keys,
            convolved: (2 * spec.keys + spec.values).div_ceil(step),
            values_float: spec.values as f32,
            threads,
            simdgroups: threads / 32,
            padded: threads != spec.values * LANES,
        }
    }

    pub(super) fn of_step(base: Base<'a>, spec: &'a DeltaStep) -> DeltaRuleContext<'a> {
        DeltaRuleContext { taps: spec.taps, ..DeltaRuleContext::of(base, &spec.rule) }
    }

    pub(super) fn support(&self) -> Vec<&'static str> {
        match self.spec.gated {
            Some(_) => vec!["softplus", "silu", "sigmoid"],
            None => vec!["softplus"],
        }
    }
}
