//! What a slot remembers between rows, and how much of it there is.

use crate::graph::{Body, ParamId, ParamKind};
use serde::Serialize;

/// What a slot remembers between rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Keys and values, for every position so far.
    Cache(Cache),
    /// What keys and values of all heads are made of, for every position so far.
    Latents(LatentCache),
    /// What a convolution has read, for the last positions.
    Tail(ConvState),
    /// What a delta rule has learnt of all positions so far: their number does not change its size.
    Memory(RecurrentState),
}

/// The keys and values of one layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// Key and value heads.
    pub heads: usize,
    /// Width of a head.
    pub width: usize,
}

/// What all heads of one layer share of a position.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LatentCache {
    /// Channels of a latent, of which every head makes a key and a value of its own.
    pub width: usize,
    /// Channels of the key that tells of the position.
    pub turned: usize,
}

/// The last rows that a convolution has read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConvState {
    /// As many as a result is made of, less the row's own.
    pub rows: usize,
    /// Channels of a row.
    pub width: usize,
}

/// A matrix for every head, of a row for each channel of its keys and a column for each channel of its values.
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

    /// The cache that a parameter stands for, if it does.
    pub fn cache(&self, param: ParamId) -> Option<&Cache> {
        if let State::Cache(cache) = self.state(param)? { Some(cache) } else { None }
    }

    /// The latents that a parameter stands for, if it does.
    pub fn latents(&self, param: ParamId) -> Option<&LatentCache> {
        if let State::Latents(latents) = self.state(param)? { Some(latents) } else { None }
    }

    /// The tail that a parameter stands for, if it does.
    pub fn tail(&self, param: ParamId) -> Option<&ConvState> {
        if let State::Tail(tail) = self.state(param)? { Some(tail) } else { None }
    }

    /// The memory that a parameter stands for, if it does.
    pub fn memory(&self, param: ParamId) -> Option<&RecurrentState> {
        if let State::Memory(memory) = self.state(param)? { Some(memory) } else { None }
    }
}
