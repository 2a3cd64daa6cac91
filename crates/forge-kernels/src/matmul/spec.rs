//! Specs of linear layers: a matrix times rows.

use crate::spec::{Squares, UnaryOp};
use forge_ir::{Activation, Bits, Format};
use serde::{Deserialize, Serialize};

/// Batch-size class of a linear kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// One row (GEMV): every weight is used once, straight from memory.
    One,
    /// Small batch, 2 to 16 rows: a weight is dequantized once for all rows.
    Few,
    /// More rows (GEMM): tiles in threadgroup memory, multiplied with MMA.
    Many,
}

/// Epilogue for the result v of output o of row r.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Epilogue {
    /// `y[r][o] = v`
    Store,
    /// `y[r][o] += v`
    Add,
    /// Outputs alternate gate and up: `y[r][o / 2] = activation(gate) * up`
    Gate(Activation),
    /// `y[o] += v`, with outputs for a deferred norm of y. For [`Rows::One`].
    AddSquares(Squares),
    /// `y[o] = v * factors[first + o]`: columns of a row of factors, from the scalar `first` on. For
    /// [`Rows::One`].
    Multiply {
        /// Elements of the row of factors.
        of: usize,
    },
    /// `y[o] = v`, and each threadgroup's argmax in `candidates`: `[threadgroups, 2]`, an order-preserving
    /// key of the value and the lowest output with that value. For [`Rows::One`].
    Best,
}

/// Deferred norm of the input: x is already multiplied by the gain, and v is divided by `sqrt(sum(squares) /
/// inputs + epsilon)` before the bias is added. For [`Rows::One`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DeferredNorm {
    /// Elements of `squares`.
    pub partials: usize,
    /// Added to the mean of squares.
    pub epsilon: f32,
}

/// Norm of the input, computed by the projection: x is multiplied by the optional gain as it is loaded, and v
/// is divided by `sqrt(mean(x²) + epsilon)` before the bias is added. For [`Rows::One`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct InlineNorm {
    /// Whether there is a gain (f32, `[inputs]`).
    pub gain: bool,
    /// Added to the mean of squares.
    pub epsilon: f32,
}

/// Operand type of a tile's products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operand {
    /// f32: exact for any format and any x.
    F32,
    /// f32 for range only: products may be rounded as in f16. For x that may exceed the range of f16.
    Ranged,
    /// f16: half the threadgroup memory. For x within the range of f16.
    F16,
}

/// See [`crate::spec::Spec::Project`]. Scalars: rows. Buffers: weight planes, \[bias,\] x, \[x_gain,\] \[squares,\]
/// y\[, gain, gained, squares_out\] \[, candidates\]. Grid: by knobs; see the kernel's own.
///
/// v is W x, then deferred norm, bias, unary function and epilogue, in this order. `gain` and `gained` exist
/// if [`Squares::gain`] is set. A deferred norm reads `squares`; an epilogue with squares writes
/// `squares_out`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Linear {
    /// Batch-size class.
    pub rows: Rows,
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
    pub each: Option<UnaryOp>,
    /// Epilogue.
    pub epilogue: Epilogue,
    /// Operand type of a tile's products (small batch, many rows).
    pub operand: Operand,
    /// Whether the result selects experts. Its order matters, so the CPU does not quantize x.
    pub chooses: bool,
    /// Kernel layout.
    pub knobs: Knobs,
}

/// Knobs of linear kernels. Which ones matter depends on [`Rows`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Knobs {
    /// Weight rows that a simdgroup computes at once (one row, small batch).
    pub rows_per_simdgroup: usize,
    /// Simdgroups per threadgroup (one row, small batch).
    pub simdgroups: usize,
    /// Column split: simdgroups, or groups of four (many rows), that share outputs.
    pub split: usize,
    /// Packets of 16 bytes that a lane loads of each row before it computes (one row): 1 or 2. With quantized
    /// activations: steps of four blocks.
    pub packets: usize,
    /// Rows of x per threadgroup (many rows).
    pub tile_rows: usize,
    /// Outputs of a tile (many rows).
    pub tile_outputs: usize,
    /// Whether x is quantized to 16 bits in blocks of 32 columns and multiplied with integer MMA (one row).
    /// Not used if exact results are requested.
    #[serde(default)]
    pub codes: bool,
}

impl Rows {
    /// Name in kernel names and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Rows::One => "one",
            Rows::Few => "few",
            Rows::Many => "many",
        }
    }
}

/// Columns per step with quantized activations: four blocks.
pub(crate) const STRETCH: usize = 4 * forge_ir::BLOCK;

impl Knobs {
    /// Whether activations can be quantized for weights in `format`.
    pub(crate) fn can_take_codes(format: Format) -> bool {
        match format {
            Format::Q4_0 | Format::Q8_0 | Format::Q4K => true,
            Format::Affine(affine) => matches!(affine.bits, Bits::Four | Bits::Eight),
            _ => false,
        }
    }

    /// Suffix of a kernel's name, with the knobs that matter for this batch-size class.
    pub fn name(&self, rows: Rows) -> String {
        let Knobs { rows_per_simdgroup, simdgroups, split, packets, tile_rows, tile_outputs, codes } = self;
        match rows {
            Rows::One if *codes => format!("c{rows_per_simdgroup}_g{simdgroups}_s{split}_p{packets}"),
            Rows::One => format!("r{rows_per_simdgroup}_g{simdgroups}_s{split}_p{packets}"),
            Rows::Few => format!("r{rows_per_simdgroup}_g{simdgroups}_s{split}"),
            Rows::Many => format!("t{tile_rows}x{tile_outputs}_s{split}"),
        }
    }

    /// Outputs per threadgroup of a one-row kernel.
    pub fn outputs_of_group(&self) -> usize {
        self.rows_per_simdgroup * self.simdgroups / self.split
    }
}
