//! Specs of MLA kernels. The cache has one line per position of a slot, which all heads share: the latent and
//! then the RoPE key, `[slot, context, width + turned]`.

use crate::context::{DEFAULT_MEMORY, unfolded_bytes};
use crate::spec::Operand;
use forge_ir::{Format, Pairing, Rotation};
use serde::Serialize;

/// See [`crate::spec::Spec::EachHead`]. Scalars: rows. Buffers: weight planes, x, y. Grid: groups of outputs,
/// heads, rows or groups of `together` of them.
///
/// The matrices of all heads are stacked along rows. `y` is `[row, heads * rows]` or, transposed, `[row,
/// heads * columns]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PerHeadLinear {
    /// Format of the weight.
    pub format: Format,
    /// Heads, each with its own matrix.
    pub heads: usize,
    /// Rows of a head's matrix.
    pub rows: usize,
    /// Columns of a head's matrix.
    pub columns: usize,
    /// Whether matrices are applied transposed: a head's part of x then has as many elements as its matrix
    /// has rows.
    pub turned: bool,
    /// Row stride of x in elements: all heads, or more if they are the first columns of wider rows.
    pub pitch: usize,
    /// Rows of x that a threadgroup computes at once.
    pub together: usize,
    /// Matrix rows that a lane computes at once: 1, 2 or 4. Transposed: packets of a row per threadgroup, a
    /// power of two.
    pub each: usize,
}

/// Location of the parts of an input row: columns of wider rows, possibly of the same buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LatentColumns {
    /// Elements of a row of `queries`.
    pub queries_pitch: usize,
    /// First column of the RoPE queries, stored head by head.
    pub turned_first: usize,
    /// Elements of a row of `latent`.
    pub latent_pitch: usize,
    /// First column of the latent.
    pub latent_first: usize,
    /// Elements of a row of `key`.
    pub key_pitch: usize,
    /// First column of the RoPE key.
    pub key_first: usize,
}

/// Preparation of a row: norm of the latent with a gain (f32, `[width]`), and RoPE of key and queries.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LatentPrepare {
    /// Number of query heads.
    pub heads: usize,
    /// Location of the parts.
    pub columns: LatentColumns,
    /// Added to the mean of squares of a latent.
    pub epsilon: f32,
    /// RoPE of queries and keys.
    pub rotation: Rotation,
    /// `rotation.pairing`, for the template.
    pub pairing: Pairing,
}

/// See [`crate::spec::Spec::LatentAppend`]. Scalars: rows, context. Buffers: latent, key, slots, positions,
/// latents. Grid: a row in groups of 128 threads; rows. With `prepare`: queries, latent, key, gain, slots,
/// positions, turned, latents, where `turned` is `[row, heads, turned]`. Grid: the pairs of queries in groups
/// of 128 threads, and one more; rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LatentAppend {
    /// Channels of a latent.
    pub width: usize,
    /// Channels of a RoPE key.
    pub turned: usize,
    /// Format of the cache.
    pub cache: Format,
    /// Norm and RoPE to perform first.
    pub prepare: Option<LatentPrepare>,
}

/// See [`crate::spec::Spec::LatentAttend`]. Scalars: rows, context, splits. Buffers: q, turned, latents, slots,
/// positions, partials, heads. With a prologue: queries, latent, key, gain instead of turned, and latents are
/// written; no two rows of a pass may then belong to one slot. Grid: splits, groups of heads, rows.
///
/// q is `[row, head, width]`, `turned` `[row, head, turned]`. A row attends to the positions `0..=position`
/// with softmax(scale · (q·c + r·k)) c. Splits, `partials` and `heads` are as in [`crate::spec::Attend`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LatentAttend {
    /// Number of heads.
    pub heads: usize,
    /// Channels of a latent.
    pub width: usize,
    /// Channels of a RoPE key.
    pub turned: usize,
    /// Format of the cache.
    pub cache: Format,
    /// Factor of the scores.
    pub scale: f32,
    /// Preparation of the row, if this kernel performs it.
    pub prologue: Option<LatentPrepare>,
}

/// See [`crate::spec::Spec::LatentShare`]. Scalars: rows, context, begin. Buffers: latents, slots, share,
/// turned_keys. Grid: a line in groups of 128 threads; rows.
///
/// Rows are positions, from `begin` on, of the slot of the pass's first row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MlaLoadLatents {
    /// Channels of a latent.
    pub width: usize,
    /// Channels of a RoPE key.
    pub turned: usize,
    /// Format of the cache.
    pub cache: Format,
}

/// See [`crate::spec::Spec::AttendUnfolded`]. Scalars: rows, begin, end. Buffers: q, turned, keys, turned_keys,
/// values, positions, heads, carried. Grid: groups of 8 rows, heads.
///
/// q contains the queries of all heads, `turned` is `[row, head, turned]`. For the positions `begin..end` of
/// the rows' slot, `keys` is `[position, head, keys]`, `values` `[position, head, values]`, and `turned_keys`
/// `[position, turned]`. A row attends to those of them up to its own position with softmax(scale · (q·k +
/// r·t)) v. KV tiles are processed in order from position 0 on. `heads` is `[row, head, values]`, the output
/// over the positions so far. `carried` is `[row, head, 2]`, the maximum of the scores and the denominator.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MlaAttentionExpanded {
    /// Number of heads.
    pub heads: usize,
    /// Channels of a head's key without RoPE.
    pub keys: usize,
    /// Channels of a RoPE key.
    pub turned: usize,
    /// Channels of a head's value.
    pub values: usize,
    /// Row stride of q in elements: all heads, or more if they are the first columns of wider rows.
    pub queries_pitch: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Operand type of the products: f32, exact or for range only.
    pub operand: Operand,
    /// Positions of a tile in threadgroup memory: 8, 16 or 32.
    pub tile: usize,
}

impl MlaAttentionExpanded {
    /// The largest tile that allows two threadgroups per core; `None` if heads are too wide for that.
    pub fn tile_for(keys: usize, turned: usize, values: usize) -> Option<usize> {
        let fits = |tile: &usize| unfolded_bytes(*tile, keys + turned, values) <= DEFAULT_MEMORY;
        [32, 16, 8].into_iter().find(fits)
    }
}

/// Heads per simdgroup: registers hold their queries and sums, and the lines that they share.
const HEADS_EACH: usize = 2;

/// Maximum simdgroups per threadgroup.
const SIMDGROUPS: usize = 8;

impl LatentAttend {
    /// Heads per simdgroup, simdgroups per threadgroup, and threadgroups that share the heads of a row.
    pub fn layout(&self) -> [usize; 3] {
        let each = HEADS_EACH.min(self.heads);
        let simdgroups = self.heads.div_ceil(each).min(SIMDGROUPS);
        [each, simdgroups, self.heads.div_ceil(each * simdgroups)]
    }
}
