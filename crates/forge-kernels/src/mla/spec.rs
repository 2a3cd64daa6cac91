//! What kernels of attention over latents are asked to be. A cache has a line for each position of a slot, its latent and then
//! its turned key: `[slot, context, width + turned]`, which all heads share.

use crate::context::{DEFAULT_MEMORY, unfolded_bytes};
use crate::spec::Operand;
use forge_ir::{Format, Pairing, Rotation};
use serde::Serialize;

/// See [`crate::spec::Spec::EachHead`]. Scalars: rows. Buffers: weight planes, x, y. Grid: groups of outputs, heads, rows or groups of
/// `together` of them.
///
/// The matrices of all heads lie one below the other. `y` is `[row, heads * rows]` or, turned, `[row, heads * columns]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PerHeadLinear {
    /// Of the weight.
    pub format: Format,
    /// Heads, each with a matrix.
    pub heads: usize,
    /// Rows of a head's matrix.
    pub rows: usize,
    /// Columns of it.
    pub columns: usize,
    /// Whether rows are taken for columns: then a head's part of x has as many numbers as its matrix has rows.
    pub turned: bool,
    /// Numbers from one row of x to the next: those of all heads, or more where they are the first columns of wider rows.
    pub pitch: usize,
    /// Rows of x that a threadgroup computes at once.
    pub together: usize,
    /// Rows of a matrix that a lane computes at once: 1, 2 or 4. Turned: packets of a row that a threadgroup computes, a
    /// power of two.
    pub each: usize,
}

/// Where a row that is to be prepared has its parts: columns of wider rows, which may be the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LatentColumns {
    /// Numbers of a row of `queries`.
    pub queries_pitch: usize,
    /// The first of the queries that turn, head after head.
    pub turned_first: usize,
    /// Numbers of a row of `latent`.
    pub latent_pitch: usize,
    /// The first of the latent.
    pub latent_first: usize,
    /// Numbers of a row of `key`.
    pub key_pitch: usize,
    /// The first of the key that turns.
    pub key_first: usize,
}

/// What is done to a row before it goes to the cache, and to its queries: latents are normed, with a gain (f32, `[width]`),
/// keys and queries turned.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LatentPrepare {
    /// Heads of queries.
    pub heads: usize,
    /// Where its parts are.
    pub columns: LatentColumns,
    /// Added to the mean of squares of a latent.
    pub epsilon: f32,
    /// Of queries and keys.
    pub rotation: Rotation,
    /// `rotation.pairing`, where the template can branch on it.
    pub pairing: Pairing,
}

/// See [`crate::spec::Spec::LatentAppend`]. Scalars: rows, context. Buffers: latent, key, slots, positions, latents. Grid: by 128 threads
/// a row; rows. With something to prepare: queries, latent, key, gain, slots, positions, turned, latents, where `turned`
/// is `[row, heads, turned]`. Grid: by 128 threads the pairs of queries, and one more; rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LatentAppend {
    /// Channels of a latent.
    pub width: usize,
    /// Channels of a turned key.
    pub turned: usize,
    /// Of both in the cache.
    pub cache: Format,
    /// What is done before.
    pub prepare: Option<LatentPrepare>,
}

/// See [`crate::spec::Spec::LatentAttend`]. Scalars: rows, context, splits. Buffers: q, turned, latents, slots, positions, partials, heads.
/// With something to prepare: queries, latent, key, gain in place of turned, and latents are written; then no two rows of a pass may
/// be of one slot. Grid: splits, groups of heads, rows.
///
/// q is `[row, head, width]`, `turned` `[row, head, turned]`. A row attends to the positions `0..=position` with
/// softmax(scale · (q·c + r·k)) c. Splits, `partials` and `heads` are as in [`crate::spec::Attend`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LatentAttend {
    /// Heads.
    pub heads: usize,
    /// Channels of a latent.
    pub width: usize,
    /// Channels of a turned key.
    pub turned: usize,
    /// Of both in the cache.
    pub cache: Format,
    /// Multiplies scores.
    pub scale: f32,
    /// What prepares the row, if that is left to this kernel.
    pub prologue: Option<LatentPrepare>,
}

/// See [`crate::spec::Spec::LatentShare`]. Scalars: rows, context, begin. Buffers: latents, slots, share, turned_keys. Grid: by 128 threads a
/// line; rows.
///
/// Rows are positions, from `begin` on, of the slot of the pass's first row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MlaLoadLatents {
    /// Channels of a latent.
    pub width: usize,
    /// Channels of a turned key.
    pub turned: usize,
    /// Of both in the cache.
    pub cache: Format,
}

/// See [`crate::spec::Spec::AttendUnfolded`]. Scalars: rows, begin, end. Buffers: q, turned, keys, turned_keys, values, positions, heads, carried.
/// Grid: groups of 8 rows, heads.
///
/// q has the queries of a row's heads, `turned` is `[row, head, turned]`. `keys` is `[position, head, keys]`, `values`
/// `[position, head, values]`, `turned_keys` `[position, turned]`, of the positions `begin..end` of the rows' slot; a row attends to those of
/// them that it sees with softmax(scale · (q·k + r·t)) v. Shares come one after the other from position 0 on: `heads` is
/// `[row, head, values]`, what rows have of the positions so far, and `carried` `[row, head, 2]`, the maximum of their scores and the sum
/// of weights against it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MlaAttentionExpanded {
    /// Heads.
    pub heads: usize,
    /// Channels of a head's key that do not turn.
    pub keys: usize,
    /// Channels of a turned key.
    pub turned: usize,
    /// Channels of a head's value.
    pub values: usize,
    /// Numbers from one row of q to the next: those of all heads, or more where they are the first columns of wider rows.
    pub queries_pitch: usize,
    /// Multiplies scores.
    pub scale: f32,
    /// What products are computed from: singles, for their exactness or for their range alone.
    pub operand: Operand,
    /// Positions staged at once: 8, 16 or 32.
    pub tile: usize,
}

impl MlaAttentionExpanded {
    /// As many positions as lets two threadgroups share a core; none where heads are too wide for that.
    pub fn tile_for(keys: usize, turned: usize, values: usize) -> Option<usize> {
        let fits = |tile: &usize| unfolded_bytes(*tile, keys + turned, values) <= DEFAULT_MEMORY;
        [32, 16, 8].into_iter().find(fits)
    }
}

/// Heads of a simdgroup: registers hold their queries and sums beside the lines that they share.
const HEADS_EACH: usize = 2;

/// The most simdgroups of a threadgroup.
const SIMDGROUPS: usize = 8;

impl LatentAttend {
    /// Heads of a simdgroup, simdgroups of a threadgroup, and threadgroups that share the heads of a row.
    pub fn layout(&self) -> [usize; 3] {
        let each = HEADS_EACH.min(self.heads);
        let simdgroups = self.heads.div_ceil(each).min(SIMDGROUPS);
        [each, simdgroups, self.heads.div_ceil(each * simdgroups)]
    }
}
