//! Operations of recurrent layers (Gated DeltaNet).

use forge_ir::ParamId;
use forge_ops::Activation;

/// Causal depthwise convolution of the first channels of a value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Convolve {
    /// Convolution weights and conv state of each range of channels. Weights are stored channel by channel.
    pub(crate) parts: Vec<(ParamId, ParamId)>,
    /// Activation of each result.
    pub(crate) activation: Option<Activation>,
}

/// Gated delta rule. Its inputs are queries, keys, values, time steps (dt) and beta. If it is gated, its
/// inputs are the convolved q, k, v side by side, and the projection output that contains gates, beta and dt
/// after q, k, v.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeltaRule {
    /// Decay a_log of each value head (`A_log`).
    pub(crate) a_log: ParamId,
    /// Bias of dt.
    pub(crate) dt_bias: ParamId,
    /// Factor of the read-out.
    pub(crate) scale: f32,
    /// Added to the sum of squares of a query or key.
    pub(crate) epsilon: f32,
    /// The recurrent state.
    pub(crate) recurrent_state: ParamId,
    /// Gated norm of the read-out.
    pub(crate) gated: Option<Gated>,
    /// Convolution of its own row, run first.
    pub(crate) prologue: Option<Convolve>,
}

/// RMSNorm of each head, multiplied by SiLU of the gates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Gated {
    /// Gain of a head.
    pub(crate) gain: ParamId,
    /// Added to the mean of squares.
    pub(crate) epsilon: f32,
}
