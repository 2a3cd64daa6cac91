//! What the templates of convolutions and delta rules read.

use crate::attention::context::distances;
use crate::context::Base;
use crate::norm::context::Applied;
use crate::spec::{CausalConv, DeltaChunks, DeltaRule, DeltaStep, GatedRmsNorm, UnaryOp};
use serde::Serialize;

#[derive(Serialize)]
pub(crate) struct ConvolveContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a CausalConv,
    /// What is written, of `sum`.
    result: String,
    threads: usize,
}

impl<'a> ConvolveContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a CausalConv) -> ConvolveContext<'a> {
        let applied = spec.activation.map(|activation| Applied::of(UnaryOp::Activate(activation)));
        let result = match applied {
            Some(Applied { before, after }) => format!("{before}sum{after}"),
            None => "sum".to_owned(),
        };
        ConvolveContext { base, spec, result, threads: spec.width.next_multiple_of(32).min(128) }
    }
}

#[derive(Serialize)]
pub(crate) struct DeltaRuleContext<'a> {
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
    pub(crate) fn of(base: Base<'a>, spec: &'a DeltaRule) -> DeltaRuleContext<'a> {
        let (vector, step) = loaded(spec);
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

    pub(crate) fn of_step(base: Base<'a>, spec: &'a DeltaStep) -> DeltaRuleContext<'a> {
        DeltaRuleContext { taps: spec.taps, ..DeltaRuleContext::of(base, &spec.rule) }
    }
}

/// What is loaded at once of queries and keys. Rows of channels that are side by side lie at multiples of their number.
fn loaded(rule: &DeltaRule) -> (&'static str, usize) {
    let aligned = rule.keys.is_multiple_of(4) && (rule.gated.is_none() || rule.channels().is_multiple_of(4));
    if aligned { ("float4", 4) } else { ("float", 1) }
}

#[derive(Serialize)]
pub(crate) struct DeltaChunksContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a DeltaRule,
    /// Rows at once, and matrices of 8 that they are.
    rows: usize,
    blocks: usize,
    /// Channels of queries, keys and values together, and numbers of a row of inputs.
    channels: usize,
    input_pitch: usize,
    /// Value heads that share a key head.
    group: usize,
    vector: &'static str,
    step: usize,
    /// Channels of keys, filled up to matrices of 8; how many these are; and numbers of a row of them.
    padded: usize,
    matrices: usize,
    pitch: usize,
    /// Threads that stage a row, what each of them loads, and the lanes that add squares up.
    row_threads: usize,
    each: usize,
    distances: Vec<usize>,
    simdgroups: usize,
    threads: usize,
    /// Channels of values of a threadgroup, and threadgroups of a head.
    channels_of_group: usize,
    groups: usize,
}

impl<'a> DeltaChunksContext<'a> {
    pub(crate) fn of(base: Base<'a>, chunks: &'a DeltaChunks) -> DeltaChunksContext<'a> {
        let (spec, rows, simdgroups) = (&chunks.rule, chunks.rows, chunks.simdgroups());
        let (vector, step) = loaded(spec);
        let padded = spec.keys.next_multiple_of(8);
        let row_threads = 32 * simdgroups / rows;
        DeltaChunksContext {
            base,
            spec,
            rows,
            blocks: rows / 8,
            channels: spec.channels(),
            input_pitch: spec.inputs(),
            group: spec.heads / spec.key_heads,
            vector,
            step,
            padded,
            matrices: padded / 8,
            pitch: padded + 4,
            row_threads,
            each: (padded / step).div_ceil(row_threads),
            distances: distances(1, row_threads),
            simdgroups,
            threads: 32 * simdgroups,
            channels_of_group: 16 * simdgroups,
            groups: chunks.groups(),
        }
    }
}

#[derive(Serialize)]
pub(crate) struct LetThroughContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a GatedRmsNorm,
    values_float: f32,
    /// Numbers of a head that a lane has, and whether some have fewer.
    each: usize,
    guarded: bool,
    simdgroups: usize,
    threads: usize,
}

impl<'a> LetThroughContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a GatedRmsNorm) -> LetThroughContext<'a> {
        let simdgroups = spec.heads.min(8);
        LetThroughContext {
            base,
            spec,
            values_float: spec.values as f32,
            each: spec.values.div_ceil(32),
            guarded: !spec.values.is_multiple_of(32),
            simdgroups,
            threads: 32 * simdgroups,
        }
    }
}
