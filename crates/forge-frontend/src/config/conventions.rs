//! Differences between a checkpoint's tensors and Hugging Face's layout.

/// Ways in which a checkpoint's tensors differ from Hugging Face's layout. By default nothing differs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conventions {
    /// RoPE pairs are adjacent rows of Q and K (interleaved), not rows half a head apart.
    pub(crate) interleaved_rope: bool,
    /// Norm weights are stored as the full multiplier, not as the multiplier minus 1.
    pub(crate) gains_include_one: bool,
    /// Matrices have one row per output even if the architecture's own are transposed (GPT-2's `Conv1D`).
    pub(crate) rows_are_outputs: bool,
    /// Adjacent value heads of Gated DeltaNet belong to different key heads: head h to key head h modulo their
    /// number, not to h divided by the value heads of a key head.
    pub(crate) tiled_value_heads: bool,
}
