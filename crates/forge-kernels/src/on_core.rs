//! Bytes that the cores of a GPU move between registers and threadgroup memory or caches.
//!
//! These are all loads and stores, as the kernel checker counts them, and not each byte once, as memory traffic
//! is. They are known for kernels that multiply matrices for many rows, which they may limit.

use crate::attention::context::KvLayout;
use crate::attention::direct::DirectContext;
use crate::attention::grouped::GroupedContext;
use crate::context::{DIRECT_LINES, LINES, Tile};
use crate::spec::{AttendKernel, LinearKernel, Rows, Spec};
use forge_ops::{BLOCK, SUPERBLOCK};

impl Spec {
    /// Bytes of a dispatch with this many rows, which attend to `attended` positions in all; `None` if they are
    /// not known.
    pub fn on_core_bytes(&self, rows: u64, attended: u64) -> Option<u64> {
        match self {
            Spec::AttendTiled(attend) => Some(attend.on_core_bytes_of_8_positions() * attended / 8),
            Spec::Linear(linear) if linear.layout.rows == Rows::Many => Some(linear.on_core_bytes(rows)),
            _ => None,
        }
    }
}

impl AttendKernel {
    /// Bytes for a row that attends to 8 positions, in all heads.
    fn on_core_bytes_of_8_positions(&self) -> u64 {
        let cached = 2 * KvLayout::head_bytes(self.op.cache, self.op.width);
        // Bytes of a threadgroup for a position, and its query rows.
        let (bytes, query_rows) = match self.layout.knobs.lines {
            DIRECT_LINES => DirectContext::on_core_bytes(self),
            LINES => GroupedContext::on_core_bytes(self),
            // Keys and values are staged in f32 and loaded once, scores are stored, loaded, stored as weights, and
            // loaded by each simdgroup.
            _ => (cached + 2 * 4 * 2 * self.op.width.next_multiple_of(8) + 8 * 4 * (1 + 1 + 1 + 4), 8),
        };
        (8 * bytes * self.op.query_heads / query_rows) as u64
    }
}

impl LinearKernel {
    fn on_core_bytes(&self, rows: u64) -> u64 {
        let knobs = self.layout.knobs;
        let (tile_rows, tile_outputs) = (knobs.tile_rows, knobs.tile_outputs);
        let [bytes, x_bytes] = Tile::element_bytes(self.layout.operand);
        let stored = self.op.format.matrix_bytes(tile_outputs, SUPERBLOCK) as usize * BLOCK / SUPERBLOCK;
        // Of 32 columns: the weights, x in f32, both stored once, and loaded by two simdgroups.
        let staged = BLOCK * (tile_rows * x_bytes + tile_outputs * bytes);
        let of_block = stored + tile_rows * BLOCK * 4 + (1 + 2) * staged;
        let blocks = self.op.inputs.div_ceil(BLOCK).next_multiple_of(knobs.split);
        // Results are stored in threadgroup memory, loaded from there and stored; parts are added.
        let results = tile_rows * tile_outputs * 4 * (1 + 1 + 1 + 2 * (knobs.split - 1));
        let tiles = rows.div_ceil(tile_rows as u64) * self.op.outputs.div_ceil(tile_outputs) as u64;
        tiles * (blocks * of_block + results) as u64
    }
}
