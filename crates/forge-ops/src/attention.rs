//! Attention over a KV cache: preparation of rows, append, and attention. The cache has a
//! key head and a value head for each KV head and position of a slot.

use crate::format::Format;
use crate::rope::RopeParameters;
use serde::Serialize;

/// RoPE on every head of each row.
///
/// Scalars: rows\[, context\], the latter if frequencies depend on the context length. Buffers: x, positions,
/// y. Grid: a row in groups of 128 threads; rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rope {
    /// Heads of a row.
    pub heads: usize,
    /// Elements of a head.
    pub width: usize,
    /// RoPE of every head.
    pub rope: RopeParameters,
}

/// Appends keys and values to the KV cache.
///
/// Scalars: rows, context\[, capacity\]. Buffers: key, value, slots, positions, keys, values. Grid: a row in
/// groups of 128 threads; rows. `key` and `value` are `[row, head, width]`; see [`RopeAppend`] for the
/// cache.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Append {
    /// KV heads.
    pub key_heads: usize,
    /// Elements of a head.
    pub width: usize,
    /// Format of the KV cache.
    pub cache: Format,
    /// Capacity R of a ring buffer, in which position p is stored at p % R. `None`: the cache holds the whole
    /// context, and position p is stored at p. A ring adds the scalar `capacity`: the positions of a slot, R
    /// or the context length if that is less.
    pub ring: Option<usize>,
}

/// QK-norm: norm of every query head and key head, before or after RoPE.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HeadNorm {
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// Whether the norm follows RoPE. RoPE with magnitude 1 preserves the mean of squares, so only the gain
    /// is applied later.
    pub after_rope: bool,
    /// Whether value heads are normalized too, without a gain.
    pub values: bool,
}

/// What a row of the input contains besides query heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KvSource {
    /// Key heads, then value heads.
    KeysAndValues,
    /// Key heads, then value heads, then gates of the query heads.
    KeysValuesAndGates,
    /// Key heads, which are also the source of value heads. Values have no RoPE and no gain.
    Keys,
    /// Nothing: key and value are already in the cache.
    Nothing,
}

impl KvSource {
    /// Heads of an input row, query heads included.
    pub fn row_heads(self, query_heads: usize, key_heads: usize) -> usize {
        query_heads + self.cached_heads(key_heads) + if self.has_gates() { query_heads } else { 0 }
    }

    /// Number of heads before the first key head, before the first value head, and in total.
    pub fn head_offsets(self, query_heads: usize, key_heads: usize) -> [usize; 3] {
        let first_value = if self == KvSource::KeysAndValues || self.has_gates() {
            query_heads + key_heads
        } else {
            query_heads
        };
        [query_heads, first_value, self.row_heads(query_heads, key_heads)]
    }

    /// Heads of an input row that keys and values are computed from.
    pub fn cached_heads(self, key_heads: usize) -> usize {
        match self {
            KvSource::KeysAndValues | KvSource::KeysValuesAndGates => 2 * key_heads,
            KvSource::Keys => key_heads,
            KvSource::Nothing => 0,
        }
    }

    /// Whether a row contains gates.
    pub fn has_gates(self) -> bool {
        self == KvSource::KeysValuesAndGates
    }
}

impl Attend {
    /// Whether the kernel prepares and appends the key and value of its row.
    pub fn appends(&self) -> bool {
        self.prologue.as_ref().is_some_and(|prologue| prologue.kv_source != KvSource::Nothing)
    }
}

/// Location of the gates, whose sigmoids multiply the attention output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Gates {
    /// Elements per row of the buffer.
    pub pitch: usize,
    /// Column of the first gate of the first head.
    pub first: usize,
}

