//! What a kernel instance is asked to be: every shape, format and knob, before any text exists.
//!
//! A spec says all that a template may know; what follows from it is computed beside its fields. Two equal specs render
//! the same text, so the planner deduplicates instances by comparing specs.
//!
//! Each spec's documentation names the kernel's scalars and buffers in their order, and its grid: threadgroups along
//! x, y and z. "Planes" of a weight are `<weight>_values`, or `<weight>_codes` and `<weight>_scales`; values and codes are
//! read as packets of 16 bytes (`uint4`), scales as `half`.

use forge_ir::{Activation, Format, Pairing, Rotation};
use serde::Serialize;

/// A kernel instance to be rendered.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "family", rename_all = "snake_case")]
pub enum Spec {
    /// ids -> rows of the table, widened to f32.
    Embed(Embed),
    /// Root-mean-square norm of each row.
    RmsNorm(RmsNorm),
    /// y = W x for one row or a few or many, with a bias before and an epilogue after.
    Project(Project),
    /// Rotate queries and keys, append keys and values to the cache.
    RotateAppend(RotateAppend),
    /// Attention of few rows, split over the cache.
    AttendSplit(AttendSplit),
    /// Joins the splits of [`Spec::AttendSplit`].
    AttendJoin(AttendJoin),
    /// Attention of many rows with an online softmax.
    AttendTiled(AttendTiled),
    /// The id of the largest logit of each row.
    Argmax(Argmax),
}

/// See [`Spec::Embed`]. Scalars: rows. Buffers: table planes, ids, stream. Grid: rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Embed {
    /// Of the table.
    pub format: Format,
    /// Rows of the table. An id outside reads row 0: the host has refused it already.
    pub vocabulary: usize,
    /// Columns of the table.
    pub width: usize,
}

/// See [`Spec::RmsNorm`]. Scalars: rows. Buffers: x, gain, \[wanted,\] y. Grid: rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RmsNorm {
    /// Of a row.
    pub width: usize,
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// Whether row i of y is the norm of row `wanted[i]` of x.
    pub gather: bool,
}

/// How many rows of x a projection is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// One: every weight is used once, straight from memory.
    One,
    /// 2 to 16: a weight is decoded once and used for a few rows.
    Few,
    /// More: tiles in threadgroup memory, products on the matrix unit.
    Many,
}

/// What becomes of a projection's result v for output o of row r.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Epilogue {
    /// `y[r][o] = v`
    Store,
    /// `y[r][o] += v`
    Add,
    /// Outputs alternate gate, up: `y[r][o / 2] = activation(gate) * up`
    Gate(Activation),
}

/// See [`Spec::Project`]. Scalars: rows. Buffers: weight planes, \[bias,\] x, y. Grid: by knobs; see the kernel's own.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Project {
    /// Rows of x it is made for.
    pub rows: Rows,
    /// Of the weight.
    pub format: Format,
    /// Rows of the weight; with [`Epilogue::Gate`], twice the width of y.
    pub outputs: usize,
    /// Columns of the weight, and the width of x.
    pub inputs: usize,
    /// Whether a bias (f32, `[outputs]`) is added.
    pub bias: bool,
    /// What becomes of the result.
    pub epilogue: Epilogue,
    /// How the work is laid over threads.
    pub knobs: Knobs,
}

/// The knobs of a projection. Which of them matter depends on [`Rows`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Knobs {
    /// Weight rows that a simdgroup computes at once (one, few).
    pub rows_per_simdgroup: usize,
    /// Simdgroups of a threadgroup (one, few).
    pub simdgroups: usize,
    /// Simdgroups that share a weight row, each a part of its columns (one).
    pub split: usize,
    /// Rows of x that a threadgroup computes at once (few; many).
    pub tile_rows: usize,
    /// Outputs of a tile (many).
    pub tile_outputs: usize,
}

/// See [`Spec::RotateAppend`]. Scalars: rows, context. Buffers: qkv, slots, positions, q, keys, values.
/// Grid: as many as 128 threads each need for half the channels of a row; rows.
///
/// A row of qkv is query heads, then key heads, then value heads. `keys` and `values` are
/// `[slot, head, context, width]` of one layer; the row's key and value go to its slot and position.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RotateAppend {
    /// Query heads.
    pub query_heads: usize,
    /// Key and value heads.
    pub key_heads: usize,
    /// Width of a head.
    pub width: usize,
    /// Of keys and values in the cache.
    pub cache: Format,
    /// Of queries and keys.
    pub rotation: Rotation,
    /// `rotation.pairing`, where the template can branch on it.
    pub pairing: Pairing,
}

/// See [`Spec::AttendSplit`]. Scalars: rows, context, splits. Buffers: q, keys, values, slots, positions, partials, heads.
/// Grid: splits, key heads, rows.
///
/// Split s of a row attends to the s-th of `splits` even shares of positions `0..=position`. With one split it writes
/// `heads` (`[row, query head, width]`), else `partials`: `[row, query head, split, width + 2]`, of which the first
/// `width` are sums weighted by exp(score - maximum), then the maximum, then the sum of weights. A share may be empty:
/// its sums are 0 and its maximum -1e38.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AttendSplit {
    /// Query heads.
    pub query_heads: usize,
    /// Key and value heads.
    pub key_heads: usize,
    /// Width of a head.
    pub width: usize,
    /// Of keys and values in the cache.
    pub cache: Format,
    /// Multiplies q·k.
    pub scale: f32,
}

/// See [`Spec::AttendJoin`]. Scalars: rows, splits. Buffers: partials, heads. Grid: query heads, rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AttendJoin {
    /// Query heads.
    pub query_heads: usize,
    /// Width of a head.
    pub width: usize,
}

/// See [`Spec::AttendTiled`]. Scalars: rows, context. Buffers: q, keys, values, slots, positions, heads.
/// Grid: tiles of 8 rows, query heads.
///
/// Rows of one slot are neighbours; a tile of rows that spans two slots is computed slot by slot.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AttendTiled {
    /// Query heads.
    pub query_heads: usize,
    /// Key and value heads.
    pub key_heads: usize,
    /// Width of a head.
    pub width: usize,
    /// Of keys and values in the cache.
    pub cache: Format,
    /// Multiplies q·k.
    pub scale: f32,
}

/// See [`Spec::Argmax`]. Scalars: rows. Buffers: logits, ids. Grid: rows. Of equals the lowest id wins; what is not a
/// number never does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Argmax {
    /// Logits a row.
    pub vocabulary: usize,
}
