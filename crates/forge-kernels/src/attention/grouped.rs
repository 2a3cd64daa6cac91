//! What the template of attention reads whose threadgroups have the rows of all heads that share a key head.

use forge_ir::Format;
use serde::Serialize;
use std::f32::consts::LOG2_E;

use crate::attention::context::{Kept, load_record, step};
use crate::context::Base;
use crate::spec::Attend;

/// Lines of a threadgroup of `attend_grouped`.
pub(crate) const LINES: usize = 64;

/// Channels of the widest head that `attend_grouped` takes: a lane holds 64 sums, and 64 numbers of queries.
pub(crate) const WIDEST_LINE: usize = 128;

/// Bytes of threadgroup memory of `attend_grouped` at most: a core of Apple's has room for one such threadgroup, of lines enough.
pub(crate) const LINES_MEMORY: usize = 32 * 1024;

/// Elements between the positions that `attend_grouped` stages, so that neighbours start in other banks.
fn grouped_pitch(width: usize, cache: Format) -> usize {
    width.next_multiple_of(16) + if cache == Format::F16 { 8 } else { 4 }
}

/// Bytes of threadgroup memory of `attend_grouped` with so many positions staged at once, keys and values.
pub(crate) fn grouped_bytes(tile: usize, width: usize, cache: Format) -> usize {
    let bytes = if cache == Format::F16 { 2 } else { 4 };
    2 * tile * grouped_pitch(width, cache) * bytes
}

#[derive(Serialize)]
pub(crate) struct GroupedContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a Attend,
    #[serde(flatten)]
    kept: Kept,
    /// The support unit that loads four numbers of a record.
    load: Option<&'static str>,
    /// The Metal type of what is staged.
    staged: &'static str,
    /// What turns scores of powers of e to those of powers of 2, and as well what scales them.
    base_2: f32,
    scale_base_2: f32,
    /// Query heads that read one key head, and how many of them a threadgroup has.
    group: usize,
    heads_each: usize,
    /// Rows of a threadgroup, and lines.
    rows_each: usize,
    lines: usize,
    /// Positions staged at once.
    tile: usize,
    /// The width, up to a multiple of 16.
    padded: usize,
    /// Elements between staged positions.
    pitch: usize,
    /// Elements loaded at once.
    step: usize,
    /// 8 by 8 matrices in 8 lines.
    matrices: usize,
}

impl<'a> GroupedContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a Attend) -> GroupedContext<'a> {
        let group = spec.query_heads / spec.key_heads;
        let heads_each = (1..=LINES).rev().find(|heads| group.is_multiple_of(*heads)).unwrap_or(1);
        let padded = spec.width.next_multiple_of(16);
        GroupedContext {
            base,
            spec,
            kept: Kept::of(spec.cache, spec.width),
            load: (spec.cache == Format::Q8_0).then(|| load_record(spec.width)),
            staged: if spec.cache == Format::F16 { "half" } else { "float" },
            base_2: LOG2_E,
            scale_base_2: spec.scale * LOG2_E,
            group,
            heads_each,
            rows_each: LINES / heads_each,
            lines: LINES,
            tile: spec.knobs.tile,
            padded,
            pitch: grouped_pitch(spec.width, spec.cache),
            step: step(spec.width),
            matrices: padded / 8,
        }
    }
}
