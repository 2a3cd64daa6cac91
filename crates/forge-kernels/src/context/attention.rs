//! What the templates of rotation and attention read.

use forge_ir::{Format, Pairing};
use serde::Serialize;

use super::{Base, DEFAULT_MEMORY, literal};
use crate::spec::{AttendJoin, AttendSplit, AttendTiled, RotateAppend};

/// The largest of 4 and 2 that divides an even width: elements moved at once.
fn step(width: usize) -> usize {
    if width.is_multiple_of(4) { 4 } else { 2 }
}

/// The Metal type of a cached element.
fn element(cache: Format) -> (&'static str, usize) {
    match cache {
        Format::F32 => ("float", 4),
        _ => ("half", 2),
    }
}

/// Lanes whose partial scores of one position are to be added, as distances, when a simdgroup holds `tile` positions.
fn distances(tile: usize) -> Vec<usize> {
    std::iter::successors(Some(tile), |distance| Some(distance * 2))
        .take_while(|&distance| distance < 32)
        .collect()
}

#[derive(Serialize)]
pub(super) struct RotateContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    query_heads: usize,
    key_heads: usize,
    width: usize,
    pairing: Pairing,
    magnitude: f32,
    /// Of the cache.
    element: &'static str,
    /// The frequencies, six a line.
    table: Vec<String>,
    /// Frequencies.
    pairs: usize,
    /// Pairs of channels of a head.
    half: usize,
    /// Pairs of channels of a row.
    row_pairs: usize,
    row_width: usize,
    threads: usize,
}

impl<'a> RotateContext<'a> {
    pub(super) fn of(base: Base<'a>, spec: &RotateAppend) -> RotateContext<'a> {
        let row_width = (spec.query_heads + 2 * spec.key_heads) * spec.width;
        let line = |line: &[f32]| line.iter().map(|&x| literal(x)).collect::<Vec<_>>().join(", ");
        RotateContext {
            base,
            query_heads: spec.query_heads,
            key_heads: spec.key_heads,
            width: spec.width,
            pairing: spec.pairing,
            magnitude: spec.rotation.magnitude,
            element: element(spec.cache).0,
            table: spec.rotation.frequencies.chunks(6).map(line).collect(),
            pairs: spec.rotation.frequencies.len(),
            half: spec.width / 2,
            row_pairs: row_width / 2,
            row_width,
            threads: 128,
        }
    }
}

#[derive(Serialize)]
pub(super) struct SplitContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a AttendSplit,
    element: &'static str,
    /// Query heads that read one key head.
    group: usize,
    /// Heads of a simdgroup.
    heads_each: usize,
    /// Whether the last simdgroup has heads past the last.
    idle_heads: bool,
    threads: usize,
    /// Positions staged at once.
    tile: usize,
    /// Elements between positions.
    pitch: usize,
    /// Elements loaded at once.
    step: usize,
    /// The type of a lane's sums of values.
    sum: &'static str,
    /// Of those, for each head.
    sums_each: usize,
    /// Whether lanes have channels past the last.
    ragged: bool,
    distances: Vec<usize>,
}

impl<'a> SplitContext<'a> {
    pub(super) fn of(base: Base<'a>, spec: &'a AttendSplit) -> SplitContext<'a> {
        let group = spec.query_heads / spec.key_heads;
        let heads_each = group.div_ceil(8);
        let simdgroups = group.div_ceil(heads_each);
        let (element, bytes) = element(spec.cache);
        let pitch = spec.width + step(spec.width);
        let tile = [32, 16, 8].into_iter().find(|tile| tile * pitch * bytes <= DEFAULT_MEMORY).unwrap_or(8);
        let (sum, channels) = if spec.width.is_multiple_of(64) { ("float2", 64) } else { ("float", 32) };
        SplitContext {
            base,
            spec,
            element,
            group,
            heads_each,
            idle_heads: !group.is_multiple_of(heads_each),
            threads: 32 * simdgroups,
            tile,
            pitch,
            step: step(spec.width),
            sum,
            sums_each: spec.width.div_ceil(channels),
            ragged: !spec.width.is_multiple_of(channels),
            distances: distances(tile),
        }
    }
}

#[derive(Serialize)]
pub(super) struct JoinContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a AttendJoin,
    threads: usize,
}

impl<'a> JoinContext<'a> {
    pub(super) fn of(base: Base<'a>, spec: &'a AttendJoin) -> JoinContext<'a> {
        JoinContext { base, spec, threads: spec.width.next_multiple_of(32) }
    }
}

#[derive(Serialize)]
pub(super) struct TiledContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a AttendTiled,
    element: &'static str,
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
    /// 8 by 8 matrices in 8 rows of a head.
    matrices: usize,
    /// Simdgroups that share the channels of one score.
    parts: usize,
    /// Matrices of queries of a simdgroup.
    queries_each: usize,
    /// Matrices of the result of a simdgroup.
    sums_each: usize,
    distances: Vec<usize>,
}

impl<'a> TiledContext<'a> {
    pub(super) fn of(base: Base<'a>, spec: &'a AttendTiled) -> TiledContext<'a> {
        let padded = spec.width.next_multiple_of(8);
        let pitch = padded + 4;
        // Scores and the diagonal take 288 and 64 floats.
        let room = DEFAULT_MEMORY / 4 - 288 - 64;
        let tile = [32, 16, 8].into_iter().find(|tile| tile * pitch <= room).unwrap_or(8);
        let matrices = padded / 8;
        let parts = 32 / tile;
        TiledContext {
            base,
            spec,
            element: element(spec.cache).0,
            group: spec.query_heads / spec.key_heads,
            tile,
            padded,
            pitch,
            step: step(spec.width),
            matrices,
            parts,
            queries_each: matrices.div_ceil(parts),
            sums_each: matrices.div_ceil(4),
            distances: distances(tile),
        }
    }
}
