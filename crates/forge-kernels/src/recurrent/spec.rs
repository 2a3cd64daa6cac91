//! Layouts of recurrent kernels.

use crate::context::DEFAULT_MEMORY;
use crate::spec::{DeltaChunksKernel, Kernel};
use forge_ops::{DeltaChunks, DeltaRule};
use serde::Serialize;

/// Layout of a chunked delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ChunkLayout {
    /// Rows of a slot per chunk.
    pub rows: usize,
}

impl DeltaChunksKernel {
    /// The largest chunk that fits in threadgroup memory; `None` if 8 rows do not fit.
    pub fn of(rule: DeltaRule) -> Option<DeltaChunksKernel> {
        let with = |rows| Kernel { op: DeltaChunks { rule }, layout: ChunkLayout { rows } };
        [32, 16, 8].into_iter().map(with).find(|kernel| kernel.bytes() <= DEFAULT_MEMORY)
    }

    /// Threadgroup memory in bytes: queries and keys, their dot products, and four numbers per row.
    pub const fn bytes(&self) -> usize {
        let rows = self.layout.rows;
        4 * rows * (2 * (self.op.rule.keys.next_multiple_of(8) + 4) + 2 * (rows + 4) + 4)
    }

    /// Simdgroups per threadgroup, each with 16 value channels.
    pub const fn simdgroups(&self) -> usize {
        if self.op.rule.values > 16 { 2 } else { 1 }
    }

    /// Threadgroups per head.
    pub const fn groups(&self) -> usize {
        self.op.rule.values.div_ceil(16 * self.simdgroups())
    }
}
