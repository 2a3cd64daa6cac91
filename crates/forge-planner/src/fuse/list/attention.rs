//! Attention as operations: what prepares queries and keys, and attention over what is in the cache.

use crate::fuse::list::KvSource;
use forge_ir::{ParamId, Rotation};

/// How queries and keys are prepared before they meet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RotateAppend {
    /// Query heads.
    pub(crate) query_heads: usize,
    /// What there is beside queries.
    pub(crate) brings: KvSource,
    /// The norm of heads.
    pub(crate) norm: Option<HeadNorm>,
    /// Of queries and keys.
    pub(crate) rotation: Rotation,
    /// Where keys and values go.
    pub(crate) cache: ParamId,
}

/// The norm of heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HeadNorm {
    /// Of query heads.
    pub(crate) query_gain: ParamId,
    /// Of key heads, where there are any.
    pub(crate) key_gain: Option<ParamId>,
    /// Added to the mean of squares.
    pub(crate) epsilon: f32,
    /// Whether it is of heads that have been turned.
    pub(crate) turned: bool,
    /// Whether value heads are normed, too, without a gain.
    pub(crate) values: bool,
}

/// Attention.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Attend {
    /// Query heads.
    pub(crate) query_heads: usize,
    /// Multiplies q·k.
    pub(crate) scale: f32,
    /// Positions that a row sees.
    pub(crate) window: Option<usize>,
    /// What scores are capped to.
    pub(crate) softcap: Option<f32>,
    /// One more score of each head, of nothing.
    pub(crate) sinks: Option<ParamId>,
    /// Whether what it gives is multiplied by sigmoids of gates, which its last input ends in.
    pub(crate) gated: bool,
    /// Where keys and values are.
    pub(crate) cache: ParamId,
    /// What it does to its row first.
    pub(crate) prologue: Option<RotateAppend>,
}
