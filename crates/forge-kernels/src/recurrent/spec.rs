//! What layers with memories do: convolutions of a row with those before it, and delta rules.

use crate::context::DEFAULT_MEMORY;
use forge_ir::Activation;
use serde::Serialize;

/// See [`crate::spec::Spec::Convolve`]. Scalars: rows. Buffers: x, taps, slots, positions, tail, y. Grid: by 128 threads over all channels.
///
/// x is the first channels of wider rows. `taps` is `[channel, tap]`, the last tap being for the row's own value. `tail` is a
/// ring, `[slot, taps, channel]`: what the row at position p had lies at p % taps. Before position 0 there are zeros, whatever
/// the ring holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CausalConv {
    /// Channels of a row.
    pub width: usize,
    /// Rows that a result is made of.
    pub taps: usize,
    /// Numbers from one row of x to the next.
    pub pitch: usize,
    /// What each result becomes.
    pub activation: Option<Activation>,
}

/// See [`crate::spec::Spec::DeltaRule`]. Scalars: rows. Buffers: query, key, value, time, strength, rate, bias, slots, positions, memory,
/// heads. Grid: value heads.
///
/// With gates, buffers: convolved, inputs, rate, bias, gain, slots, positions, memory, heads. `convolved` has queries, keys and
/// values of a row side by side; `inputs` what they were made of, then gates, strengths and times. Of strengths the sigmoid is
/// taken; heads are normed, and multiplied by the gain and by silu of the gates.
///
/// `memory` is `[slot, value head, value channel, key channel]`. A row at position 0 finds zeros, whatever it holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeltaRule {
    /// Query heads, and key heads.
    pub key_heads: usize,
    /// Value heads.
    pub heads: usize,
    /// Channels of a query or a key.
    pub keys: usize,
    /// Channels of a value.
    pub values: usize,
    /// Multiplies what a memory says.
    pub scale: f32,
    /// Added to the sum of squares of a query or a key.
    pub epsilon: f32,
    /// Where there are gates: added to the mean of squares of a head.
    pub gated: Option<f32>,
}

impl DeltaRule {
    /// Channels of queries, keys and values together.
    pub const fn channels(&self) -> usize {
        2 * self.key_heads * self.keys + self.heads * self.values
    }

    /// Numbers of a row of inputs: those, gates, strengths and times.
    pub const fn inputs(&self) -> usize {
        self.channels() + self.heads * self.values + 2 * self.heads
    }
}

/// See [`crate::spec::Spec::DeltaChunks`]. Scalars: rows. Buffers: those of [`DeltaRule`], but for the gain. Grid: by 32 channels of a value, or by
/// 16 where there are no more; value heads.
///
/// Where the rule has gates, heads are left as memories say them: [`LetThrough`] does what is left to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeltaChunks {
    /// What is computed.
    pub rule: DeltaRule,
    /// Rows of a slot that are taken at once.
    pub rows: usize,
}

impl DeltaChunks {
    /// In as many rows at once as threadgroup memory has room for; none where it has no room for 8.
    pub fn of(rule: DeltaRule) -> Option<DeltaChunks> {
        let fits = |rows: &usize| DeltaChunks { rows: *rows, rule: rule.clone() }.bytes() <= DEFAULT_MEMORY;
        let rows = [32, 16, 8].into_iter().find(fits)?;
        Some(DeltaChunks { rule, rows })
    }

    /// Bytes of threadgroup memory: queries and keys, how alike they are, and four numbers of each row.
    pub const fn bytes(&self) -> usize {
        4 * self.rows * (2 * (self.rule.keys.next_multiple_of(8) + 4) + 2 * (self.rows + 4) + 4)
    }

    /// Simdgroups of a threadgroup, each with 16 channels of values.
    pub const fn simdgroups(&self) -> usize {
        if self.rule.values > 16 { 2 } else { 1 }
    }

    /// Threadgroups of a head.
    pub const fn groups(&self) -> usize {
        self.rule.values.div_ceil(16 * self.simdgroups())
    }
}

/// See [`crate::spec::Spec::LetThrough`]. Scalars: rows. Buffers: inputs, gain, heads. Grid: rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GatedRmsNorm {
    /// Value heads.
    pub heads: usize,
    /// Channels of a value.
    pub values: usize,
    /// Numbers from one row of inputs to the next.
    pub pitch: usize,
    /// The first of a row's gates.
    pub first: usize,
    /// Added to the mean of squares of a head.
    pub epsilon: f32,
}

/// See [`crate::spec::Spec::DeltaStep`]. Scalars: rows. Buffers: inputs, taps, rate, bias, gain, slots, positions, tail, memory, heads. Grid: value
/// heads, rows.
///
/// Rows have slots of their own. Queries, keys and values of `inputs` are convolved as in [`Convolve`], and activated by silu.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeltaStep {
    /// With gates.
    pub rule: DeltaRule,
    /// Rows that a result of the convolution is made of.
    pub taps: usize,
}
