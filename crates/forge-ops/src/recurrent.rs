//! Recurrent layers: causal convolutions and delta rules.

use crate::activation::Activation;
use serde::Serialize;

/// Causal depthwise convolution.
///
/// Scalars: rows. Buffers: x, taps, slots, positions, conv_state, y. Grid: all channels in groups of 128
/// threads.
///
/// x is the first channels of wider rows. `taps` is `[channel, tap]`; the last tap is for the current row.
/// `conv_state` is a ring, `[slot, taps, channel]`: the value at position p is stored at p %
/// taps. Values before position 0 are zeros, whatever the ring contains.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
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

/// Gated delta rule: updates the recurrent state and reads it out.
///
/// Scalars: rows. Buffers: query, key, value, dt, beta, a_log, dt_bias, slots, positions, recurrent_state,
/// heads. Grid: value heads.
///
/// With gates, buffers: convolved, inputs, a_log, dt_bias, gain, slots, positions, recurrent_state, heads.
/// `convolved` has the queries, keys and values of a row; `inputs` has their projections, then gates, beta
/// logits and dt. Beta is the sigmoid of its logit. Heads are normalized, and multiplied by the gain and by
/// SiLU of the gates.
///
/// `recurrent_state` is `[slot, value head, value channel, key channel]`. A row at
/// position 0 reads zeros, whatever it contains.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
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

    /// Offsets of a value head's query, key and value in a row of channels.
    pub const fn head_offsets(&self, head: usize) -> [usize; 3] {
        let key = head / (self.heads / self.key_heads) * self.keys;
        let keys = self.key_heads * self.keys;
        [key, keys + key, 2 * keys + head * self.values]
    }

    /// Elements of a row of inputs: queries, keys, values, gates, beta logits and dt.
    pub const fn inputs(&self) -> usize {
        self.channels() + self.heads * self.values + 2 * self.heads
    }
}

/// RMSNorm of each head, multiplied by SiLU of the gates.
///
/// Scalars: rows. Buffers: inputs, gain, heads. Grid: rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
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

/// Delta rule of one row, including the convolutions.
///
/// Scalars: rows. Buffers: inputs, taps, a_log, dt_bias, gain, slots, positions, conv_state, recurrent_state,
/// heads. Grid: value heads, rows.
///
/// All rows belong to different slots. Queries, keys and values of `inputs` are convolved as in
/// [`CausalConv`], with SiLU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DeltaStep {
    /// The delta rule, with gates.
    pub rule: DeltaRule,
    /// Taps of the convolution.
    pub taps: usize,
}

/// Chunked delta rule for many rows, by matrix products, without the gated norm.
///
/// Scalars: rows. Buffers: those of [`DeltaRule`] without the gain. Grid: value channels in groups of 32, or
/// 16 if there are no more; value heads.
///
/// If the rule has gates, heads are written without the gated norm, which [`GatedRmsNorm`] applies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DeltaChunks {
    /// The delta rule.
    pub rule: DeltaRule,
}
