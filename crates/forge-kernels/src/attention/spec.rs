//! Layouts of attention kernels.

use crate::matmul::spec::Rows;
use serde::{Deserialize, Serialize};

/// Default number of small-batch attention threadgroups per core in one wave.
pub const AT_ONCE: usize = 3;

/// Knobs of attention kernels. Which ones matter depends on the kernel. The number of KV splits is not a
/// knob, since the program chooses it in each pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionKnobs {
    /// Simdgroups per threadgroup, rounded down to a multiple of those with different heads (split).
    pub simdgroups: usize,
    /// Query heads per simdgroup, which share its loads (split).
    pub heads_each: usize,
    /// Whether MMA is used, eight heads and eight positions at once. Queries and weights are each split into
    /// an f16 value and an f16 remainder, which are multiplied separately (split).
    #[serde(default)]
    pub mma: bool,
    /// Loads of positions by a simdgroup before it computes (split).
    pub loads: usize,
    /// Positions of a tile (tiled): 8 to 64.
    pub tile: usize,
    /// Query rows of a threadgroup (tiled), each one row of one head: 8 of one head, the default for older
    /// tables, or of the query heads of a KV head 64, with keys and values in threadgroup memory, or 32, with
    /// keys and values straight from the cache. These are separate templates.
    #[serde(default = "lines_of_one_head")]
    pub lines: usize,
}

fn lines_of_one_head() -> usize {
    8
}

impl AttentionKnobs {
    /// Small-batch threadgroups of this head width per core in one wave. With MMA, registers limit a
    /// multiprocessor to one, or two with narrow heads. Measured on an H100, decode tok/s at 32,768 positions
    /// with one, two and three: 30B with 8 query heads per KV head of width 128: 296, 273, 255; 8B with 4:
    /// 285, 273, 266; 1B with 4 of width 64: 1,116, 1,133, 1,078.
    pub fn at_once(&self, width: usize) -> usize {
        match self.mma {
            true if width > 64 => 1,
            true => 2,
            false => AT_ONCE,
        }
    }

    /// Suffix of a kernel's name, with the knobs that matter for this batch-size class.
    pub fn name(&self, rows: Rows) -> String {
        let AttentionKnobs { simdgroups, heads_each, mma, loads, tile, lines } = self;
        match rows {
            Rows::Many if *lines == 8 => format!("t{tile}"),
            Rows::Many => format!("n{lines}_t{tile}"),
            _ if *mma => format!("g{simdgroups}_mma"),
            _ => format!("g{simdgroups}_h{heads_each}_l{loads}"),
        }
    }
}

/// Layout of an attention kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AttentionLayout {
    /// Kernel layout.
    pub knobs: AttentionKnobs,
    /// Whether the kernel also writes quantized rows of its result, for the next linear layer (split).
    pub quantizes: bool,
}

/// Layout of the kernel that combines KV splits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CombineLayout {
    /// Whether the kernel also writes quantized rows of its result, for the next linear layer.
    pub quantizes: bool,
}

/// Whether attention kernels can write quantized rows of this many heads: a simdgroup writes a block of 32 values
/// of one head.
pub fn quantizes_heads(query_heads: usize, width: usize) -> bool {
    width.is_multiple_of(32) && (query_heads * width).is_multiple_of(128)
}
