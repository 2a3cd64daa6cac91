//! Template contexts of convolutions and delta rules.

use crate::attention::context::distances;
use crate::context::Base;
use crate::norm::context::UnaryText;
use crate::spec::DeltaChunksKernel;
use forge_ops::{CausalConv, DeltaRule, DeltaStep, GatedRmsNorm, UnaryOp};
use serde::Serialize;

#[derive(Serialize)]
pub(crate) struct ConvolveContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a CausalConv,
    /// The written expression, in terms of `sum`.
    result: String,
    threads: usize,
}

impl<'a> ConvolveContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a CausalConv) -> ConvolveContext<'a> {
        let applied = spec.activation.map(|activation| UnaryText::of(UnaryOp::Activate(activation)));
        let result = match applied {
            Some(UnaryText { before, after }) => format!("{before}sum{after}"),
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
    /// Taps of the convolution; 0 if another kernel computes it.
    taps: usize,
    /// Channels of queries, keys and values together, and elements of an input row.
    channels: usize,
    pitch: usize,
    /// Value heads per key head.
    group: usize,
    /// Type that a lane loads at once, and its number of elements.
    vector: &'static str,
    step: usize,
    /// Loads per lane.
    chunks: usize,
    /// Whether some lanes have fewer.
    guarded: bool,
    /// Loads of a head's query, key and value.
    convolved: usize,
    values_float: f32,
    threads: usize,
    simdgroups: usize,
    /// Whether there are more threads than lanes of columns.
    padded: bool,
}

/// Lanes per column of the recurrent state.
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

/// Type that is loaded at once of queries and keys. Rows of adjacent channels have to be aligned to it.
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
    /// Rows of a chunk, and 8-row matrices in it.
    rows: usize,
    blocks: usize,
    /// Channels of queries, keys and values together, and elements of an input row.
    channels: usize,
    input_pitch: usize,
    /// Value heads per key head.
    group: usize,
    vector: &'static str,
    step: usize,
    /// Key channels rounded up to whole matrices; number of matrices; and stride of a row in elements.
    padded: usize,
    matrices: usize,
    pitch: usize,
    /// Threads that stage a row, loads of each, and shuffle distances for the sum of squares.
    row_threads: usize,
    each: usize,
    distances: Vec<usize>,
    simdgroups: usize,
    threads: usize,
    /// Value channels per threadgroup, and threadgroups per head.
    channels_of_group: usize,
    groups: usize,
}

impl<'a> DeltaChunksContext<'a> {
    pub(crate) fn of(base: Base<'a>, chunks: &'a DeltaChunksKernel) -> DeltaChunksContext<'a> {
        let (spec, rows, simdgroups) = (&chunks.op.rule, chunks.layout.rows, chunks.simdgroups());
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
pub(crate) struct GatedRmsNormContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a GatedRmsNorm,
    values_float: f32,
    /// Elements of a head per lane, and whether some lanes have fewer.
    each: usize,
    guarded: bool,
    simdgroups: usize,
    threads: usize,
}

impl<'a> GatedRmsNormContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a GatedRmsNorm) -> GatedRmsNormContext<'a> {
        let simdgroups = spec.heads.min(8);
        GatedRmsNormContext {
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
