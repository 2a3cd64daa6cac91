//! Layouts of MLA kernels.

use crate::attention::context::expanded_bytes;
use crate::context::DEFAULT_MEMORY;
use crate::matmul::spec::Operand;
use forge_ops::MlaAttention;
use serde::Serialize;

/// Layout of a per-head matmul.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PerHeadLayout {
    /// Rows of x that a threadgroup computes at once.
    pub together: usize,
    /// Matrix rows that a lane computes at once: 1, 2 or 4. Transposed: packets of a row per threadgroup, a
    /// power of two.
    pub each: usize,
}

/// Layout of MLA attention in expanded form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MlaExpandedLayout {
    /// Operand type of the products: f32, exact or for range only.
    pub operand: Operand,
    /// Positions of a tile in threadgroup memory: 8, 16 or 32.
    pub tile: usize,
}

impl MlaExpandedLayout {
    /// The largest tile that allows two threadgroups per core; `None` if heads are too wide for that.
    pub fn tile_for(keys: usize, rope_width: usize, values: usize) -> Option<usize> {
        let fits = |tile: &usize| expanded_bytes(*tile, keys + rope_width, values) <= DEFAULT_MEMORY;
        [32, 16, 8].into_iter().find(fits)
    }
}

/// Heads per simdgroup: registers hold their queries and sums, and the lines that they share.
const HEADS_EACH: usize = 2;

/// Maximum simdgroups per threadgroup.
const SIMDGROUPS: usize = 8;

/// Heads per simdgroup, simdgroups per threadgroup, and threadgroups that share the heads of a row.
pub fn mla_attention_heads(op: &MlaAttention) -> [usize; 3] {
    let each = HEADS_EACH.min(op.heads);
    let simdgroups = op.heads.div_ceil(each).min(SIMDGROUPS);
    [each, simdgroups, op.heads.div_ceil(each * simdgroups)]
}
