//! Specs of expert kernels. A row of `routes` contains the row's expert indices, best first and shared
//! experts last, and then the bits of their weights: `[rows, 2 * chosen]`, 32-bit words.

use forge_ir::{Format, Gating, Groups, Scores};
use serde::{Deserialize, Serialize};

use crate::spec::{DeferredNorm, Operand, Rows, Squares};

/// Maximum number of experts: a lane holds 32 sort keys in registers.
pub const MOST_EXPERTS: usize = 1024;

/// Maximum experts per row: one per lane.
pub const MOST_CHOSEN: usize = 32;

/// Knobs of expert kernels. Which ones matter depends on [`Rows`]. The rows of a tile are not a knob, since
/// all grouped kernels of a pass depend on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertsKnobs {
    /// Weight rows that a simdgroup computes at once (one row, small batch).
    pub rows_per_simdgroup: usize,
    /// Simdgroups per threadgroup (one row, small batch).
    pub simdgroups: usize,
    /// Outputs of a tile (many rows).
    pub tile_outputs: usize,
}

impl ExpertsKnobs {
    /// Suffix of a kernel's name, with the knobs that matter for this batch-size class.
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
    /// Number of routed experts, one logit each.
    pub experts: usize,
    /// Routed experts per row.
    pub chosen: usize,
    /// Scoring function.
    pub scores: Scores,
    /// Whether a correction (f32, `[experts]`) is added to the scores for selection.
    pub correction: bool,
    /// Expert groups for group-limited routing.
    pub groups: Option<Groups>,
    /// Whether weights are normalized by the sum over the chosen experts.
    pub shares: bool,
    /// Factor of every weight.
    pub factor: f32,
    /// Whether each expert's weight is multiplied by its scale (f32, `[experts]`).
    pub scale: bool,
    /// Shared experts. Their indices follow the routed experts, and they follow the chosen ones in `routes`.
    pub shared: usize,
    /// Whether their weight is the sigmoid of one more logit, the last; otherwise it is 1.
    pub gated: bool,
}

impl Route {
    /// Logits of a row.
    pub const fn logits(&self) -> usize {
        self.experts + self.gated as usize
    }

    /// Experts per row, shared experts included.
    pub const fn routes(&self) -> usize {
        self.chosen + self.shared
    }
}

/// See [`crate::spec::Spec::ExpertsInner`]. Scalars: rows. Buffers: weight planes, routes, x, \[bias,\]
/// \[squares,\] y. With fused routing: logits, \[correction,\] \[scale,\] and routes are written. Grid:
/// groups of outputs, chosen, rows.
///
/// Gate and up with their activation for every expert of a row: `y` is `[row, chosen, outputs / 2]`. Rows of
/// each expert's matrix alternate gate and up.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpertsInner {
    /// Format of the weight.
    pub format: Format,
    /// Number of experts.
    pub experts: usize,
    /// Experts per row, shared experts included.
    pub chosen: usize,
    /// Number of shared experts, the last ones.
    pub shared: usize,
    /// Rows of an expert's matrix, twice its inner width.
    pub outputs: usize,
    /// Columns of an expert's matrix, and the width of x.
    pub inputs: usize,
    /// Stride in bytes between the matrices of two cache slots: the size of an expert's record in the weight
    /// file.
    pub record: usize,
    /// Deferred norm of x, for one row only.
    pub norm: Option<DeferredNorm>,
    /// Whether experts have biases (f32, `[experts, outputs]`).
    pub bias: bool,
    /// Gated activation.
    pub gating: Gating,
    /// Routing, if this kernel performs it.
    pub route: Option<Route>,
    /// Weight rows that a simdgroup computes at once.
    pub rows_per_simdgroup: usize,
    /// Simdgroups per threadgroup.
    pub simdgroups: usize,
}

/// Destination of the sum over experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Summed {
    /// `y = v`
    Store,
    /// `y += v`
    Add,
    /// `y += v`, with outputs for a deferred norm of y; for one row only.
    AddSquares(Squares),
}

