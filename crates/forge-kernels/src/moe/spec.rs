//! Layouts of expert kernels.

use crate::matmul::spec::{Operand, Rows};
use crate::spec::ExpertsTilesKernel;
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

impl ExpertsLayout {
    /// The layout for several rows of x, which fill a GPU with fewer threadgroups each: `times` as many outputs per
    /// simdgroup share its loads of x, and the selection of the experts. With partial results, a threadgroup
    /// keeps its outputs. The sums of a row keep their order.
    pub fn for_decode_batch(self, times: usize, writes_partials: bool) -> ExpertsLayout {
        /// Sums and weights of more rows do not fit in registers.
        const MAX_ROWS: usize = 16;
        let outputs = self.rows_per_simdgroup * self.simdgroups;
        let most = if writes_partials { outputs.min(MAX_ROWS) } else { MAX_ROWS };
        let rows_per_simdgroup = (self.rows_per_simdgroup * times).min(most).max(self.rows_per_simdgroup);
        match writes_partials && outputs.is_multiple_of(rows_per_simdgroup) {
            true => ExpertsLayout { rows_per_simdgroup, simdgroups: outputs / rows_per_simdgroup },
            false if writes_partials => self,
            false => ExpertsLayout { rows_per_simdgroup, ..self },
        }
    }
}

impl ExpertsTilesKernel {
    /// Whether the kernel multiplies tensors in Metal 4.
    pub(crate) fn has_tensors(&self) -> bool {
        self.layout.operand == Operand::F16
    }
}

/// Layout of a grouped expert GEMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ExpertsTileLayout {
    /// Operand type of the products.
    pub operand: Operand,
    /// Outputs of a tile.
    pub tile_outputs: usize,
}
