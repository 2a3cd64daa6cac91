//! Linear layers: a matrix times rows.

use crate::activation::{Gating, UnaryOp};
use crate::format::{BLOCK, Format};
use crate::norm::Squares;
use serde::Serialize;

/// Epilogue for the result v of output o of row r.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Epilogue {
    /// `y[r][o] = v`
    Store,
    /// `y[r][o] += v`
    Add,
    /// Outputs alternate gate and up: `y[r][o / 2]` is their gating.
    Gate(Gating),
    /// `y[r][o] += v`, with outputs for a deferred norm of y. For decode.
    AddSquares(Squares),
    /// `y[r][o] = v * factors[r][first + o]`: columns of rows of factors, from the scalar `first` on. For decode.
    Multiply {
        /// Elements of a row of factors.
        of: usize,
    },
    /// `y[r][o] = v`, and the argmax of each partition of the outputs in `candidates`: `[row, candidates, 2]`,
    /// an order-preserving key of the value and the lowest output with that value. Unused ones have key 0. For
    /// decode.
    Best {
        /// Partitions of the outputs: the threadgroups of the GPU kernel.
        candidates: usize,
    },
}

impl Epilogue {
    /// Number of results per element of y: 2 for gate and up.
    pub const fn results_per_output(&self) -> usize {
        if matches!(self, Epilogue::Gate(_)) { 2 } else { 1 }
    }
}

/// Deferred norm of the input: x is already multiplied by the gain, and v is divided by `sqrt(sum(squares) /
/// inputs + epsilon)` before the bias is added. For decode.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DeferredNorm {
    /// Elements of a row of `squares`.
    pub partials: usize,
    /// Added to the mean of squares.
    pub epsilon: f32,
}

/// Norm of the input, computed by the projection: x is multiplied by the optional gain as it is loaded, and v
/// is divided by `sqrt(mean(x²) + epsilon)` before the bias is added. For decode.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct InlineNorm {
    /// Whether there is a gain (f32, `[inputs]`).
    pub gain: bool,
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// Row stride of x in elements, if x is the first columns of wider rows.
    pub pitch: Option<usize>,
}

/// y = W x, with optional norm, bias and epilogue.
///
/// Scalars: rows. Buffers: weight planes, \[bias,\] x, \[x_gain,\] \[squares,\] y\[, gain, gained,
/// squares_out\] \[, candidates\]. Kernels for quantized rows of x (see [`Quantize`]) have quantized_x and
/// \[squares_of_x\] instead of x and \[x_gain\].
///
/// v is W x, then deferred norm, bias, unary function and epilogue, in this order. `gain` and `gained` exist
/// if [`Squares::gain`] is set. A deferred norm reads `squares`; an epilogue with squares writes
/// `squares_out`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Linear {
    /// Format of the weight.
    pub format: Format,
    /// Rows of the weight; with [`Epilogue::Gate`], twice the width of y.
    pub outputs: usize,
    /// Columns of the weight, and the width of x.
    pub inputs: usize,
    /// Deferred norm of x, if any.
    pub norm: Option<DeferredNorm>,
    /// Norm of x computed by this projection, if any. Excludes a deferred norm.
    pub own_norm: Option<InlineNorm>,
    /// Whether a bias (f32, `[outputs]`) is added.
    pub bias: bool,
    /// Unary function of v, before the epilogue.
    pub unary: Option<UnaryOp>,
    /// Epilogue.
    pub epilogue: Epilogue,
    /// Whether the result selects experts. Its order matters, so the CPU does not quantize x.
    pub chooses: bool,
}

/// 16-bit codes of rows of x, for integer MMA: blocks of 32 columns have a power of two as scale.
///
/// Scalars: rows. Buffers: x, \[x_gain,\] quantized_x\[, squares_of_x\]. Grid: `ceil(rows / 4)`, `ceil(width /
/// 256)`, or one threadgroup for each four rows with squares.
///
/// The codes of four rows are interleaved. CPU kernels quantize x themselves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quantize {
    /// Columns of x.
    pub width: usize,
    /// Whether x is first multiplied by a gain (f32, `[width]`).
    pub gain: bool,
    /// Parts of the columns whose squares are summed, for an inline norm; 0 for none.
    pub parts: usize,
    /// Row stride of x in elements, if x is the first columns of wider rows.
    pub pitch: Option<usize>,
}

impl Quantize {
    /// Packets of 16 bytes for four rows of 128 columns: their codes, then scales and sums by block.
    pub const QUAD_PACKETS: usize = 64 + 4 + 4;

    /// 32-bit words of a row, if there are a multiple of four rows.
    pub const fn row_words(width: usize) -> usize {
        width.div_ceil(4 * BLOCK) * Quantize::QUAD_PACKETS
    }
}
