//! Attention over latents as operations: what goes to the cache, and attention over what is there. A line of the cache is a
//! latent and a turned key.

use forge_ir::{ParamId, Rotation};

/// Every head's own matrix times its part of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct EachHead {
    /// The matrices, one below the other.
    pub(crate) weight: ParamId,
    /// Heads.
    pub(crate) heads: usize,
    /// Whether rows are taken for columns.
    pub(crate) turned: bool,
}

/// Latents and turned keys to the cache. Its inputs are both, and its output is nothing; with something to prepare they are
/// turned queries, latents and turned keys before anything was done to them, and its output is the queries, turned.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LatentAppend {
    /// Where they go.
    pub(crate) cache: ParamId,
    /// What is done before.
    pub(crate) prepare: Option<LatentPrepare>,
}

/// The norm of latents, and the rotation of queries and keys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LatentPrepare {
    /// Heads of queries.
    pub(crate) heads: usize,
    /// Multiplies what is normed.
    pub(crate) gain: ParamId,
    /// Added to the mean of squares.
    pub(crate) epsilon: f32,
    /// Of queries and keys.
    pub(crate) rotation: Rotation,
}

/// Attention over a cache that holds the rows' own lines already. Its inputs are queries and turned queries; with a prologue,
/// queries, and the inputs of the append that it does first.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LatentAttend {
    /// Heads.
    pub(crate) heads: usize,
    /// Multiplies scores.
    pub(crate) scale: f32,
    /// Where latents and turned keys are.
    pub(crate) cache: ParamId,
    /// What it does to its row first.
    pub(crate) prologue: Option<LatentPrepare>,
}
