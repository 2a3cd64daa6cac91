//! What kernels of attention over keys and values are asked to be: how a row is prepared, what goes to the cache, and how it
//! attends. A cache has a head of keys and one of values for each position of a slot.

use forge_ir::{Format, Pairing, Rotation};
use serde::{Deserialize, Serialize};

use crate::spec::Rows;

/// See [`crate::spec::Spec::Rotate`]. Scalars: rows\[, context\], the latter where a long context has frequencies of its own. Buffers: x, positions, y. Grid: by 128 threads a row; rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rotate {
    /// Heads of a row.
    pub heads: usize,
    /// Width of a head.
    pub width: usize,
    /// Of every head.
    pub rotation: Rotation,
    /// `rotation.pairing`, where the template can branch on it.
    pub pairing: Pairing,
}

/// See [`crate::spec::Spec::Append`]. Scalars: rows, context\[, capacity\]. Buffers: key, value, slots, positions, keys, values. Grid: by 128
/// threads a row; rows. `key` and `value` are `[row, head, width]`; see [`RotateAppend`] for the cache.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Append {
    /// Key and value heads.
    pub key_heads: usize,
    /// Width of a head.
    pub width: usize,
    /// Of keys and values in the cache.
    pub cache: Format,
    /// R, where the cache is a ring, in which position p lies at p % R; `None`: it has room for every position of the
    /// context, and p lies at p. A ring adds the scalar `capacity`: the positions that a slot has room for, R of them or,
    /// in a shorter context, as many as that has.
    pub ring: Option<usize>,
}

/// The norm of every query head and every key head, before it is rotated or after.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HeadNorm {
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// Whether it is of heads that have been turned. A rotation leaves the mean of squares as it is, if its magnitude is 1:
    /// only the gain comes later.
    pub turned: bool,
    /// Whether value heads are normed, too, without a gain.
    pub values: bool,
}

/// What a row has for the cache, beside its query heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KvSource {
    /// Key heads, then value heads.
    KeysAndValues,
    /// Key heads, then value heads, then the gates of query heads.
    KeysValuesAndGates,
    /// Key heads, of which value heads are made, too: these are neither turned nor multiplied by a gain.
    Keys,
    /// Nothing: its key and value are in the cache.
    Nothing,
}

impl KvSource {
    /// Heads of a row, query heads included.
    pub fn row_heads(self, query_heads: usize, key_heads: usize) -> usize {
        query_heads + self.cached_heads(key_heads) + if self.has_gates() { query_heads } else { 0 }
    }

    /// Heads of a row that are for the cache, or made into what is.
    pub fn cached_heads(self, key_heads: usize) -> usize {
        match self {
            KvSource::KeysAndValues | KvSource::KeysValuesAndGates => 2 * key_heads,
            KvSource::Keys => key_heads,
            KvSource::Nothing => 0,
        }
    }

    /// Whether a row has gates, too.
    pub fn has_gates(self) -> bool {
        self == KvSource::KeysValuesAndGates
    }
}

impl Attend {
    /// Whether it prepares the key and the value of its row, and appends them.
    pub fn appends(&self) -> bool {
        self.prologue.as_ref().is_some_and(|prologue| prologue.brings != KvSource::Nothing)
    }
}

/// Where the gates of a row's heads are, of which sigmoids multiply what attention gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Gates {
    /// Numbers of a row.
    pub pitch: usize,
    /// The first gate of its first head.
    pub first: usize,
}

/// See [`crate::spec::Spec::RotateAppend`]. Scalars: rows, context\[, capacity\]. Buffers: qkv, \[query_gain, key_gain,\] slots, positions, q, keys,
/// values. Grid: threadgroups that a row needs; rows.
///
/// A row of qkv is query heads, then what it brings. `keys` and `values` are
/// `[slot, head, context or capacity, width]` of one layer; the row's key and value go to its slot and position. Gains are
/// `[width]`, and there if there is a norm of heads.
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
    /// As in [`Append`].
    pub ring: Option<usize>,
    /// What a row of qkv has beside queries; not nothing.
    pub brings: KvSource,
    /// Of queries and keys.
    pub norm: Option<HeadNorm>,
    /// Of queries and keys.
    pub rotation: Rotation,
    /// `rotation.pairing`, where the template can branch on it.
    pub pairing: Pairing,
}

/// Attention's own preparation of its row: what [`crate::spec::Spec::RotateAppend`] does, as the first thing that [`crate::spec::Spec::AttendSplit`]
/// does. Right where no two rows of a pass are of one slot; used for one row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prologue {
    /// What its row has beside queries.
    pub brings: KvSource,
    /// Of queries and keys.
    pub norm: Option<HeadNorm>,
    /// Of queries and keys.
    pub rotation: Rotation,
    /// `rotation.pairing`, where the template can branch on it.
    pub pairing: Pairing,
}

