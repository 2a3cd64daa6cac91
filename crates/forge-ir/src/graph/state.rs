//! State that a slot keeps between rows, and its size.

use crate::graph::draft::{Body, ParamId, ParamKind};
use serde::Serialize;

/// State that a slot keeps between rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// KV cache: keys and values of every position.
    Cache(Cache),
    /// MLA cache: latents and rope keys of every position.
    Latents(LatentCache),
    /// Conv state: the last inputs of a convolution.
    Conv(ConvState),
    /// Recurrent state of a delta rule, of a fixed size.
    Recurrent(RecurrentState),
}

/// The KV cache of one layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// Key and value heads.
    pub heads: usize,
    /// Channels of a head.
    pub width: usize,
}

/// The MLA cache of one layer, shared by all heads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LatentCache {
    /// Channels of a latent (`kv_lora_rank`).
    pub width: usize,
    /// Channels of a rope key (`qk_rope_head_dim`).
    pub rope_width: usize,
}

/// The last inputs of a causal convolution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConvState {
    /// Kernel size minus 1.
    pub rows: usize,
    /// Channels of a row.
    pub width: usize,
}

/// The recurrent state of one layer: per head a matrix with a row per key channel and a column per value
/// channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecurrentState {
    /// Value heads.
    pub heads: usize,
    /// Channels of a key.
    pub keys: usize,
    /// Channels of a value.
    pub values: usize,
}

impl Body {
    fn state(&self, param: ParamId) -> Option<&State> {
        match &self.params.get(param.0)?.kind {
            ParamKind::State(state) => Some(state),
            _ => None,
        }
    }

    /// The KV cache of a parameter, if it is one.
    pub fn cache(&self, param: ParamId) -> Option<&Cache> {
        if let State::Cache(cache) = self.state(param)? { Some(cache) } else { None }
    }

    /// The MLA cache of a parameter, if it is one.
    pub fn latents(&self, param: ParamId) -> Option<&LatentCache> {
        if let State::Latents(latents) = self.state(param)? { Some(latents) } else { None }
    }

    /// The conv state of a parameter, if it is one.
    pub fn conv_state(&self, param: ParamId) -> Option<&ConvState> {
        if let State::Conv(conv_state) = self.state(param)? { Some(conv_state) } else { None }
    }

    /// The recurrent state of a parameter, if it is one.
    pub fn recurrent_state(&self, param: ParamId) -> Option<&RecurrentState> {
        if let State::Recurrent(recurrent_state) = self.state(param)? { Some(recurrent_state) } else { None }
    }
}
