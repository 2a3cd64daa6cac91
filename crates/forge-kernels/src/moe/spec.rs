//! What kernels of experts are asked to be. A row of `routes` is the experts of a row, the best first and last those that every row
//! has, and then the bits of their weights: `[rows, 2 * chosen]`, words.

use forge_ir::{Format, Gating, Groups, Scores};
use serde::{Deserialize, Serialize};

use crate::spec::{DeferredNorm, Operand, Rows, Squares};

/// The most experts: a lane has 32 keys in registers.
pub const MOST_EXPERTS: usize = 1024;

/// The most experts of a row: a lane weighs one.
pub const MOST_CHOSEN: usize = 32;

/// The knobs of a product of experts with rows. Which of them matter depends on [`Rows`]. How many pairs a tile has is none of them:
/// all kernels of a pass that take rows expert by expert agree in that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertsKnobs {
    /// Weight rows that a simdgroup computes at once (one, few).
    pub rows_per_simdgroup: usize,
    /// Simdgroups of a threadgroup (one, few).
    pub simdgroups: usize,
    /// Outputs of a tile (many).
    pub tile_outputs: usize,
}

impl ExpertsKnobs {
    /// What they are, in a kernel's name: those that matter for so many rows.
    pub fn name(&self, rows: Rows) -> String {
        let ExpertsKnobs { rows_per_simdgroup, simdgroups, tile_outputs } = self;
        match rows {
            Rows::One | Rows::Few => format!("r{rows_per_simdgroup}_g{simdgroups}"),
            Rows::Many => format!("o{tile_outputs}"),
        }
    }
}

/// See [`crate::spec::Spec::Route`]. Scalars: rows. Buffers: logits, \[correction,\] \[scale,\] routes. Grid: rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Route {
    /// Experts that are chosen from, a logit each.
    pub experts: usize,
    /// Of these, a row's.
    pub chosen: usize,
    /// What scores are made of.
    pub scores: Scores,
    /// Whether a correction (f32, `[experts]`) is added to scores for the choice.
    pub correction: bool,
    /// Groups of experts, of which some are out of the question.
    pub groups: Option<Groups>,
    /// Whether weights are divided by the sum of those chosen.
    pub shares: bool,
    /// Multiplies every weight.
    pub factor: f32,
    /// Whether each expert's weight is multiplied by its scale (f32, `[experts]`).
    pub scale: bool,
    /// Experts that every row has: they have the numbers after those that are chosen from, and come after those that are chosen.
    pub shared: usize,
    /// Whether what they are weighed by is the sigmoid of one more logit, the last; else it is 1.
    pub gated: bool,
}

impl Route {
    /// Logits of a row.
    pub const fn logits(&self) -> usize {
        self.experts + self.gated as usize
    }

    /// Experts of a row, those that every row has among them.
    pub const fn routes(&self) -> usize {
        self.chosen + self.shared
    }
}

/// See [`crate::spec::Spec::ExpertsInner`]. Scalars: rows. Buffers: weight planes, routes, x, \[bias,\] \[squares,\] y. With a route:
/// logits, \[correction,\] \[scale,\] and routes are written. Grid: groups of outputs, chosen, rows.
///
/// Of every expert of a row what becomes of its gate and up: `y` is `[row, chosen, outputs / 2]`. Rows of each expert's matrix
/// alternate gate, up.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpertsInner {
    /// Of the weight.
    pub format: Format,
    /// Experts that there are.
    pub experts: usize,
    /// Experts of a row, those that every row has among them.
    pub chosen: usize,
    /// Of all experts the last, which every row has.
    pub shared: usize,
    /// Rows of an expert's matrix, twice its inner width.
    pub outputs: usize,
    /// Columns of it, and the width of x.
    pub inputs: usize,
    /// Bytes from the matrix of one seat to that of the next: what an expert has of all its matrices, a record of the weight file.
    pub record: usize,
    /// The deferred norm of x, if there is one: then there is one row.
    pub norm: Option<DeferredNorm>,
    /// Whether each expert has a bias (f32, `[experts, outputs]`).
    pub bias: bool,
    /// What becomes of a gate and its up.
    pub gating: Gating,
    /// How experts are chosen, if that is left to this kernel.
    pub route: Option<Route>,
    /// Weight rows that a simdgroup computes at once.
    pub rows_per_simdgroup: usize,
    /// Simdgroups of a threadgroup.
    pub simdgroups: usize,
}