/// Attention, by either kernel. A row attends to the positions `first..=position`, where first is 0 or, with a window,
/// `position + 1 - window` if that is more. Scores are scale · q·k, then capped. A sink is one more score of its head (f32,
/// `[query heads]`) that has no value.
///
/// [`crate::spec::Spec::AttendSplit`]. Scalars: rows, context\[, capacity\], splits. Buffers: q, keys, values, \[sinks,\] \[gates,\] slots,
/// positions, partials, heads. With a prologue: qkv\[, query_gain, key_gain\] in place of q, and keys and values are written; where its row
/// brings nothing: q\[, query_gain\], and they are read. Grid: splits, key heads, rows.
///
/// Split s of a row attends to the s-th of `splits` even shares of its positions; a sink counts in split 0's maximum and sum of
/// weights. With one split it writes `heads` (`[row, query head, width]`), else `partials`:
/// `[row, query head, split, width + 2]`, of which the first `width` are sums weighted by exp(score - maximum), then the
/// maximum, then the sum of weights. A share may be empty: its sums are 0 and its maximum is below -1e37.
///
/// [`crate::spec::Spec::AttendTiled`]. Scalars: rows, context\[, capacity\]. Buffers: q, keys, values, \[sinks,\] \[gates,\] slots, positions,
/// heads. Grid: tiles of 8 rows, query heads; or tiles of rows that have 64 lines with the heads that share a key head, and such heads.
///
/// Rows of one slot are neighbours; a tile of rows that spans two slots is computed slot by slot. It prepares no rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Attend {
    /// Query heads.
    pub query_heads: usize,
    /// Key and value heads.
    pub key_heads: usize,
    /// Width of a head.
    pub width: usize,
    /// Of keys and values in the cache.
    pub cache: Format,
    /// As in [`Append`].
    pub ring: Option<usize>,
    /// Multiplies q·k.
    pub scale: f32,
    /// Positions that a row sees, itself included; `None`: all so far.
    pub window: Option<usize>,
    /// c, where a score s becomes c · tanh(s / c).
    pub softcap: Option<f32>,
    /// Whether heads have sinks.
    pub sinks: bool,
    /// What multiplies the heads that it gives.
    pub gates: Option<Gates>,
    /// What prepares the row, if that is left to this kernel.
    pub prologue: Option<Prologue>,
    /// How the work is laid over threads.
    pub knobs: AttentionKnobs,
}

/// Threadgroups of attention of few rows that a core is given where no kernel says otherwise.
pub const AT_ONCE: usize = 3;

/// The knobs of attention. Which of them matter depends on the kernel: how a cache is shared out among threadgroups is none of them,
/// as a program decides that in each pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionKnobs {
    /// Simdgroups of a threadgroup, or a few less where those that have different heads are no divisor of it (split).
    pub simdgroups: usize,
    /// Query heads that a simdgroup serves with what it loads (split).
    pub heads_each: usize,
    /// Whether matrix units meet the cache, eight heads and eight positions at once, and the halves nearest to queries and weights
    /// and what these leave are multiplied by themselves (split).
    #[serde(default)]
    pub units: bool,
    /// How often a simdgroup loads positions before it computes (split).
    pub loads: usize,
    /// Positions staged at once (tiled): 8, 16 or 32.
    pub tile: usize,
    /// Lines of a threadgroup (tiled), each a row of one head: 8 of one head, as in older tables, or 64 of the heads that share a key
    /// head. The two are texts of their own.
    #[serde(default = "lines_of_one_head")]
    pub lines: usize,
}

fn lines_of_one_head() -> usize {
    8
}

impl AttentionKnobs {
    /// Threadgroups of few rows of heads so wide that run side by side on a core. Where matrix units meet a cache registers leave
    /// a multiprocessor room for one, and for two of narrow heads. Measured on an H100, ids a second after 32,768 positions with one,
    /// two and three: a 30B of 8 heads a key, 128 wide, 296, 273 and 255, an 8B of 4 285, 273 and 266, a 1B of 4 heads a key, 64 wide,
    /// 1,116, 1,133 and 1,078.
    pub fn at_once(&self, width: usize) -> usize {
        match self.units {
            true if width > 64 => 1,
            true => 2,
            false => AT_ONCE,
        }
    }

    /// What they are, in a kernel's name: those that matter for so many rows.
    pub fn name(&self, rows: Rows) -> String {
        let AttentionKnobs { simdgroups, heads_each, units, loads, tile, lines } = self;
        match rows {
            Rows::One | Rows::Few if *units => format!("g{simdgroups}_u"),
            Rows::One | Rows::Few => format!("g{simdgroups}_h{heads_each}_l{loads}"),
            Rows::Many if *lines == 8 => format!("t{tile}"),
            Rows::Many => format!("n{lines}_t{tile}"),
        }
    }
}

/// See [`crate::spec::Spec::AttendJoin`]. Scalars: rows, splits. Buffers: partials, \[gates,\] heads. Grid: query heads, rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AttendJoin {
    /// Query heads.
    pub query_heads: usize,
    /// Width of a head.
    pub width: usize,
    /// As in [`Attend`].
    pub gates: Option<Gates>,
}
