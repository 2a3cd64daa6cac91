//! Template contexts of attention kernels.

use forge_ops::{Attend, Format};
use serde::Serialize;
use std::f32::consts::LOG2_E;

use crate::attention::rope::RopeTable;
use crate::context::Base;
use crate::spec::{AttendKernel, AttentionKnobs, CombineKernel};
use forge_ops::{KvSource, Prologue};

/// Elements moved at once: 4 if it divides the width, otherwise 2. The width is even.
pub(crate) fn step(width: usize) -> usize {
    if width.is_multiple_of(4) { 4 } else { 2 }
}

/// Metal type of a cached element, and bytes of registers per element.
pub(crate) fn element(cache: Format) -> (&'static str, usize) {
    match cache {
        Format::F32 => ("float", 4),
        Format::Q8_0 => ("uchar", 4),
        _ => ("half", 2),
    }
}

/// Layout of one head at one position of the KV cache, as template variables.
#[derive(Serialize)]
pub(crate) struct KvLayout {
    element: &'static str,
    /// Elements of one head at one position.
    kv_stride: usize,
    /// Whether the cache is quantized: q8 values, followed by a scale for each 32.
    quantized: bool,
}

impl KvLayout {
    pub(crate) fn of(cache: Format, width: usize) -> KvLayout {
        let quantized = cache == Format::Q8_0;
        let kv_stride = if quantized { width + width / 16 } else { width };
        KvLayout { element: element(cache).0, kv_stride, quantized }
    }

    /// Bytes of one head at one position.
    pub(crate) fn head_bytes(cache: Format, width: usize) -> usize {
        let bytes = match cache {
            Format::F32 => 4,
            Format::Q8_0 => 1,
            _ => 2,
        };
        KvLayout::of(cache, width).kv_stride * bytes
    }
}

/// How query rows are divided among threadgroups that process query heads of one KV head together, as template
/// variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct QueryRows {
    /// Query heads per KV head, and how many of them a threadgroup processes.
    group: usize,
    heads_each: usize,
    /// Rows of a threadgroup, and the query rows that it has room for.
    rows_each: usize,
    lines: usize,
}

impl QueryRows {
    pub(crate) fn of(op: &Attend, lines: usize) -> QueryRows {
        let group = op.query_heads / op.key_heads;
        let heads_each = (1..=lines).rev().find(|heads| group.is_multiple_of(*heads)).unwrap_or(1);
        QueryRows { group, heads_each, rows_each: lines / heads_each, lines }
    }

    /// Query rows of a threadgroup.
    pub(crate) fn count(self) -> usize {
        self.rows_each * self.heads_each
    }
}

/// Support unit that loads four values of a head of a q8_0 cache.
pub(crate) fn q8_loader(width: usize) -> &'static str {
    if width.is_multiple_of(64) { "record4_whole" } else { "record4_single" }
}

/// Lane distances of a shuffle reduction: from `first`, doubling, below `end`.
pub(crate) fn distances(first: usize, end: usize) -> Vec<usize> {
    std::iter::successors(Some(first), |distance| Some(distance * 2))
        .take_while(|&distance| distance < end)
        .collect()
}

/// Channels that a lane of `attend_split` loads at once: 16 bytes in f16.
const PACKET: usize = 8;

/// Lanes of `attend_split` per position of a head.
fn lanes(width: usize) -> usize {
    width.div_ceil(PACKET).next_power_of_two().min(32)
}

/// Packets of a head per lane of `attend_split`, strided by the number of lanes.
fn packets(width: usize) -> usize {
    width.div_ceil(PACKET * lanes(width))
}

/// Channels of a head per lane of `attend_split`.
pub(crate) fn channels(width: usize) -> usize {
    PACKET * packets(width)
}

/// Threadgroup memory in bytes for the query heads of a threadgroup of `attend_split`.
const QUERY_MEMORY: usize = 8 * 1024;

/// Threadgroup memory in bytes for the partial sums of simdgroups in `attend_split`.
const SUMS_MEMORY: usize = 9 * 1024;

/// [`SUMS_MEMORY`] of the MMA variant, whose register use allows only one or two threadgroups per core.
const MMA_SUMS_MEMORY: usize = 18 * 1024;

/// Stride of heads in `attend_split`'s threadgroup memory, in floats: the width in whole packets.
fn query_pitch(width: usize) -> usize {
    width.next_multiple_of(PACKET)
}

/// Whether the query heads of one KV head fit in `attend_split`'s threadgroup memory.
pub(crate) fn queries_fit(group: usize, width: usize) -> bool {
    group * query_pitch(width) * 4 <= QUERY_MEMORY
}

