//! Template context of prefill attention without threadgroup memory, for Apple GPUs.

use forge_ops::{BLOCK, Format};
use serde::Serialize;
use std::f32::consts::LOG2_E;

use crate::attention::context::{KvLayout, QueryRows};
use crate::context::Base;
use crate::spec::AttendKernel;

/// Query rows (row and head pairs) of a threadgroup of `attend_direct`: 8 for each of 4 simdgroups.
pub(crate) const DIRECT_LINES: usize = 32;

/// Maximum head width of `attend_direct`: a lane holds 64 sums.
pub(crate) const WIDEST_DIRECT: usize = 256;

/// Maximum head width whose queries a lane also holds: 32 values.
const WIDEST_QUERIES: usize = 128;

/// How a lane loads a head at one position, as template variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Packets {
    /// Channels that a lane loads at once.
    per_packet: usize,
    /// 8 by 8 matrices of a packet: a lane has two channels of each.
    pairs: usize,
    /// Packets of a lane; four lanes load a head.
    packets: usize,
    /// The width, rounded up to whole packets of four lanes.
    padded: usize,
    /// Metal type of a packet, and its zero.
    packet: &'static str,
    zero: &'static str,
}

impl Packets {
    /// At most 16 bytes, or 8 codes, which are a quarter of a block. Less if that avoids padding.
    pub(crate) fn of(width: usize, cache: Format) -> Packets {
        let is_f32 = cache == Format::F32;
        let fits = |each: &&usize| !is_f32 || **each <= 4;
        let exact = [8, 4].iter().filter(fits).find(|each| width.is_multiple_of(4 * **each));
        let whole = [8, 4, 2].iter().filter(fits).find(|each| width.is_multiple_of(**each));
        let per_packet = *exact.or(whole).unwrap_or(&2);
        let packets = width.div_ceil(4 * per_packet);
        let (packet, zero) = match (is_f32, cache, per_packet) {
            (true, _, 4) => ("float4", "0.0f"),
            (true, ..) => ("float2", "0.0f"),
            (_, Format::Q8_0, _) | (_, _, 4) => ("uint2", "0u"),
            (_, _, 8) => ("uint4", "0u"),
            _ => ("uint", "0u"),
        };
        Packets { per_packet, pairs: per_packet / 2, packets, padded: packets * 4 * per_packet, packet, zero }
    }
}

/// Positions of a tile of tensors.
const TENSOR_TILE: usize = 32;

/// Maximum head width with tensors: queries and scores take 16 KB of threadgroup memory.
const WIDEST_TENSOR: usize = 128;

/// Whether `attend_direct` multiplies tensors in Metal 4. They are f16, and positions have equal distances.
pub(crate) fn has_tensors(spec: &AttendKernel) -> bool {
    let op = &spec.op;
    let fits = op.width.is_multiple_of(16) && op.width <= WIDEST_TENSOR;
    spec.layout.knobs.lines == DIRECT_LINES && op.cache == Format::F16 && op.ring.is_none() && fits
}

fn keeps_queries(loads: Packets) -> bool {
    loads.padded <= WIDEST_QUERIES
}

#[derive(Serialize)]
pub(crate) struct DirectContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a AttendKernel,
    #[serde(flatten)]
    kv_layout: KvLayout,
    #[serde(flatten)]
    loads: Packets,
    /// Support function that loads codes of a q8_0 cache.
    load: Option<&'static str>,
    /// Metal type of keys and values as factors.
    staged: &'static str,
    /// log2(e), which converts scores to powers of 2; also multiplied by the scale.
    base_2: f32,
    scale_base_2: f32,
    #[serde(flatten)]
    query_rows: QueryRows,
    /// Positions of a tile.
    tile: usize,
    /// 8 by 8 matrices in 8 query rows.
    matrices: usize,
    /// Whether queries stay in registers.
    keeps_queries: bool,
    /// Whether Metal 4 multiplies tensors, with this many positions in a tile.
    has_tensors: bool,
    tensor_tile: usize,
}

impl<'a> DirectContext<'a> {
    /// Bytes that the four simdgroups of a threadgroup load for a position, and the query rows of a
    /// threadgroup.
    pub(crate) fn on_core_bytes(spec: &AttendKernel) -> (usize, usize) {
        let AttendKernel { op, layout } = spec;
        let loads = Packets::of(op.width, op.cache);
        let queries = if keeps_queries(loads) { 0 } else { 8 * 4 * op.width / layout.knobs.tile };
        let cached = match op.cache {
            // Each of the four lanes of a block loads its scale.
            Format::Q8_0 => 2 * (op.width + 4 * 2 * op.width / BLOCK),
            cache => 2 * KvLayout::head_bytes(cache, op.width),
        };
        (4 * (cached + queries), QueryRows::of(op, DIRECT_LINES).count())
    }

    pub(crate) fn of(base: Base<'a>, spec: &'a AttendKernel) -> DirectContext<'a> {
        let loads = Packets::of(spec.op.width, spec.op.cache);
        let load = if spec.op.width.is_multiple_of(64) { "codes8_whole" } else { "codes8_single" };
        DirectContext {
            base,
            spec,
            kv_layout: KvLayout::of(spec.op.cache, spec.op.width),
            loads,
            load: (spec.op.cache == Format::Q8_0).then_some(load),
            staged: if spec.op.cache == Format::F32 { "float" } else { "half" },
            base_2: LOG2_E,
            scale_base_2: spec.op.scale * LOG2_E,
            query_rows: QueryRows::of(&spec.op, DIRECT_LINES),
            tile: spec.layout.knobs.tile,
            matrices: loads.padded / 8,
            keeps_queries: keeps_queries(loads),
            has_tensors: has_tensors(spec),
            tensor_tile: TENSOR_TILE,
        }
    }
}
