//! Multi-head latent attention (MLA). The cache has one line per position of a slot, which all heads share:
//! the latent and then the RoPE key, `[slot, context, width + rope_width]`.

use crate::format::Format;
use crate::rope::RopeParameters;
use serde::Serialize;

/// Per-head matmul: each head's matrix times its part of x.
///
/// Scalars: rows. Buffers: weight planes, x, y. Grid: groups of outputs, heads, rows or groups of `together`
/// of them.
///
/// The matrices of all heads are stacked along rows. `y` is `[row, heads * rows]` or, transposed, `[row,
/// heads * columns]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
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
    pub transposed: bool,
    /// Row stride of x in elements: all heads, or more if they are the first columns of wider rows.
    pub pitch: usize,
}

/// Location of the parts of an input row: columns of wider rows, possibly of the same buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MlaColumns {
    /// Elements of a row of `queries`.
    pub queries_pitch: usize,
    /// First column of the RoPE queries, stored head by head.
    pub q_rope_first: usize,
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
pub struct MlaPrepare {
    /// Number of query heads.
    pub heads: usize,
    /// Location of the parts.
    pub columns: MlaColumns,
    /// Added to the mean of squares of a latent.
    pub epsilon: f32,
    /// RoPE of queries and keys.
    pub rope: RopeParameters,
}

/// Appends latents and RoPE keys to the MLA cache, with optional norm and RoPE.
///
/// Scalars: rows, context. Buffers: latent, key, slots, positions, latents. Grid: a row in groups of 128
/// threads; rows. With `prepare`: queries, latent, key, gain, slots, positions, q_rope, latents, where
/// `q_rope` is `[row, heads, rope_width]`. Grid: the pairs of queries in groups of 128 threads, and one more;
/// rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MlaAppend {
    /// Channels of a latent.
    pub width: usize,
    /// Channels of a RoPE key, `qk_rope_head_dim`.
    pub rope_width: usize,
    /// Format of the cache.
    pub cache: Format,
    /// Norm and RoPE to perform first.
    pub prepare: Option<MlaPrepare>,
}

/// MLA attention in absorbed form.
///
/// Scalars: rows, context, splits, split_positions. Buffers: q, q_rope, latents, slots, positions, partials,
/// heads. With a prologue: queries, latent, key, gain instead of q_rope, latents are written, and a further scalar:
/// appends, as in [`Attend`](crate::attention::Attend). Grid: splits, groups of heads, rows.
///
/// q is `[row, head, width]`, `q_rope` `[row, head, rope_width]`. A row attends to the positions `0..=position`
/// with softmax(scale · (q·c + r·k)) c. Splits, `partials` and `heads` are as in
/// [`Attend`](crate::attention::Attend).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MlaAttention {
    /// Number of heads.
    pub heads: usize,
    /// Channels of a latent.
    pub width: usize,
    /// Channels of a RoPE key, `qk_rope_head_dim`.
    pub rope_width: usize,
    /// Format of the cache.
    pub cache: Format,
    /// Factor of the scores.
    pub scale: f32,
    /// Preparation of the row, if this kernel performs it.
    pub prologue: Option<MlaPrepare>,
}

/// Loads a KV tile of an MLA cache as f32.
///
/// Scalars: rows, context, begin. Buffers: latents, slots, latent_tile, k_rope. Grid: a line in groups of 128
/// threads; rows.
///
/// Rows are positions, from `begin` on, of the slot of the pass's first row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MlaLoadLatents {
    /// Channels of a latent.
    pub width: usize,
    /// Channels of a RoPE key, `qk_rope_head_dim`.
    pub rope_width: usize,
    /// Format of the cache.
    pub cache: Format,
}

/// MLA attention in expanded form, for many rows over one KV tile.
///
/// Scalars: rows, begin, end. Buffers: q, q_rope, keys, k_rope, values, positions, heads, carried. Grid:
/// groups of 8 rows, heads.
///
/// q contains the queries of all heads, `q_rope` is `[row, head, rope_width]`. For the positions `begin..end` of
/// the rows' slot, `keys` is `[position, head, keys]`, `values` `[position, head, values]`, and `k_rope`
/// `[position, rope_width]`. A row attends to those of them up to its own position with softmax(scale · (q·k +
/// r·t)) v. KV tiles are processed in order from position 0 on. `heads` is `[row, head, values]`, the output
/// over the positions so far. `carried` is `[row, head, 2]`, the maximum of the scores and the denominator.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MlaAttentionExpanded {
    /// Number of heads.
    pub heads: usize,
    /// Channels of a head's key without RoPE.
    pub keys: usize,
    /// Channels of a RoPE key, `qk_rope_head_dim`.
    pub rope_width: usize,
    /// Channels of a head's value.
    pub values: usize,
    /// Row stride of q in elements: all heads, or more if they are the first columns of wider rows.
    pub queries_pitch: usize,
    /// Factor of the scores.
    pub scale: f32,
}
