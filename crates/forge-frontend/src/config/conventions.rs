//! Differences in tensor layout.

/// How a checkpoint's tensors differ from Hugging Face's layout. By default nothing differs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conventions {
    /// Rows of queries and keys are ordered for interleaved RoPE pairs.
    pub(crate) neighbours_turn: bool,
    /// Gains are stored in full, not minus 1.
    pub(crate) whole_gains: bool,
    /// Matrices have one row per output even if the architecture's are transposed.
    pub(crate) rows_are_outputs: bool,
}
