//! Template context of tiled GQA attention, whose threadgroups process all query heads of a KV head.

use forge_ops::Format;
use serde::Serialize;
use std::f32::consts::LOG2_E;

use crate::attention::context::{KvLayout, QueryRows, q8_loader, step};
use crate::context::Base;
use crate::spec::AttendKernel;

/// Query rows (row and head pairs) of a threadgroup of `attend_grouped`.
pub(crate) const LINES: usize = 64;

/// Maximum head width of `attend_grouped`: a lane holds 64 sums and 64 query values.
pub(crate) const WIDEST_LINE: usize = 128;

/// Maximum threadgroup memory of `attend_grouped` in bytes. An Apple core holds one such threadgroup, which
/// is enough.
pub(crate) const LINES_MEMORY: usize = 32 * 1024;

/// Stride of staged positions in elements. The padding moves adjacent positions to different memory banks.
fn grouped_pitch(width: usize, cache: Format) -> usize {
    width.next_multiple_of(16) + if cache == Format::F16 { 8 } else { 4 }
}

/// Threadgroup memory of `attend_grouped` in bytes with a tile of this many positions, keys and values.
pub(crate) fn grouped_bytes(tile: usize, width: usize, cache: Format) -> usize {
    let bytes = if cache == Format::F16 { 2 } else { 4 };
    2 * tile * grouped_pitch(width, cache) * bytes
}

#[derive(Serialize)]
pub(crate) struct GroupedContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a AttendKernel,
    #[serde(flatten)]
    kv_layout: KvLayout,
    /// Support unit that loads four values of a head of a q8_0 cache.
    load: Option<&'static str>,
    /// Metal type of staged elements.
    staged: &'static str,
    /// log2(e), which converts scores to powers of 2; also multiplied by the scale.
    base_2: f32,
    scale_base_2: f32,
    #[serde(flatten)]
    query_rows: QueryRows,
    /// Positions of a tile.
    tile: usize,
    /// The width, rounded up to a multiple of 16.
    padded: usize,
    /// Stride of staged positions, in elements.
    pitch: usize,
    /// Elements loaded at once.
    step: usize,
    /// 8 by 8 matrices in 8 query rows.
    matrices: usize,
}

impl<'a> GroupedContext<'a> {
    /// Bytes that the four simdgroups of a threadgroup load and store for a position, and the query rows of a
    /// threadgroup: keys and values are staged once and loaded by each simdgroup.
    pub(crate) fn on_core_bytes(spec: &AttendKernel) -> (usize, usize) {
        let AttendKernel { op, .. } = spec;
        let bytes = if op.cache == Format::F16 { 2 } else { 4 };
        let staged = 2 * op.width.next_multiple_of(16) * bytes;
        (2 * KvLayout::head_bytes(op.cache, op.width) + (1 + 4) * staged, QueryRows::of(op, LINES).count())
    }

    pub(crate) fn of(base: Base<'a>, spec: &'a AttendKernel) -> GroupedContext<'a> {
        let padded = spec.op.width.next_multiple_of(16);
        GroupedContext {
            base,
            spec,
            kv_layout: KvLayout::of(spec.op.cache, spec.op.width),
            load: (spec.op.cache == Format::Q8_0).then(|| q8_loader(spec.op.width)),
            staged: if spec.op.cache == Format::F16 { "half" } else { "float" },
            base_2: LOG2_E,
            scale_base_2: spec.op.scale * LOG2_E,
            query_rows: QueryRows::of(&spec.op, LINES),
            tile: spec.layout.knobs.tile,
            padded,
            pitch: grouped_pitch(spec.op.width, spec.op.cache),
            step: step(spec.op.width),
            matrices: padded / 8,
        }
    }
}