/// See [`crate::spec::Spec::ExpertsSum`]. Scalars: rows. Buffers: weight planes, routes, x, \[bias,\] y\[, gain,
/// gained\]\[, squares_out\]. Grid: groups of outputs, rows.
///
/// The sum over a row's experts of weight · (W x + bias), each with its own x: `[row, chosen, inputs]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpertsSum {
    /// Format of the weight.
    pub format: Format,
    /// Number of experts.
    pub experts: usize,
    /// Experts per row, shared experts included.
    pub chosen: usize,
    /// Number of shared experts, the last ones.
    pub shared: usize,
    /// Rows of an expert's matrix, and the width of y.
    pub outputs: usize,
    /// Columns of an expert's matrix.
    pub inputs: usize,
    /// Stride in bytes between the matrices of two cache slots: the size of an expert's record in the weight
    /// file.
    pub record: usize,
    /// Whether experts have biases (f32, `[experts, outputs]`).
    pub bias: bool,
    /// Destination of the sum.
    pub ending: Summed,
    /// Weight rows that a simdgroup computes at once.
    pub rows_per_simdgroup: usize,
    /// Simdgroups per threadgroup.
    pub simdgroups: usize,
}

/// See [`crate::spec::Spec::ExpertsGroup`]. Scalars: rows. Buffers: routes, pairs, tiles. Grid: 1.
///
/// A pair is a row and a place among its experts, `row * chosen + place`. `pairs` is sorted by expert, then
/// by row. `tiles` is `[tiles, 3]`: expert, index of its first pair, and number of pairs. There are
/// [`ExpertsGroup::tiles`] of them; unused ones are zeros.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpertsGroup {
    /// Number of experts.
    pub experts: usize,
    /// Experts per row.
    pub chosen: usize,
    /// Maximum pairs of a tile.
    pub tile_rows: usize,
}

impl ExpertsGroup {
    /// Maximum number of tiles for this many rows: each expert may have one partial tile.
    pub const fn tiles(&self, rows: usize) -> usize {
        (rows * self.chosen + self.experts * (self.tile_rows - 1)) / self.tile_rows
    }
}

/// See [`crate::spec::Spec::ExpertsTiles`]. Scalars: rows. Buffers: weight planes, pairs, tiles, x, \[bias,\] y.
/// Grid: maximum number of tiles; tiles of outputs.
///
/// The product of each pair's expert with its x, for the pairs of [`ExpertsGroup`]. With a gating x is the
/// row's, rows of matrices alternate gate and up, and `y` is `[row, chosen, outputs / 2]`. Otherwise each
/// pair has its own x, `[row, chosen, inputs]`, and `y` is `[row, chosen, outputs]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpertsTiles {
    /// Format of the weight.
    pub format: Format,
    /// Number of experts.
    pub experts: usize,
    /// Experts per row, shared experts included.
    pub chosen: usize,
    /// Number of shared experts, the last ones.
    pub shared: usize,
    /// Rows of an expert's matrix.
    pub outputs: usize,
    /// Columns of an expert's matrix.
    pub inputs: usize,
    /// Stride in bytes between the matrices of two cache slots: the size of an expert's record in the weight
    /// file.
    pub record: usize,
    /// Whether experts have biases (f32, `[experts, outputs]`).
    pub bias: bool,
    /// Gated activation, for gate and up matrices.
    pub gating: Option<Gating>,
    /// Operand type of the products.
    pub operand: Operand,
    /// Maximum pairs of a tile.
    pub tile_rows: usize,
    /// Outputs of a tile.
    pub tile_outputs: usize,
}

/// See [`crate::spec::Spec::ExpertsJoin`]. Scalars: rows. Buffers: routes, each, y. Grid: a row in groups of 128
/// threads; rows.
///
/// The sum over a row's experts of weight · each; `each` is `[row, chosen, width]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpertsJoin {
    /// Experts per row.
    pub chosen: usize,
    /// Elements of a row of y.
    pub width: usize,
    /// Whether the sum is added to `y`.
    pub adds: bool,
}
