//! Projections: a matrix times rows.

use crate::spec::{Squares, UnaryOp};
use forge_ir::{Activation, Bits, Format};
use serde::{Deserialize, Serialize};

/// How many rows of x a projection is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// One: every weight is used once, straight from memory.
    One,
    /// 2 to 16: a weight is decoded once and used for a few rows.
    Few,
    /// More: tiles in threadgroup memory, products on the matrix unit.
    Many,
}

/// What becomes of a projection's result v for output o of row r.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Epilogue {
    /// `y[r][o] = v`
    Store,
    /// `y[r][o] += v`
    Add,
    /// Outputs alternate gate, up: `y[r][o / 2] = activation(gate) * up`
    Gate(Activation),
    /// `y[o] += v`, and what a deferred norm of y needs. For [`Rows::One`].
    AddSquares(Squares),
    /// `y[o] = v * factors[first + o]`: columns of a row of factors, from the scalar `first` on. For [`Rows::One`].
    Multiply {
        /// Numbers of the row.
        of: usize,
    },
    /// `y[o] = v`, and the best of each threadgroup's outputs in `candidates`: `[threadgroups, 2]`, a key that orders as
    /// the number does and the lowest output that has it. For [`Rows::One`].
    Best,
}

/// The norm of a projection's input, deferred: x is already multiplied by the gain, and v is divided by
/// `sqrt(sum(squares) / inputs + epsilon)` before the bias is added. For [`Rows::One`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DeferredNorm {
    /// Numbers in `squares`.
    pub partials: usize,
    /// Added to the mean of squares.
    pub epsilon: f32,
}

/// The norm of a projection's input, taken by the projection itself: x is multiplied by the gain as it is loaded, where there is
/// one, and v is divided by `sqrt(mean(x²) + epsilon)` before the bias is added. For [`Rows::One`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct InlineNorm {
    /// Whether there is a gain (f32, `[inputs]`).
    pub gain: bool,
    /// Added to the mean of squares.
    pub epsilon: f32,
}

/// What the products of a tile are computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operand {
    /// Singles: exact for any format and any x.
    F32,
    /// Singles for their range alone: products may lose what those of halves do. For x that may grow beyond a half's range.
    Ranged,
    /// Halves: half the threadgroup memory. For x that no model lets grow beyond a half's range.
    F16,
}

/// See [`crate::spec::Spec::Project`]. Scalars: rows. Buffers: weight planes, \[bias,\] x, \[x_gain,\] \[squares,\] y\[, gain, gained, squares_out\]
/// \[, candidates\]. Grid: by knobs; see the kernel's own.
///
/// v is W x, then deferred norm, then bias, then a function of each result, then the
/// epilogue. `gain` and `gained` are there if
/// [`Squares::gain`] says so. A deferred norm reads `squares`; an epilogue that leaves some writes `squares_out`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Linear {
    /// Rows of x it is made for.
    pub rows: Rows,
    /// Of the weight.
    pub format: Format,
    /// Rows of the weight; with [`Epilogue::Gate`], twice the width of y.
    pub outputs: usize,
    /// Columns of the weight, and the width of x.
    pub inputs: usize,
    /// The deferred norm of x, if there is one.
    pub norm: Option<DeferredNorm>,
    /// The norm of x that is this projection's business, if there is one: then none is deferred.
    pub own_norm: Option<InlineNorm>,
    /// Whether a bias (f32, `[outputs]`) is added.
    pub bias: bool,
    /// What v becomes before the epilogue.
    pub each: Option<UnaryOp>,
    /// What becomes of the result.
    pub epilogue: Epilogue,
    /// What the products of a tile are computed from (few, many).
    pub operand: Operand,
    /// Whether experts are chosen by what comes of it: a matter of order, for which the CPU rounds nothing of x.
    pub chooses: bool,
    /// How the work is laid over threads.
    pub knobs: Knobs,
}

/// The knobs of a projection. Which of them matter depends on [`Rows`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Knobs {
    /// Weight rows that a simdgroup computes at once (one, few).
    pub rows_per_simdgroup: usize,
    /// Simdgroups of a threadgroup (one, few).
    pub simdgroups: usize,
    /// Simdgroups, or quartets of them (many), that share outputs, each a part of the columns.
    pub split: usize,
    /// Packets of 16 bytes that a lane loads of each row before it computes, of codes those of so many times four blocks (one): 1 or 2.
    pub packets: usize,
    /// Rows of x that a threadgroup computes at once (many).
    pub tile_rows: usize,
    /// Outputs of a tile (many).
    pub tile_outputs: usize,
    /// Whether x is taken as codes of 16 bits, a block of 32 columns at a time, which matrix units multiply by those of W (one): for
    /// who does not ask that nothing be rounded.
    #[serde(default)]
    pub codes: bool,
}

impl Rows {
    /// In names and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Rows::One => "one",
            Rows::Few => "few",
            Rows::Many => "many",
        }
    }
}

/// Columns that a kernel takes at once as codes: four blocks.
pub(crate) const STRETCH: usize = 4 * forge_ir::BLOCK;

impl Knobs {
    /// Whether x can be taken as codes by a weight in `format`.
    pub(crate) fn can_take_codes(format: Format) -> bool {
        match format {
            Format::Q4_0 | Format::Q8_0 | Format::Q4K => true,
            Format::Affine(affine) => matches!(affine.bits, Bits::Four | Bits::Eight),
            _ => false,
        }
    }

    /// What they are, in a kernel's name: those that matter for so many rows.
    pub fn name(&self, rows: Rows) -> String {
        let Knobs { rows_per_simdgroup, simdgroups, split, packets, tile_rows, tile_outputs, codes } = self;
        match rows {
            Rows::One if *codes => format!("c{rows_per_simdgroup}_g{simdgroups}_s{split}_p{packets}"),
            Rows::One => format!("r{rows_per_simdgroup}_g{simdgroups}_s{split}_p{packets}"),
            Rows::Few => format!("r{rows_per_simdgroup}_g{simdgroups}_s{split}"),
            Rows::Many => format!("t{tile_rows}x{tile_outputs}_s{split}"),
        }
    }

    /// Outputs of a threadgroup in a kernel for one row.
    pub fn outputs_of_group(&self) -> usize {
        self.rows_per_simdgroup * self.simdgroups / self.split
    }
}
