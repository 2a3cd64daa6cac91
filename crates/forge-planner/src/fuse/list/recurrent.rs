//! What layers with memories do, as operations.

use forge_ir::{Activation, ParamId};

/// A convolution of the first channels of a value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Convolve {
    /// Of neighbouring channels, all taps of a channel, then those of the next; and where their last rows are.
    pub(crate) parts: Vec<(ParamId, ParamId)>,
    /// What each result becomes.
    pub(crate) activation: Option<Activation>,
}

/// A delta rule. Its inputs are queries, keys, values, times and strengths; where it is gated, the first three convolved, side by
/// side, and what they were made of with gates, strengths and times after it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeltaRule {
    /// Of every value head, how fast it forgets.
    pub(crate) rate: ParamId,
    /// Added to the time.
    pub(crate) bias: ParamId,
    /// Multiplies what a memory says.
    pub(crate) scale: f32,
    /// Added to the sum of squares of a query or key.
    pub(crate) epsilon: f32,
    /// Where the memories are.
    pub(crate) memory: ParamId,
    /// What becomes of what they say.
    pub(crate) gated: Option<Gated>,
    /// The convolution that it does to its row first.
    pub(crate) prologue: Option<Convolve>,
}

/// The norm of heads that are multiplied by silu of gates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Gated {
    /// Of a head.
    pub(crate) gain: ParamId,
    /// Added to the mean of squares.
    pub(crate) epsilon: f32,
}
