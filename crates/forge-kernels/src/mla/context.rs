//! Template contexts of MLA kernels.

use forge_ops::Format;
use serde::Serialize;

use crate::attention::context::{distances, element, staged_pitch};
use crate::attention::rope::RopeTable;
use crate::context::{Base, Weight};
use crate::spec::{
    MlaExpandedKernel, MlaExpandedLayout, Operand, PerHeadKernel, PerHeadLayout, mla_attention_heads,
};
use forge_ops::{
    MlaAppend, MlaAttention, MlaAttentionExpanded, MlaColumns, MlaLoadLatents, MlaPrepare, PerHeadLinear,
};

/// Threads per threadgroup of the transposed per-head matmul.
const TRANSPOSED_THREADS: usize = 128;

/// Simdgroups per threadgroup of the per-head matmul.
const SIMDGROUPS: usize = 2;

/// Minimum lanes per row: each lane writes one of the rows that they compute.
const FEWEST_LANES: usize = 4;

/// Threads of the kernels that append to the MLA cache or load from it.
const APPEND_THREADS: usize = 128;

#[derive(Serialize)]
pub(crate) struct PerHeadContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    weight: Weight,
    heads: usize,
    rows: usize,
    /// Columns of a head's matrix.
    width: usize,
    pitch: usize,
    together: usize,
    each: usize,
    /// `each` under the name that the shared template part uses.
    rows_per_simdgroup: usize,
    times: &'static str,
    /// Support function that loads 4 columns of x.
    load: &'static str,
    /// Bound argument of `load`, if any.
    bound: String,
    /// Lanes per matrix row.
    lanes: usize,
    /// Rows computed at once.
    at_once: usize,
    /// Shuffle distances among lanes of one row.
    within: Vec<usize>,
    group_outputs: usize,
    /// Whether the last threadgroup has fewer rows, or packets.
    ragged: bool,
    /// Threads with the same columns.
    parts: usize,
    threads: usize,
}

impl<'a> PerHeadContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &PerHeadKernel) -> PerHeadContext<'a> {
        let PerHeadLinear { format, heads, rows, columns: width, transposed, pitch } = spec.op;
        let PerHeadLayout { together, each } = spec.layout;
        let weight = Weight::of(format, width);
        let lanes = weight.packets.next_power_of_two().clamp(FEWEST_LANES, 32);
        let at_once = 32 / lanes;
        let group_outputs = SIMDGROUPS * at_once * each;
        let (load, bound) = if !pitch.is_multiple_of(4) || !width.is_multiple_of(4) {
            ("load4_single", format!(", {width}u"))
        } else if width.is_multiple_of(weight.columns) {
            ("load4_whole", String::new())
        } else {
            ("load4_guarded", format!(", {width}u"))
        };
        PerHeadContext {
            base,
            heads,
            rows,
            width,
            pitch,
            together,
            each,
            rows_per_simdgroup: each,
            times: "",
            load,
            bound,
            lanes,
            at_once,
            within: distances(1, lanes),
            group_outputs,
            ragged: !if transposed {
                weight.packets.is_multiple_of(each)
            } else {
                rows.is_multiple_of(group_outputs)
            },
            parts: TRANSPOSED_THREADS / each.clamp(1, TRANSPOSED_THREADS),
            threads: if transposed { TRANSPOSED_THREADS } else { 32 * SIMDGROUPS },
            weight,
        }
    }
}

/// Preparation of a row, as template variables.
#[derive(Serialize)]
struct Prepared {
    #[serde(flatten)]
    rope: RopeTable,
    #[serde(flatten)]
    columns: MlaColumns,
    epsilon: f32,
}

impl Prepared {
    fn of(name: &str, prepare: &MlaPrepare, rope_width: usize) -> Prepared {
        let MlaPrepare { columns, epsilon, rope, .. } = prepare;
        Prepared { rope: RopeTable::of(name, rope, rope_width), columns: *columns, epsilon: *epsilon }
    }
}

#[derive(Serialize)]
pub(crate) struct MlaAppendContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    prepared: Option<Prepared>,
    width: usize,
    width_float: f32,
    rope_width: usize,
    /// Elements of a cache line.
    kv_stride: usize,
    element: &'static str,
    heads: usize,
    /// Channel pairs of all queries.
    row_pairs: usize,
    threads: usize,
    simdgroups: usize,
}

impl<'a> MlaAppendContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &MlaAppend) -> MlaAppendContext<'a> {
        let MlaAppend { width, rope_width, cache, prepare } = spec;
        let heads = prepare.as_ref().map_or(0, |prepare| prepare.heads);
        MlaAppendContext {
            prepared: prepare.as_ref().map(|prepare| Prepared::of(base.name, prepare, *rope_width)),
            base,
            width: *width,
            width_float: *width as f32,
            rope_width: *rope_width,
            kv_stride: width + rope_width,
            element: element(*cache).0,
            heads,
            row_pairs: heads * rope_width / 2,
            threads: APPEND_THREADS,
            simdgroups: APPEND_THREADS / 32,
        }
    }
}

