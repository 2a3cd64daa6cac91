//! Mixture of experts. A row of `routes` contains the row's expert indices, best first and shared
//! experts last, and then the bits of their weights: `[rows, 2 * chosen]`, 32-bit words.

use crate::activation::Gating;
use crate::format::Format;
use crate::matmul::{DeferredNorm, Epilogue};
use serde::Serialize;

/// Score function of a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scores {
    /// Softmax over all experts.
    Softmax,
    /// 1 / (1 + exp(-logit))
    Sigmoid,
}

impl Scores {
    /// Name in printed graphs, plans and kernels.
    pub const fn name(self) -> &'static str {
        match self {
            Scores::Softmax => "softmax",
            Scores::Sigmoid => "sigmoid",
        }
    }
}

/// Group-limited routing: experts form equal contiguous groups, and only experts of the best groups can be
/// selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Groups {
    /// Number of groups.
    pub count: usize,
    /// Groups kept; ties go to the lower index.
    pub kept: usize,
    /// A group's score is the sum of this many of its best scores, including corrections: 1 or 2.
    pub best: usize,
}

/// Top-k routing: experts of each row with their weights.
///
/// Scalars: rows. Buffers: logits, \[correction,\] \[scale,\] routes. Grid: rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
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
    pub renormalize: bool,
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

    /// Words of a row of `routes`.
    pub const fn route_words(&self) -> usize {
        2 * self.routes()
    }
}

/// Expert gate and up projections with their activation.
///
/// Scalars: rows. Buffers: weight planes, routes, x, \[bias,\] \[squares,\] y. With fused routing: logits,
/// \[correction,\] \[scale,\] and routes are written. Grid: groups of outputs, chosen, rows.
///
/// Gate and up with their activation for every expert of a row: `y` is `[row, chosen, outputs / 2]`. Rows of
/// each expert's matrix alternate gate and up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
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
    /// Deferred norm of x.
    pub norm: Option<DeferredNorm>,
    /// Whether experts have biases (f32, `[experts, outputs]`).
    pub bias: bool,
    /// Gated activation.
    pub gating: Gating,
    /// Routing, if this kernel performs it.
    pub route: Option<Route>,
}

/// Expert down projections, weighted and summed.
///
/// Scalars: rows. Buffers: weight planes, routes, x, \[bias,\] y\[, gain, gained\]\[, squares_out\]. Grid:
/// groups of outputs, rows.
///
/// The sum over a row's experts of weight · (W x + bias), each with its own x: `[row, chosen, inputs]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
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
    /// Destination of the sum: it is stored, or added, with or without outputs for a deferred norm of y.
    pub epilogue: Epilogue,
}

/// Sorts rows by expert and builds tiles.
///
/// Scalars: rows. Buffers: routes, pairs, tiles. Grid: 1.
///
/// A pair is a row and a place among its experts, `row * chosen + place`. `pairs` is sorted by expert, then
/// by row. `tiles` is `[tiles, 3]`: expert, index of its first pair, and number of pairs. There are
/// [`ExpertsGroup::tiles`] of them; unused ones are zeros.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
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

/// Grouped expert GEMM over tiles.
///
/// Scalars: rows. Buffers: weight planes, pairs, tiles, x, \[bias,\] y. Grid: maximum number of tiles; tiles
/// of outputs.
///
/// The product of each pair's expert with its x, for the pairs of [`ExpertsGroup`]. With a gating x is the
/// row's, rows of matrices alternate gate and up, and `y` is `[row, chosen, outputs / 2]`. Otherwise each
/// pair has its own x, `[row, chosen, inputs]`, and `y` is `[row, chosen, outputs]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
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
    /// Maximum pairs of a tile.
    pub tile_rows: usize,
}

/// Weighted sum of expert outputs.
///
/// Scalars: rows. Buffers: routes, each, y. Grid: a row in groups of 128 threads; rows.
///
/// The sum over a row's experts of weight · each; `each` is `[row, chosen, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ExpertsCombine {
    /// Experts per row.
    pub chosen: usize,
    /// Elements of a row of y.
    pub width: usize,
    /// Whether the sum is added to `y`.
    pub adds: bool,
}
