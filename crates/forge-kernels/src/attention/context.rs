//! What the templates of attention read.

use forge_ir::Format;
use serde::Serialize;
use std::f32::consts::LOG2_E;

use crate::attention::rope::Turn;
use crate::context::Base;
use crate::spec::{Attend, AttendJoin, AttentionKnobs, KvSource, Prologue};

/// The largest of 4 and 2 that divides an even width: elements moved at once.
pub(crate) fn step(width: usize) -> usize {
    if width.is_multiple_of(4) { 4 } else { 2 }
}

/// The Metal type of a cached element, and bytes of registers that a number takes.
pub(crate) fn element(cache: Format) -> (&'static str, usize) {
    match cache {
        Format::F32 => ("float", 4),
        Format::Q8_0 => ("uchar", 4),
        _ => ("half", 2),
    }
}

/// How a cache keeps a head of a position, as templates print it.
#[derive(Serialize)]
pub(crate) struct Kept {
    element: &'static str,
    /// Elements of a head of a position.
    record: usize,
    /// Whether they are codes, and then the scales of each 32 of them.
    quantised: bool,
}

impl Kept {
    pub(crate) fn of(cache: Format, width: usize) -> Kept {
        let quantised = cache == Format::Q8_0;
        let record = if quantised { width + width / 16 } else { width };
        Kept { element: element(cache).0, record, quantised }
    }
}

/// The support unit that loads four numbers of a record.
pub(crate) fn load_record(width: usize) -> &'static str {
    if width.is_multiple_of(64) { "record4_whole" } else { "record4_single" }
}

/// Distances by which a value is shuffled to be combined over lanes: from `first`, doubling, below `end`.
pub(crate) fn distances(first: usize, end: usize) -> Vec<usize> {
    std::iter::successors(Some(first), |distance| Some(distance * 2))
        .take_while(|&distance| distance < end)
        .collect()
}

/// Channels that a lane of `attend_split` loads at once: 16 bytes in f16.
const PACKET: usize = 8;

/// Lanes of `attend_split` that share a position of a head.
fn lanes(width: usize) -> usize {
    width.div_ceil(PACKET).next_power_of_two().min(32)
}

/// Packets of a head of a position that a lane of `attend_split` has, one every so many lanes.
fn packets(width: usize) -> usize {
    width.div_ceil(PACKET * lanes(width))
}

/// Channels of a head that a lane of `attend_split` has.
pub(crate) fn channels(width: usize) -> usize {
    PACKET * packets(width)
}

/// Threadgroup memory for the query heads of a threadgroup of `attend_split`.
const QUERY_MEMORY: usize = 8 * 1024;

/// Threadgroup memory for the sums of simdgroups of `attend_split`.
const SUMS_MEMORY: usize = 9 * 1024;

/// The same where matrix units meet a cache: registers leave room for one threadgroup or two.
const UNIT_SUMS_MEMORY: usize = 18 * 1024;

/// Floats between heads in the threadgroup memory of `attend_split`: the width in whole lanes.
fn query_pitch(width: usize) -> usize {
    width.next_multiple_of(PACKET)
}

/// Whether `attend_split` has room for the query heads that read one key head.
pub(crate) fn queries_fit(group: usize, width: usize) -> bool {
    group * query_pitch(width) * 4 <= QUERY_MEMORY
}

/// Floats between the sums of one simdgroup and those of the next in `attend_split`: those of a head, its maximum and its total.
fn sums_pitch(width: usize) -> usize {
    query_pitch(width) + 4
}

/// Bytes that the sums of so many simdgroups of `attend_split` take at least: of a head of each.
pub(crate) fn sums_bytes(simdgroups: usize, width: usize) -> usize {
    simdgroups * sums_pitch(width) * 4
}

/// Floats between the rows that `attend_tiled` stages.
pub(crate) fn staged_pitch(width: usize) -> usize {
    width.next_multiple_of(8) + 4
}

