//! Attention operations: preparation of queries and keys, and attention over the KV cache.

use forge_ir::ParamId;
use forge_ops::{KvSource, RopeParameters};

/// RoPE, optional QK-norm and KV append, before attention.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RopeAppend {
    /// Number of query heads.
    pub(crate) query_heads: usize,
    /// Keys and values of the row, besides the queries.
    pub(crate) kv_source: KvSource,
    /// QK-norm.
    pub(crate) norm: Option<HeadNorm>,
    /// RoPE of queries and keys.
    pub(crate) rope: RopeParameters,
    /// Cache that keys and values are appended to.
    pub(crate) cache: ParamId,
}

/// QK-norm: a norm of each head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HeadNorm {
    /// Gain of query heads.
    pub(crate) query_gain: ParamId,
    /// Gain of key heads, if there are any.
    pub(crate) key_gain: Option<ParamId>,
    /// Added to the mean of squares.
    pub(crate) epsilon: f32,
    /// Whether the norm follows RoPE instead of preceding it.
    pub(crate) after_rope: bool,
    /// Whether value heads are normalized too, without a gain.
    pub(crate) values: bool,
}

/// Attention.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Attend {
    /// Number of query heads.
    pub(crate) query_heads: usize,
    /// Factor of q·k.
    pub(crate) scale: f32,
    /// Sliding window in positions.
    pub(crate) window: Option<usize>,
    /// Softcap of the scores.
    pub(crate) softcap: Option<f32>,
    /// Attention sinks: one additional logit for each head, without a value.
    pub(crate) sinks: Option<ParamId>,
    /// Whether the output is multiplied by the sigmoid of gates, which are the last columns of its last
    /// input.
    pub(crate) gated: bool,
    /// The KV cache.
    pub(crate) cache: ParamId,
    /// RoPE and append of its own row, run first.
    pub(crate) prologue: Option<RopeAppend>,
}
