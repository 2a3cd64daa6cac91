//! Norms.

use serde::Serialize;

/// Outputs of the producer of a row for the deferred norm that reads it.
///
/// A norm is `gain · x / rms(x)`. It divides the whole row by one number, so `W (gain · x / rms) = (W (gain ·
/// x)) / rms`. The producer of x also writes `gained = gain · x` and the sum of squares of its part of x. The
/// projection that reads `gained` divides its results at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Squares {
    /// Number of partial sums of squares in `squares`: `[partials]`. All are written; unused ones are 0.
    pub partials: usize,
    /// Whether `gained` is written. If gains are folded into weights, the reader uses x itself.
    pub gain: bool,
}

/// RMSNorm of each row.
///
/// Scalars: rows. Buffers: x, \[gain,\] \[wanted,\] y. Grid: parts, rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RmsNorm {
    /// Elements of a part.
    pub width: usize,
    /// Equal parts of a row, normalized separately with the same gain: 1, or the heads of a per-head norm.
    pub parts: usize,
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// Whether the result is multiplied by a gain (f32, `[width]`).
    pub gain: bool,
    /// Whether row i of y is the norm of row `wanted[i]` of x.
    pub gather: bool,
    /// Row stride of x in elements, if the input is the first columns of wider rows.
    pub pitch: Option<usize>,
}

/// RMSNorm of each row, added to another row.
///
/// Scalars: rows. Buffers: x, \[norm_gain,\] \[factor,\] \[gain,\] stream (updated in place) \[, gained\] \[,
/// squares_out\]. Grid: rows.
///
/// The norm of a branch is added to the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct NormAdd {
    /// Elements of a row.
    pub width: usize,
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// Whether the normalized row is multiplied by a gain (f32, `[width]`).
    pub gain: bool,
    /// Whether the sum is multiplied by a scalar (f32, `[1]`).
    pub factor: bool,
    /// Outputs for a deferred norm of the sum, if one follows.
    pub squares: Option<Squares>,
}

/// LayerNorm of each row.
///
/// Scalars: rows. Buffers: x, gain, \[bias,\] \[wanted,\] y. Grid: rows.
///
/// The mean is subtracted, and the result is divided by the standard deviation and multiplied by the gain.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LayerNorm {
    /// Elements of a row.
    pub width: usize,
    /// Added to the variance.
    pub epsilon: f32,
    /// Whether a bias (f32, `[width]`) is added.
    pub bias: bool,
    /// Whether row i of y is the norm of row `wanted[i]` of x.
    pub gather: bool,
}