/// Stride of the simdgroups' partial sums in `attend_split`, in floats: sums of a head, maximum and
/// denominator.
fn sums_pitch(width: usize) -> usize {
    query_pitch(width) + 4
}

/// Minimum bytes for the partial sums of this many simdgroups of `attend_split`: one head each.
pub(crate) fn sums_bytes(simdgroups: usize, width: usize) -> usize {
    simdgroups * sums_pitch(width) * 4
}

/// Stride of the rows that `attend_tiled` stages, in floats.
pub(crate) fn staged_pitch(width: usize) -> usize {
    width.next_multiple_of(8) + 4
}

/// Threadgroup memory of `attend_tiled` in bytes with a tile of this many positions: keys or values, scores,
/// and a diagonal matrix.
pub(crate) fn tile_bytes(tile: usize, width: usize) -> usize {
    4 * (tile * staged_pitch(width) + 288 + 64)
}

/// Threadgroup memory of `attend_expanded` in bytes with a tile of this many positions, keys or values.
pub(crate) fn expanded_bytes(tile: usize, keys: usize, values: usize) -> usize {
    tile_bytes(tile, keys.max(values))
}

#[derive(Serialize)]
pub(crate) struct SplitContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a AttendKernel,
    #[serde(flatten)]
    rope: Option<RopeTable>,
    #[serde(flatten)]
    kv_layout: KvLayout,
    width_float: f32,
    /// log2(e), which converts scores to powers of 2; also multiplied by the scale.
    base_2: f32,
    scale_base_2: f32,
    /// Query heads per KV head.
    group: usize,
    /// Heads of a row of the input, before preparation.
    row_heads: usize,
    /// Whether the kernel also prepares and appends the row's own key and value.
    appends: bool,
    /// Whether values are computed from the keys' projection.
    values_are_keys: bool,
    /// Heads per simdgroup.
    heads_each: usize,
    /// Number of simdgroups with different heads.
    head_parts: usize,
    /// Number of simdgroups with different positions.
    position_parts: usize,
    /// Whether the last of `head_parts` has fewer heads.
    idle_heads: bool,
    simdgroups: usize,
    threads: usize,
    /// Lanes per position.
    lanes: usize,
    /// Packets of a lane: index, and channel offset from the first packet.
    packets: Vec<[usize; 2]>,
    /// Positions that a simdgroup loads at once.
    at_once: usize,
    /// Loads per block.
    loads: usize,
    /// Positions of a block.
    block: usize,
    /// Support function that loads a lane's channels from the cache.
    load: &'static str,
    /// Bound argument of `load`, if any.
    bound: String,
    /// Whether queries are in threadgroup memory.
    staged: bool,
    /// Support function that loads a lane's channels of an unstaged query.
    query_load: &'static str,
    /// Elements moved at once while queries are staged.
    query_step: usize,
    /// Stride of heads in threadgroup memory, in floats.
    pitch: usize,
    /// Heads that simdgroups combine at once.
    joined: usize,
    /// Stride of the partial sums that are combined, each with maximum and denominator, in floats.
    sums_pitch: usize,
    /// Threadgroup memory in floats.
    shared: usize,
    /// Shuffle distances among lanes of one position.
    within: Vec<usize>,
    /// Shuffle distances among lanes with the same channels of different positions.
    across: Vec<usize>,
}

