//! An architecture's defaults for absent configuration keys.

use crate::config::section::Section;
use crate::layers::rope_scaling::Kinds;
use forge_ir::{Activation, Pairing};

/// An architecture's defaults for absent configuration keys.
pub(crate) struct Defaults {
    /// `max_position_embeddings`
    pub(crate) context: usize,
    /// `vocab_size` and `num_attention_heads`; none: both are required.
    pub(crate) sizes: Option<[usize; 2]>,
    /// Key of the norms' epsilon, and its default.
    pub(crate) epsilon: (&'static str, f64),
    /// `rope_theta`
    pub(crate) theta: f64,
    /// `tie_word_embeddings`
    pub(crate) tied: bool,
    /// `num_key_value_heads`; none: equal to the number of query heads.
    pub(crate) key_heads: Option<usize>,
    /// `head_dim`; none: the hidden size divided by the number of heads.
    pub(crate) width: Option<usize>,
    /// Key of the MLP's intermediate size; if all layers have experts, that of the shared expert.
    pub(crate) inner: &'static str,
    /// Key of the activation, and its default.
    pub(crate) activation: (&'static str, Activation),
    /// `partial_rotary_factor`; none: whole heads rotate, and the key must be absent or 1.
    pub(crate) partial: Option<f64>,
    /// RoPE pairing.
    pub(crate) pairing: Pairing,
    /// Supported RoPE scaling types.
    pub(crate) scaling: Kinds,
}

impl Defaults {
    /// Defaults of most architectures.
    pub(crate) const COMMON: Defaults = Defaults {
        context: 2048,
        sizes: None,
        epsilon: ("rms_norm_eps", 1e-6),
        theta: 1e4,
        tied: false,
        key_heads: None,
        width: None,
        inner: "intermediate_size",
        activation: ("hidden_act", Activation::Silu),
        partial: None,
        pairing: Pairing::Half,
        scaling: Kinds::Usual,
    };
}

/// A positive integer, required unless there is a default.
pub(crate) fn count(config: &Section<'_>, key: &str, default: Option<usize>) -> usize {
    default.map_or_else(|| config.count(key), |default| config.count_or(key, default))
}