#[derive(Serialize)]
pub(crate) struct MlaAttentionContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    prepared: Option<Prepared>,
    /// Whether the kernel prepares its row.
    prologue: bool,
    heads: usize,
    width: usize,
    width_float: f32,
    rope_width: usize,
    /// Elements of a cache line.
    kv_stride: usize,
    /// Elements of a cache line, rounded up to whole chunks.
    padded: usize,
    element: &'static str,
    scale: f32,
    /// Heads per simdgroup and per threadgroup.
    heads_each: usize,
    group: usize,
    /// Threadgroups that share the heads of a row.
    groups: usize,
    /// Whether the last threadgroup has fewer heads.
    idle_heads: bool,
    simdgroups: usize,
    threads: usize,
    /// Chunks (channels that a simdgroup loads at once) of a line, and of its latent.
    chunks: usize,
    value_chunks: usize,
    /// Lines loaded at once.
    loads: usize,
    /// Support function that loads a lane's channels of a chunk.
    load: &'static str,
    /// Bound argument of `load`, if any.
    bound: String,
}

/// Channels of a chunk: 4 per lane.
const CHUNK: usize = 128;

impl<'a> MlaAttentionContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &MlaAttention) -> MlaAttentionContext<'a> {
        let MlaAttention { heads, width, rope_width, cache, scale, ref prologue } = *spec;
        let [heads_each, simdgroups, groups] = mla_attention_heads(spec);
        let kv_stride = width + rope_width;
        let chunks = kv_stride.div_ceil(CHUNK);
        let (element, bytes) = element(cache);
        let names = match cache {
            Format::F32 => ["load4_whole", "load4_guarded", "load4_single"],
            _ => ["half4_whole", "half4_guarded", "half4_single"],
        };
        let (load, bound) = if kv_stride.is_multiple_of(CHUNK) {
            (names[0], String::new())
        } else {
            (names[if kv_stride.is_multiple_of(4) { 1 } else { 2 }], format!(", {kv_stride}u"))
        };
        MlaAttentionContext {
            prepared: prologue.as_ref().map(|prepare| Prepared::of(base.name, prepare, rope_width)),
            prologue: prologue.is_some(),
            base,
            heads,
            width,
            width_float: width as f32,
            rope_width,
            kv_stride,
            padded: chunks * CHUNK,
            element,
            scale,
            heads_each,
            group: heads_each * simdgroups,
            groups,
            idle_heads: !heads.is_multiple_of(heads_each * simdgroups),
            simdgroups,
            threads: 32 * simdgroups,
            chunks,
            value_chunks: width.div_ceil(CHUNK),
            // Limits the registers of lines in flight, next to queries and sums of two heads.
            loads: (64 / (chunks * bytes)).clamp(1, 4),
            load,
            bound,
        }
    }
}

#[derive(Serialize)]
pub(crate) struct LoadLatentsContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    width: usize,
    rope_width: usize,
    /// Elements of a cache line.
    kv_stride: usize,
    element: &'static str,
    threads: usize,
}

impl<'a> LoadLatentsContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &MlaLoadLatents) -> LoadLatentsContext<'a> {
        let MlaLoadLatents { width, rope_width, cache } = *spec;
        LoadLatentsContext {
            base,
            width,
            rope_width,
            kv_stride: width + rope_width,
            element: element(cache).0,
            threads: APPEND_THREADS,
        }
    }
}

#[derive(Serialize)]
pub(crate) struct ExpandedContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a MlaExpandedKernel,
    /// Whether f32 is used for range only, so that products may be rounded.
    ranged: bool,
    /// MLA has no softcap.
    softcap: Option<f32>,
    /// Channels of a query and key, rounded up to a multiple of 8; and of a value.
    padded: usize,
    value_padded: usize,
    /// Stride of staged rows, in floats.
    pitch: usize,
    /// Elements loaded at once: of queries and keys, and of values.
    key_step: usize,
    value_step: usize,
    /// 8 by 8 matrices in 8 rows: of queries and keys, and of values.
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

impl<'a> ExpandedContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a MlaExpandedKernel) -> ExpandedContext<'a> {
        let MlaAttentionExpanded { keys, rope_width, values, queries_pitch, .. } = spec.op;
        let MlaExpandedLayout { operand, tile } = spec.layout;
        let (padded, value_padded) = ((keys + rope_width).next_multiple_of(8), values.next_multiple_of(8));
        let (matrices, value_matrices) = (padded / 8, value_padded / 8);
        let parts = 32 / tile;
        let step = |widths: &[usize]| if widths.iter().all(|width| width.is_multiple_of(4)) { 4 } else { 1 };
        ExpandedContext {
            base,
            spec,
            ranged: operand == Operand::Ranged,
            softcap: None,
            padded,
            value_padded,
            pitch: staged_pitch(padded.max(value_padded)),
            key_step: step(&[keys, rope_width, queries_pitch]),
            value_step: step(&[values]),
            matrices,
            value_matrices,
            parts,
            queries_each: matrices.div_ceil(parts),
            sums_each: value_matrices.div_ceil(4),
            distances: distances(tile, 32),
        }
    }
}
