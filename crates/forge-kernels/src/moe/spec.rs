//! Layouts of expert kernels.

use crate::matmul::spec::{Operand, Rows};
use serde::{Deserialize, Serialize};

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
            Rows::Many => format!("o{tile_outputs}"),
            _ => format!("r{rows_per_simdgroup}_g{simdgroups}"),
        }
    }
}

/// Layout of an expert kernel for a small batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ExpertsLayout {
    /// Weight rows that a simdgroup computes at once.
    pub rows_per_simdgroup: usize,
    /// Simdgroups per threadgroup.
    pub simdgroups: usize,
}

/// Layout of a grouped expert GEMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ExpertsTileLayout {
    /// Operand type of the products.
    pub operand: Operand,
    /// Outputs of a tile.
    pub tile_outputs: usize,
}
