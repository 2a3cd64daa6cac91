//! Specs of recurrent layers: causal convolutions and delta rules.

use crate::context::DEFAULT_MEMORY;
use forge_ir::Activation;
use serde::Serialize;

/// See [`crate::spec::Spec::Convolve`]. Scalars: rows. Buffers: x, taps, slots, positions, tail, y. Grid: all
/// channels in groups of 128 threads.
///
/// x is the first channels of wider rows. `taps` is `[channel, tap]`; the last tap is for the current row.
/// `tail`, the conv state, is a ring, `[slot, taps, channel]`: the value at position p is stored at p % taps.
/// Values before position 0 are zeros, whatever the ring contains.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CausalConv {
    /// Channels of a row.
    pub width: usize,
    /// Rows that a result depends on.
    pub taps: usize,
    /// Row stride of x in elements.
    pub pitch: usize,
    /// Activation of each result.
    pub activation: Option<Activation>,
}

/// See [`crate::spec::Spec::DeltaRule`]. Scalars: rows. Buffers: query, key, value, time, strength, rate, bias,
/// slots, positions, memory, heads. Grid: value heads.
///
/// With gates, buffers: convolved, inputs, rate, bias, gain, slots, positions, memory, heads. `convolved` has
/// the queries, keys and values of a row; `inputs` has their projections, then gates, beta logits
/// (`strength`) and dt (`time`). Beta is the sigmoid of its logit. Heads are normalized, and multiplied by
/// the gain and by SiLU of the gates.
///
/// `memory`, the recurrent state, is `[slot, value head, value channel, key channel]`. A row at position 0
/// reads zeros, whatever it contains.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeltaRule {
    /// Number of query heads, and of key heads.
    pub key_heads: usize,
    /// Number of value heads.
    pub heads: usize,
    /// Channels of a query or a key.
    pub keys: usize,
    /// Channels of a value.
    pub values: usize,
    /// Factor of the read-out.
    pub scale: f32,
    /// Added to the sum of squares of a query or a key.
    pub epsilon: f32,
    /// With gates: added to the mean of squares of a head.
    pub gated: Option<f32>,
}

impl DeltaRule {
    /// Channels of queries, keys and values together.
    pub const fn channels(&self) -> usize {
        2 * self.key_heads * self.keys + self.heads * self.values
    }

    /// Elements of a row of inputs: queries, keys, values, gates, beta logits and dt.
    pub const fn inputs(&self) -> usize {
        self.channels() + self.heads * self.values + 2 * self.heads
    }
}

/// See [`crate::spec::Spec::DeltaChunks`]. Scalars: rows. Buffers: those of [`DeltaRule`] without the gain. Grid:
/// value channels in groups of 32, or 16 if there are no more; value heads.
///
/// If the rule has gates, heads are written without the gated norm, which [`GatedRmsNorm`] applies.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeltaChunks {
    /// The delta rule.
    pub rule: DeltaRule,
    /// Rows of a slot per chunk.
    pub rows: usize,
}

impl DeltaChunks {
    /// The largest chunk that fits in threadgroup memory; `None` if 8 rows do not fit.
    pub fn of(rule: DeltaRule) -> Option<DeltaChunks> {
        let fits = |rows: &usize| DeltaChunks { rows: *rows, rule: rule.clone() }.bytes() <= DEFAULT_MEMORY;
        let rows = [32, 16, 8].into_iter().find(fits)?;
        Some(DeltaChunks { rule, rows })
    }

    /// Threadgroup memory in bytes: queries and keys, their dot products, and four numbers per row.
    pub const fn bytes(&self) -> usize {
        4 * self.rows * (2 * (self.rule.keys.next_multiple_of(8) + 4) + 2 * (self.rows + 4) + 4)
    }

    /// Simdgroups per threadgroup, each with 16 value channels.
    pub const fn simdgroups(&self) -> usize {
        if self.rule.values > 16 { 2 } else { 1 }
    }

    /// Threadgroups per head.
    pub const fn groups(&self) -> usize {
        self.rule.values.div_ceil(16 * self.simdgroups())
    }
}

/// See [`crate::spec::Spec::LetThrough`]. Scalars: rows. Buffers: inputs, gain, heads. Grid: rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GatedRmsNorm {
    /// Number of value heads.
    pub heads: usize,
    /// Channels of a value.
    pub values: usize,
    /// Row stride of inputs in elements.
    pub pitch: usize,
    /// Column of the first gate.
    pub first: usize,
    /// Added to the mean of squares of a head.
    pub epsilon: f32,
}

/// See [`crate::spec::Spec::DeltaStep`]. Scalars: rows. Buffers: inputs, taps, rate, bias, gain, slots, positions,
/// tail, memory, heads. Grid: value heads, rows.
///
/// All rows belong to different slots. Queries, keys and values of `inputs` are convolved as in
/// [`CausalConv`], with SiLU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeltaStep {
    /// The delta rule, with gates.
    pub rule: DeltaRule,
    /// Taps of the convolution.
    pub taps: usize,
}