/// Bytes of threadgroup memory of `attend_tiled` with so many positions staged at once: those, scores, and a diagonal.
pub(crate) fn tile_bytes(tile: usize, width: usize) -> usize {
    4 * (tile * staged_pitch(width) + 288 + 64)
}

/// Bytes of threadgroup memory of `attend_unfolded` with so many positions staged at once, keys or values.
pub(crate) fn unfolded_bytes(tile: usize, keys: usize, values: usize) -> usize {
    tile_bytes(tile, keys.max(values))
}

#[derive(Serialize)]
pub(crate) struct SplitContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a Attend,
    #[serde(flatten)]
    turn: Option<Turn>,
    #[serde(flatten)]
    kept: Kept,
    width_float: f32,
    /// What turns scores of powers of e to those of powers of 2, and as well what scales them.
    base_2: f32,
    scale_base_2: f32,
    /// Query heads that read one key head.
    group: usize,
    /// Heads of a row before it is prepared.
    row_heads: usize,
    /// Whether it prepares the row's own key and value, too, and appends them.
    appends: bool,
    /// Whether values are made of what keys are made of.
    values_are_keys: bool,
    /// Heads of a simdgroup.
    heads_each: usize,
    /// Simdgroups that have different heads.
    head_parts: usize,
    /// Simdgroups that have different positions.
    position_parts: usize,
    /// Whether the last of `head_parts` has heads past the last.
    idle_heads: bool,
    simdgroups: usize,
    threads: usize,
    /// Lanes that share a position.
    lanes: usize,
    /// The packets of a lane: each one's number, and how far its first channel is from that of the first.
    packets: Vec<[usize; 2]>,
    /// Positions that a simdgroup loads at once.
    at_once: usize,
    /// How often it does in a block.
    loads: usize,
    /// Positions of a block.
    block: usize,
    /// The support function that loads a lane's channels from the cache.
    load: &'static str,
    /// Its argument, where it has a bound.
    bound: String,
    /// Whether queries are in threadgroup memory.
    staged: bool,
    /// The support function that loads a lane's channels of a query that is not.
    query_load: &'static str,
    /// Elements moved at once while queries are staged.
    query_step: usize,
    /// Floats between heads in threadgroup memory.
    pitch: usize,
    /// Heads that simdgroups join at once.
    joined: usize,
    /// Floats between sums of values that are to be joined, each with its maximum and total.
    sums_pitch: usize,
    /// Floats of threadgroup memory.
    shared: usize,
    /// Distances of the lanes that share a position.
    within: Vec<usize>,
    /// Distances of the lanes that have the same channels of other positions.
    across: Vec<usize>,
}

