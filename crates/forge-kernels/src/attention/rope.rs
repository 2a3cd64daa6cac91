//! Template contexts of RoPE and KV append.

use forge_ops::{Format, LongContext, Pairing, RopeParameters};
use serde::Serialize;

use crate::attention::context::{KvLayout, step};
use crate::context::{Base, literal};
use forge_ops::{Append, KvSource, Rope, RopeAppend};

/// RoPE parameters, as template variables.
#[derive(Serialize)]
pub(crate) struct RopeTable {
    magnitude: f32,
    /// The frequencies, followed by those of a long context if there are any, six per line.
    table: Vec<String>,
    table_size: usize,
    /// Maximum context length of the short frequencies, if long contexts have others.
    long: Option<usize>,
    /// Frequency scaling that depends on the context length, if any.
    dynamic_ntk: Option<DynamicNtk>,
    /// Expression of the frequency of pair k.
    frequency: String,
    /// Number of frequencies.
    pairs: usize,
    /// Channel pairs of a head.
    half: usize,
    /// Pairs per lane, if a simdgroup processes a head.
    pairs_each: usize,
    /// Whether some lanes have fewer pairs.
    idle_pairs: bool,
    /// Channels of pair k.
    one: String,
    other: String,
}

/// Scaling of wavelengths for contexts longer than `original_context` positions.
#[derive(Serialize)]
struct DynamicNtk {
    factor: f32,
    /// The factor minus 1.
    factor_minus_1: f32,
    original_context: f32,
    /// Number of pairs after the first. The last one is scaled by the full factor.
    last_pair: f32,
}

impl RopeTable {
    pub(crate) fn of(name: &str, rope: &RopeParameters, width: usize) -> RopeTable {
        let line = |line: &[f32]| line.iter().map(|&x| literal(x)).collect::<Vec<_>>().join(", ");
        let own = match &rope.long {
            Some(LongContext::LongRope { frequencies, .. }) => Some(frequencies),
            _ => None,
        };
        let lists = [Some(&rope.frequencies), own];
        let table: Vec<String> = lists.iter().flatten().flat_map(|list| list.chunks(6).map(line)).collect();
        let (pairs, half) = (rope.frequencies.len(), width / 2);
        // Channels without RoPE keep their index, whatever the pairing.
        let (one, other) = match rope.pairing {
            Pairing::Interleaved => ("2u * k".to_owned(), "2u * k + 1u".to_owned()),
            Pairing::Half if pairs == half => ("k".to_owned(), format!("k + {pairs}u")),
            Pairing::Half => {
                (format!("k < {pairs}u ? k : 2u * k"), format!("k < {pairs}u ? k + {pairs}u : 2u * k + 1u"))
            }
        };
        RopeTable {
            magnitude: rope.magnitude,
            table,
            table_size: lists.iter().flatten().map(|list| list.len()).sum(),
            long: rope.long.as_ref().map(LongContext::original_context),
            dynamic_ntk: match rope.long {
                Some(LongContext::DynamicNtk { original_context, factor }) => Some(DynamicNtk {
                    factor,
                    factor_minus_1: factor - 1.0,
                    original_context: original_context as f32,
                    last_pair: (pairs - 1) as f32,
                }),
                _ => None,
            },
            frequency: match rope.long {
                None => format!("{name}_frequencies[k]"),
                Some(LongContext::LongRope { .. }) => format!("{name}_frequencies[table_offset + k]"),
                Some(LongContext::DynamicNtk { .. }) => {
                    format!("({name}_frequencies[k] * precise::exp(slope * k))")
                }
            },
            pairs,
            half,
            pairs_each: half.div_ceil(32),
            idle_pairs: !half.is_multiple_of(32),
            one,
            other,
        }
    }
}

#[derive(Serialize)]
pub(crate) struct RopeContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    rope: RopeTable,
    heads: usize,
    width: usize,
    /// Channel pairs of a row.
    row_pairs: usize,
    threads: usize,
}

impl<'a> RopeContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &Rope) -> RopeContext<'a> {
        RopeContext {
            rope: RopeTable::of(base.name, &spec.rope, spec.width),
            base,
            heads: spec.heads,
            width: spec.width,
            row_pairs: spec.heads * spec.width / 2,
            threads: 128,
        }
    }
}

#[derive(Serialize)]
pub(crate) struct AppendContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a Append,
    #[serde(flatten)]
    kv_layout: KvLayout,
    /// Elements moved at once.
    step: usize,
    /// Moves per row.
    count: usize,
    threads: usize,
}

impl<'a> AppendContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a Append) -> AppendContext<'a> {
        // For q8_0 a thread has one channel, and 32 threads quantize a block.
        let step = if spec.cache == Format::Q8_0 { 1 } else { step(spec.width) };
        AppendContext {
            base,
            spec,
            kv_layout: KvLayout::of(spec.cache, spec.width),
            step,
            count: spec.key_heads * spec.width / step,
            threads: 128,
        }
    }
}

#[derive(Serialize)]
pub(crate) struct RopeAppendContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    rope: RopeTable,
    query_heads: usize,
    key_heads: usize,
    width: usize,
    /// Whether heads are normalized.
    norm: bool,
    /// Whether a simdgroup processes a head: if it is normalized or quantized.
    by_head: bool,
    /// Whether the norm follows RoPE.
    after_rope: bool,
    /// Whether value heads are normalized too.
    values: bool,
    /// Whether values are computed from the keys' projection.
    values_are_keys: bool,
    epsilon: f32,
    width_float: f32,
    #[serde(flatten)]
    kv_layout: KvLayout,
    ring: Option<usize>,
    /// Heads computed per row: queries, keys and values.
    row_heads: usize,
    /// Channel pairs of these heads.
    row_pairs: usize,
    /// Elements of a row of qkv.
    row_width: usize,
    threads: usize,
    /// Simdgroups, one head each.
    simdgroups: usize,
}

impl<'a> RopeAppendContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &RopeAppend) -> RopeAppendContext<'a> {
        let row_heads = spec.query_heads + 2 * spec.key_heads;
        let norm = spec.norm.is_some();
        let by_head = norm || spec.cache == Format::Q8_0;
        // The largest number that divides the heads.
        let simdgroups = [4, 2, 1].into_iter().find(|&each| row_heads.is_multiple_of(each)).unwrap_or(1);
        RopeAppendContext {
            rope: RopeTable::of(base.name, &spec.rope, spec.width),
            base,
            query_heads: spec.query_heads,
            key_heads: spec.key_heads,
            width: spec.width,
            norm,
            by_head,
            after_rope: spec.norm.is_some_and(|norm| norm.after_rope),
            values: spec.norm.is_some_and(|norm| norm.values),
            values_are_keys: spec.kv_source == KvSource::Keys,
            epsilon: spec.norm.map_or(0.0, |norm| norm.epsilon),
            width_float: spec.width as f32,
            kv_layout: KvLayout::of(spec.cache, spec.width),
            ring: spec.ring,
            row_heads,
            row_pairs: row_heads * spec.width / 2,
            row_width: spec.kv_source.row_heads(spec.query_heads, spec.key_heads) * spec.width,
            threads: if by_head { 32 * simdgroups } else { 128 },
            simdgroups,
        }
    }
}
