//! Selection of token ids from logits.

use serde::Serialize;

/// Token id of the largest logit of each row.
///
/// Scalars: rows. Buffers: logits, ids. Grid: rows. Ties go to the lowest id; NaN never wins.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Argmax {
    /// Logits of a row.
    pub vocabulary: usize,
}

/// A sampled token id of each row.
///
/// Scalars: rows. Buffers: logits, draws, ids. Grid: rows. A row of `draws` contains the words of the
/// runtime's `DeviceSampling`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Logits of a row.
    pub vocabulary: usize,
}

/// Argmax of the candidates that a linear layer wrote.
///
/// Scalars: rows. Buffers: candidates, ids. Grid: rows. Ties go to the lowest id; key 0 is NaN.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ArgmaxCombine {
    /// Candidates of a row.
    pub candidates: usize,
}