impl<'a> SplitContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a AttendKernel) -> SplitContext<'a> {
        let group = spec.op.query_heads / spec.op.key_heads;
        let AttentionKnobs { simdgroups, heads_each, loads, .. } = spec.layout.knobs;
        let head_parts = group.div_ceil(heads_each);
        let position_parts = (simdgroups / head_parts).max(1);
        let simdgroups = head_parts * position_parts;
        let (_, bytes) = element(spec.op.cache);
        let lanes = lanes(spec.op.width);
        let at_once = 32 / lanes;
        let pitch = query_pitch(spec.op.width);
        let sums_pitch = sums_pitch(spec.op.width);
        let staged = queries_fit(group, spec.op.width);
        let kv_source = spec.op.prologue.as_ref().map_or(KvSource::Nothing, |prologue| prologue.kv_source);
        let appends = kv_source != KvSource::Nothing;
        let heads = match (appends, staged) {
            (true, _) => group + 2,
            (false, true) => group,
            (false, false) => 0,
        };
        // For f16 and for f32.
        let (loads_of, bound) = if spec.op.width == channels(spec.op.width) * lanes {
            (["half8_whole", "float8_whole"], String::new())
        } else if spec.op.width.is_multiple_of(PACKET) {
            (["half8_guarded", "float8_guarded"], format!(", {}u", spec.op.width))
        } else {
            (["half8_single", "float8_single"], format!(", {}u", spec.op.width))
        };
        let most = if spec.layout.knobs.mma { MMA_SUMS_MEMORY } else { SUMS_MEMORY };
        let fits = |joined: usize| simdgroups * joined * sums_pitch * 4 <= most;
        let joined = (1..=heads_each).rev().find(|&n| heads_each.is_multiple_of(n) && fits(n)).unwrap_or(1);
        let rope = |prologue: &Prologue| RopeTable::of(base.name, &prologue.rope, spec.op.width);
        SplitContext {
            rope: spec.op.prologue.as_ref().map(rope),
            base,
            spec,
            kv_layout: KvLayout::of(spec.op.cache, spec.op.width),
            width_float: spec.op.width as f32,
            base_2: LOG2_E,
            scale_base_2: spec.op.scale * LOG2_E,
            group,
            row_heads: kv_source.row_heads(spec.op.query_heads, spec.op.key_heads),
            appends,
            values_are_keys: kv_source == KvSource::Keys,
            heads_each,
            head_parts,
            position_parts,
            idle_heads: !group.is_multiple_of(heads_each),
            simdgroups,
            threads: 32 * simdgroups,
            lanes,
            packets: (0..packets(spec.op.width)).map(|packet| [packet, packet * PACKET * lanes]).collect(),
            at_once,
            loads,
            block: at_once * loads,
            load: match spec.op.cache {
                Format::Q8_0 => q8_loader(spec.op.width),
                _ => loads_of[usize::from(bytes == 4)],
            },
            bound,
            staged,
            query_load: loads_of[1],
            query_step: step(spec.op.width),
            pitch,
            joined,
            sums_pitch,
            shared: (heads * pitch).max(simdgroups * joined * sums_pitch),
            within: distances(1, lanes),
            across: distances(lanes, 32),
        }
    }
}

#[derive(Serialize)]
pub(crate) struct CombineContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a CombineKernel,
    /// Threads per KV split: the width, rounded up to whole simdgroups.
    padded: usize,
    /// KV splits read at once.
    parts: usize,
    threads: usize,
}

/// Threads that combine the KV splits of a head.
const JOINED_AT_ONCE: usize = 512;

impl<'a> CombineContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a CombineKernel) -> CombineContext<'a> {
        let padded = spec.op.width.next_multiple_of(32);
        let parts = (JOINED_AT_ONCE / padded).clamp(1, 8);
        CombineContext { base, spec, padded, parts, threads: parts * padded }
    }
}

#[derive(Serialize)]
pub(crate) struct TiledContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a AttendKernel,
    #[serde(flatten)]
    kv_layout: KvLayout,
    /// Support unit that loads four values of a head of a q8_0 cache.
    load: Option<&'static str>,
    /// Whether f32 is used for range only, so that products may be rounded.
    ranged: bool,
    /// Query heads per KV head.
    group: usize,
    /// Positions of a tile.
    tile: usize,
    /// The width, rounded up to a multiple of 8.
    padded: usize,
    /// Stride of staged rows, in floats.
    pitch: usize,
    /// Elements loaded at once.
    step: usize,
    /// 8 by 8 matrices in 8 rows of a head: of queries and keys, and of values.
    matrices: usize,
    value_matrices: usize,
    /// Simdgroups that share the channels of one score.
    parts: usize,
    /// Query matrices per simdgroup.
    queries_each: usize,
    /// Result matrices per simdgroup.
    sums_each: usize,
    distances: Vec<usize>,
}

impl<'a> TiledContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a AttendKernel) -> TiledContext<'a> {
        let padded = spec.op.width.next_multiple_of(8);
        let tile = spec.layout.knobs.tile;
        let matrices = padded / 8;
        let parts = 32 / tile;
        TiledContext {
            base,
            spec,
            kv_layout: KvLayout::of(spec.op.cache, spec.op.width),
            load: (spec.op.cache == Format::Q8_0).then(|| q8_loader(spec.op.width)),
            ranged: spec.op.cache != Format::F32,
            group: spec.op.query_heads / spec.op.key_heads,
            tile,
            padded,
            pitch: staged_pitch(spec.op.width),
            step: step(spec.op.width),
            matrices,
            value_matrices: matrices,
            parts,
            queries_each: matrices.div_ceil(parts),
            sums_each: matrices.div_ceil(4),
            distances: distances(tile, 32),
        }
    }
}