impl<'a> SplitContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a Attend) -> SplitContext<'a> {
        let group = spec.query_heads / spec.key_heads;
        let AttentionKnobs { simdgroups, heads_each, loads, .. } = spec.knobs;
        let head_parts = group.div_ceil(heads_each);
        let position_parts = (simdgroups / head_parts).max(1);
        let simdgroups = head_parts * position_parts;
        let (_, bytes) = element(spec.cache);
        let lanes = lanes(spec.width);
        let at_once = 32 / lanes;
        let pitch = query_pitch(spec.width);
        let sums_pitch = sums_pitch(spec.width);
        let staged = queries_fit(group, spec.width);
        let brings = spec.prologue.as_ref().map_or(KvSource::Nothing, |prologue| prologue.brings);
        let appends = brings != KvSource::Nothing;
        let heads = match (appends, staged) {
            (true, _) => group + 2,
            (false, true) => group,
            (false, false) => 0,
        };
        // Of halves and of floats.
        let (loads_of, bound) = if spec.width == channels(spec.width) * lanes {
            (["half8_whole", "float8_whole"], String::new())
        } else if spec.width.is_multiple_of(PACKET) {
            (["half8_guarded", "float8_guarded"], format!(", {}u", spec.width))
        } else {
            (["half8_single", "float8_single"], format!(", {}u", spec.width))
        };
        let most = if spec.knobs.units { UNIT_SUMS_MEMORY } else { SUMS_MEMORY };
        let fits = |joined: usize| simdgroups * joined * sums_pitch * 4 <= most;
        let joined = (1..=heads_each).rev().find(|&n| heads_each.is_multiple_of(n) && fits(n)).unwrap_or(1);
        let turn =
            |prologue: &Prologue| Turn::of(base.name, &prologue.rotation, prologue.pairing, spec.width);
        SplitContext {
            turn: spec.prologue.as_ref().map(turn),
            base,
            spec,
            kept: Kept::of(spec.cache, spec.width),
            width_float: spec.width as f32,
            base_2: LOG2_E,
            scale_base_2: spec.scale * LOG2_E,
            group,
            row_heads: brings.row_heads(spec.query_heads, spec.key_heads),
            appends,
            values_are_keys: brings == KvSource::Keys,
            heads_each,
            head_parts,
            position_parts,
            idle_heads: !group.is_multiple_of(heads_each),
            simdgroups,
            threads: 32 * simdgroups,
            lanes,
            packets: (0..packets(spec.width)).map(|packet| [packet, packet * PACKET * lanes]).collect(),
            at_once,
            loads,
            block: at_once * loads,
            load: match spec.cache {
                Format::Q8_0 => load_record(spec.width),
                _ => loads_of[usize::from(bytes == 4)],
            },
            bound,
            staged,
            query_load: loads_of[1],
            query_step: step(spec.width),
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
pub(crate) struct JoinContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a AttendJoin,
    /// Threads that have a share: the width, up to whole simdgroups.
    padded: usize,
    /// Shares that are read at once.
    parts: usize,
    threads: usize,
}

/// Threads that join the shares of a head.
const JOINED_AT_ONCE: usize = 512;

impl<'a> JoinContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a AttendJoin) -> JoinContext<'a> {
        let padded = spec.width.next_multiple_of(32);
        let parts = (JOINED_AT_ONCE / padded).clamp(1, 8);
        JoinContext { base, spec, padded, parts, threads: parts * padded }
    }
}

#[derive(Serialize)]
pub(crate) struct TiledContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a Attend,
    #[serde(flatten)]
    kept: Kept,
    /// The support unit that loads four numbers of a record.
    load: Option<&'static str>,
    /// Whether singles are singles for their range alone.
    ranged: bool,
    /// Query heads that read one key head.
    group: usize,
    /// Positions staged at once.
    tile: usize,
    /// The width, up to a multiple of 8.
    padded: usize,
    /// Floats between staged rows.
    pitch: usize,
    /// Elements loaded at once.
    step: usize,
    /// 8 by 8 matrices in 8 rows of a head: of queries and keys, and of values.
    matrices: usize,
    value_matrices: usize,
    /// Simdgroups that share the channels of one score.
    parts: usize,
    /// Matrices of queries of a simdgroup.
    queries_each: usize,
    /// Matrices of the result of a simdgroup.
    sums_each: usize,
    distances: Vec<usize>,
}

impl<'a> TiledContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a Attend) -> TiledContext<'a> {
        let padded = spec.width.next_multiple_of(8);
        let tile = spec.knobs.tile;
        let matrices = padded / 8;
        let parts = 32 / tile;
        TiledContext {
            base,
            spec,
            kept: Kept::of(spec.cache, spec.width),
            load: (spec.cache == Format::Q8_0).then(|| load_record(spec.width)),
            ranged: spec.cache != Format::F32,
            group: spec.query_heads / spec.key_heads,
            tile,
            padded,
            pitch: staged_pitch(spec.width),
            step: step(spec.width),
            matrices,
            value_matrices: matrices,
            parts,
            queries_each: matrices.div_ceil(parts),
            sums_each: matrices.div_ceil(4),
            distances: distances(tile, 32),
        }
    }
}
