//! Norms of rows.

use serde::Serialize;

/// What the producer of a row leaves for the deferred norm that reads it. Made for one row.
///
/// A norm is `gain · x / rms(x)`. The division is by one number for the whole row, and `W (gain · x / rms) =
/// (W (gain · x)) / rms`: whoever writes x writes `gained = gain · x` too, with the sum of squares of its share of x, and
/// the projection that reads `gained` divides its results at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Squares {
    /// Partial sums of squares in `squares`: `[partials]`. All are written, those that no threadgroup has as 0.
    pub partials: usize,
    /// Whether `gained` is written. Where gains are folded into weights the reader takes x itself.
    pub gain: bool,
}

/// See [`crate::spec::Spec::RmsNorm`]. Scalars: rows. Buffers: x, \[gain,\] \[wanted,\] y. Grid: parts, rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RmsNorm {
    /// Of a part.
    pub width: usize,
    /// Equal parts of a row, each normed by itself with the same gain: 1, or the heads of a norm of heads.
    pub parts: usize,
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// Whether the result is multiplied by a gain (f32, `[width]`).
    pub gain: bool,
    /// Whether row i of y is the norm of row `wanted[i]` of x.
    pub gather: bool,
    /// Numbers from one row of x to the next, where what is normed are the first columns of wider rows.
    pub pitch: Option<usize>,
}

/// See [`crate::spec::Spec::NormAdd`]. Scalars: rows. Buffers: x, \[norm_gain,\] \[factor,\] \[gain,\] stream (updated in place)
/// \[, gained\] \[, squares_out\]. Grid: rows.
///
/// What a norm makes of a branch is added to the stream by who norms it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NormAdd {
    /// Of a row.
    pub width: usize,
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// Whether what is added is multiplied by a gain (f32, `[width]`).
    pub gain: bool,
    /// Whether the sum is multiplied by a number (f32, `[1]`).
    pub factor: bool,
    /// What a deferred norm of the sum needs, if one follows. For one row.
    pub squares: Option<Squares>,
}

/// See [`crate::spec::Spec::LayerNorm`]. Scalars: rows. Buffers: x, gain, \[bias,\] \[wanted,\] y. Grid: rows.
///
/// The mean is taken off, what is left divided by the root of its variance, multiplied by the gain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerNorm {
    /// Of a row.
    pub width: usize,
    /// Added to the variance.
    pub epsilon: f32,
    /// Whether a bias (f32, `[width]`) is added.
    pub bias: bool,
    /// Whether row i of y is the norm of row `wanted[i]` of x.
    pub gather: bool,
}