/// What becomes of the sum over experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Summed {
    /// `y = v`
    Store,
    /// `y += v`
    Add,
    /// `y += v`, and what a deferred norm of y needs: then there is one row.
    AddSquares(Squares),
}

/// See [`crate::spec::Spec::ExpertsSum`]. Scalars: rows. Buffers: weight planes, routes, x, \[bias,\] y\[, gain, gained\]\[, squares_out\].
/// Grid: groups of outputs, rows.
///
/// The sum over a row's experts of weight · (W x + bias), each with an x of its own: `[row, chosen, inputs]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpertsSum {
    /// Of the weight.
    pub format: Format,
    /// Experts that there are.
    pub experts: usize,
    /// Experts of a row, those that every row has among them.
    pub chosen: usize,
    /// Of all experts the last, which every row has.
    pub shared: usize,
    /// Rows of an expert's matrix, and the width of y.
    pub outputs: usize,
    /// Columns of it.
    pub inputs: usize,
    /// Bytes from the matrix of one seat to that of the next: what an expert has of all its matrices, a record of the weight file.
    pub record: usize,
    /// Whether each expert has a bias (f32, `[experts, outputs]`).
    pub bias: bool,
    /// What becomes of the sum.
    pub ending: Summed,
    /// Weight rows that a simdgroup computes at once.
    pub rows_per_simdgroup: usize,
    /// Simdgroups of a threadgroup.
    pub simdgroups: usize,
}

/// See [`crate::spec::Spec::ExpertsGroup`]. Scalars: rows. Buffers: routes, pairs, tiles. Grid: 1.
///
/// A pair is a row and a place among its experts, `row * chosen + place`. `pairs` has those of each expert side by side, in the
/// order of rows; `tiles` is `[tiles, 3]`: an expert, the index of its first pair, and how many they are. There are as many
/// as [`ExpertsGroup::tiles`] says; what comes after the last that has pairs is zeros.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpertsGroup {
    /// Experts that there are.
    pub experts: usize,
    /// Experts of a row.
    pub chosen: usize,
    /// Most pairs of a tile.
    pub tile_rows: usize,
}

impl ExpertsGroup {
    /// The most tiles that rows can make: each expert may have one that is not full.
    pub const fn tiles(&self, rows: usize) -> usize {
        (rows * self.chosen + self.experts * (self.tile_rows - 1)) / self.tile_rows
    }
}

/// See [`crate::spec::Spec::ExpertsTiles`]. Scalars: rows. Buffers: weight planes, pairs, tiles, x, \[bias,\] y. Grid: tiles that there may
/// be; tiles of outputs.
///
/// The product of each pair's expert with its x, for the pairs of [`ExpertsGroup`]. With a gating x is the row's, rows of matrices
/// alternate gate, up, and `y` is `[row, chosen, outputs / 2]`; else each pair has an x of its own, `[row, chosen, inputs]`, and
/// `y` is `[row, chosen, outputs]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpertsTiles {
    /// Of the weight.
    pub format: Format,
    /// Experts that there are.
    pub experts: usize,
    /// Experts of a row, those that every row has among them.
    pub chosen: usize,
    /// Of all experts the last, which every row has.
    pub shared: usize,
    /// Rows of an expert's matrix.
    pub outputs: usize,
    /// Columns of it.
    pub inputs: usize,
    /// Bytes from the matrix of one seat to that of the next: what an expert has of all its matrices, a record of the weight file.
    pub record: usize,
    /// Whether each expert has a bias (f32, `[experts, outputs]`).
    pub bias: bool,
    /// What becomes of a gate and its up, if that is what outputs are.
    pub gating: Option<Gating>,
    /// What products are computed from.
    pub operand: Operand,
    /// Most pairs of a tile.
    pub tile_rows: usize,
    /// Outputs of a tile.
    pub tile_outputs: usize,
}

/// See [`crate::spec::Spec::ExpertsJoin`]. Scalars: rows. Buffers: routes, each, y. Grid: by 128 threads a row; rows.
///
/// The sum over a row's experts of weight · each; `each` is `[row, chosen, width]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpertsJoin {
    /// Experts of a row.
    pub chosen: usize,
    /// Of y.
    pub width: usize,
    /// Whether the sum is added to what `y` holds.
    pub adds: bool,
}
