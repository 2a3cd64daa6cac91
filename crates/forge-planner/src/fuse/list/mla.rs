//! MLA operations: append to the latent cache, and attention over it. A cache line is a latent and a RoPE
//! key.

use forge_ir::ParamId;
use forge_ops::RopeParameters;

/// Per-head linear: each head's matrix times its part of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PerHeadLinear {
    /// The matrices, stacked along rows.
    pub(crate) weight: ParamId,
    /// Number of heads.
    pub(crate) heads: usize,
    /// Whether the matrices are applied transposed.
    pub(crate) transposed: bool,
}

/// Appends latents and RoPE keys to the MLA cache. Without `prepare` its inputs are both, and it has no
/// output. With `prepare` its inputs are unrotated queries, unnormalized latents and unrotated keys; its
/// output is the rotated queries.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MlaAppend {
    /// The cache.
    pub(crate) cache: ParamId,
    /// Norm and RoPE that it performs first.
    pub(crate) prepare: Option<MlaPrepare>,
}

/// Norm of latents, and RoPE of queries and keys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MlaPrepare {
    /// Number of query heads.
    pub(crate) heads: usize,
    /// Gain of the norm.
    pub(crate) gain: ParamId,
    /// Added to the mean of squares.
    pub(crate) epsilon: f32,
    /// RoPE of queries and keys.
    pub(crate) rope: RopeParameters,
}

/// Attention over an MLA cache that already contains the rows' own lines. Its inputs are queries and RoPE
/// queries. With a prologue they are queries and the inputs of the append that it performs first.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MlaAttention {
    /// Number of heads.
    pub(crate) heads: usize,
    /// Factor of the scores.
    pub(crate) scale: f32,
    /// The MLA cache.
    pub(crate) cache: ParamId,
    /// Norm, RoPE and append of its own row, run first.
    pub(crate) prologue: Option<MlaPrepare>,
}