/// QK-norm and RoPE of queries and keys; appends keys and values to the KV cache.
///
/// Scalars: rows, context\[, capacity\]. Buffers: qkv, \[query_gain, key_gain,\] slots, positions, q, keys,
/// values. Grid: threadgroups of a row; rows.
///
/// A row of qkv has query heads, then the heads of `kv_source`. `keys` and `values` are `[slot, head,
/// context or capacity, width]` of one layer; the row's key and value are written at its slot and position.
/// Gains are `[width]`, with QK-norm only.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RopeAppend {
    /// Query heads.
    pub query_heads: usize,
    /// KV heads.
    pub key_heads: usize,
    /// Elements of a head.
    pub width: usize,
    /// Format of the KV cache.
    pub cache: Format,
    /// As in [`Append`].
    pub ring: Option<usize>,
    /// What a row of qkv has besides queries; not [`KvSource::Nothing`].
    pub kv_source: KvSource,
    /// QK-norm.
    pub norm: Option<HeadNorm>,
    /// RoPE of queries and keys.
    pub rope: RopeParameters,
}

/// Preparation of its row that split-KV attention performs first, like [`RopeAppend`]. Only correct if no
/// two rows of a pass belong to one slot.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prologue {
    /// What its row has besides queries.
    pub kv_source: KvSource,
    /// QK-norm.
    pub norm: Option<HeadNorm>,
    /// RoPE of queries and keys.
    pub rope: RopeParameters,
}

/// Attention, by one of two kernels. A row attends to the positions `first..=position`. `first` is 0 or, with
/// a window, `position + 1 - window` if that is more. Scores are scale · q·k, with an optional softcap. A
/// sink is one additional score per head (f32, `[query heads]`) without a value.
///
/// Split-KV kernel. Scalars: rows, context\[, capacity\], splits, split_positions. Buffers: q, keys, values,
/// \[sinks,\] \[gates,\] slots, positions, partials, heads. With a prologue: qkv\[, query_gain, key_gain\]
/// instead of q, keys and values are written, and a further scalar: appends, 0 if the keys and values of all rows are in
/// the cache already, which several rows of one slot need. With a prologue of queries only: q\[, query_gain\], and
/// keys and values are read. Grid: splits, KV heads, rows.
///
/// A row at position p has `p / split_positions + 1` splits, at most `splits`; further ones are empty. Split s
/// attends to the s-th even range of the row's positions; a sink counts in split 0's maximum and denominator. With one split the kernel writes `heads` (`[row, query head, width]`), otherwise
/// `partials`: `[row, query head, split, width + 2]`, which contains `width` sums weighted by exp(score -
/// maximum), the maximum, and the denominator. An empty split has sums of 0 and a maximum below -1e37.
///
/// Tiled kernel. Scalars: rows, context\[, capacity\]. Buffers: q, keys, values, \[sinks,\]
/// \[gates,\] slots, positions, heads. Grid: tiles of 8 rows, query heads; or tiles of 64 query rows (all
/// query heads of a KV head for some rows), and KV heads.
///
/// Rows of one slot are adjacent; a tile of rows that spans two slots is computed slot by slot. This kernel
/// has no prologue.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Attend {
    /// Query heads.
    pub query_heads: usize,
    /// KV heads.
    pub key_heads: usize,
    /// Elements of a head.
    pub width: usize,
    /// Format of the KV cache.
    pub cache: Format,
    /// As in [`Append`].
    pub ring: Option<usize>,
    /// Factor of q·k.
    pub scale: f32,
    /// Sliding window in positions, the row's own included; `None`: full attention.
    pub window: Option<usize>,
    /// Softcap c: a score s becomes c · tanh(s / c).
    pub softcap: Option<f32>,
    /// Whether heads have sinks.
    pub sinks: bool,
    /// Gates that multiply the output.
    pub gates: Option<Gates>,
    /// Preparation of the row, if this kernel performs it.
    pub prologue: Option<Prologue>,
}

/// Combines the KV splits of attention.
///
/// Scalars: rows, splits. Buffers: partials, \[gates,\] heads. Grid: query heads, rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AttendCombine {
    /// Query heads.
    pub query_heads: usize,
    /// Elements of a head.
    pub width: usize,
    /// As in [`Attend`].
    pub gates: Option<Gates>,
}
