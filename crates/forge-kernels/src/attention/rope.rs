//! What the templates of rotation and of appending to the cache read.

use forge_ir::{Format, LongContext, Pairing, Rotation};
use serde::Serialize;

use crate::attention::context::{Kept, step};
use crate::context::{Base, literal};
use crate::spec::{Append, KvSource, Rotate, RotateAppend};

/// A rotation of heads, as templates print it.
#[derive(Serialize)]
pub(crate) struct Turn {
    magnitude: f32,
    /// The frequencies, and after them those of a long context where it has its own, six a line.
    table: Vec<String>,
    table_size: usize,
    /// The longest context that is not long, where a long one turns otherwise.
    long: Option<usize>,
    /// How it turns otherwise, where that depends on its length.
    stretched: Option<Stretched>,
    /// The frequency of pair k.
    frequency: String,
    /// Frequencies.
    pairs: usize,
    /// Pairs of channels of a head.
    half: usize,
    /// Pairs of a lane, where a simdgroup has a head.
    pairs_each: usize,
    /// Whether some lanes have pairs past the last.
    idle_pairs: bool,
    /// The channels of pair k.
    one: String,
    other: String,
}

/// How a context of more than so many positions stretches waves.
#[derive(Serialize)]
struct Stretched {
    factor: f32,
    /// The factor less 1.
    less: f32,
    beyond: f32,
    /// Pairs that turn slower than the first: of so many the last is stretched by all of it.
    slower: f32,
}

impl Turn {
    pub(crate) fn of(name: &str, rotation: &Rotation, pairing: Pairing, width: usize) -> Turn {
        let line = |line: &[f32]| line.iter().map(|&x| literal(x)).collect::<Vec<_>>().join(", ");
        let own = match &rotation.long {
            Some(LongContext::Other { frequencies, .. }) => Some(frequencies),
            _ => None,
        };
        let lists = [Some(&rotation.frequencies), own];
        let table: Vec<String> = lists.iter().flatten().flat_map(|list| list.chunks(6).map(line)).collect();
        let (pairs, half) = (rotation.frequencies.len(), width / 2);
        // Channels that do not turn stay where they are, whichever way they are paired.
        let (one, other) = match pairing {
            Pairing::Interleaved => ("2u * k".to_owned(), "2u * k + 1u".to_owned()),
            Pairing::Half if pairs == half => ("k".to_owned(), format!("k + {pairs}u")),
            Pairing::Half => {
                (format!("k < {pairs}u ? k : 2u * k"), format!("k < {pairs}u ? k + {pairs}u : 2u * k + 1u"))
            }
        };
        Turn {
            magnitude: rotation.magnitude,
            table,
            table_size: lists.iter().flatten().map(|list| list.len()).sum(),
            long: rotation.long.as_ref().map(LongContext::beyond),
            stretched: match rotation.long {
                Some(LongContext::Stretched { beyond, factor }) => Some(Stretched {
                    factor,
                    less: factor - 1.0,
                    beyond: beyond as f32,
                    slower: (pairs - 1) as f32,
                }),
                _ => None,
            },
            frequency: match rotation.long {
                None => format!("{name}_frequencies[k]"),
                Some(LongContext::Other { .. }) => format!("{name}_frequencies[own + k]"),
                Some(LongContext::Stretched { .. }) => {
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
pub(crate) struct RotateContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    turn: Turn,
    heads: usize,
    width: usize,
    /// Pairs of channels of a row.
    row_pairs: usize,
    threads: usize,
}

impl<'a> RotateContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &Rotate) -> RotateContext<'a> {
        RotateContext {
            turn: Turn::of(base.name, &spec.rotation, spec.pairing, spec.width),
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
    kept: Kept,
    /// Elements moved at once.
    step: usize,
    /// Moves that a row needs.
    count: usize,
    threads: usize,
}

impl<'a> AppendContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a Append) -> AppendContext<'a> {
        // A thread has a channel where 32 of them make codes.
        let step = if spec.cache == Format::Q8_0 { 1 } else { step(spec.width) };
        AppendContext {
            base,
            spec,
            kept: Kept::of(spec.cache, spec.width),
            step,
            count: spec.key_heads * spec.width / step,
            threads: 128,
        }
    }
}

#[derive(Serialize)]
pub(crate) struct RotateAppendContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    turn: Turn,
    query_heads: usize,
    key_heads: usize,
    width: usize,
    /// Whether heads are normed.
    norm: bool,
    /// Whether a simdgroup has a head: where it is normed, or becomes codes.
    by_head: bool,
    /// Whether that is after they have been turned.
    turned: bool,
    /// Whether value heads are normed, too.
    values: bool,
    /// Whether values are made of what keys are made of.
    values_are_keys: bool,
    epsilon: f32,
    width_float: f32,
    #[serde(flatten)]
    kept: Kept,
    ring: Option<usize>,
    /// Heads that are made of a row: queries, keys and values.
    made: usize,
    /// Pairs of their channels.
    made_pairs: usize,
    /// Of a row of qkv.
    row_width: usize,
    threads: usize,
    /// That have a head each.
    simdgroups: usize,
}

impl<'a> RotateAppendContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &RotateAppend) -> RotateAppendContext<'a> {
        let made = spec.query_heads + 2 * spec.key_heads;
        let norm = spec.norm.is_some();
        let by_head = norm || spec.cache == Format::Q8_0;
        // As many as leave none without a head.
        let simdgroups = [4, 2, 1].into_iter().find(|&each| made.is_multiple_of(each)).unwrap_or(1);
        RotateAppendContext {
            turn: Turn::of(base.name, &spec.rotation, spec.pairing, spec.width),
            base,
            query_heads: spec.query_heads,
            key_heads: spec.key_heads,
            width: spec.width,
            norm,
            by_head,
            turned: spec.norm.is_some_and(|norm| norm.turned),
            values: spec.norm.is_some_and(|norm| norm.values),
            values_are_keys: spec.brings == KvSource::Keys,
            epsilon: spec.norm.map_or(0.0, |norm| norm.epsilon),
            width_float: spec.width as f32,
            kept: Kept::of(spec.cache, spec.width),
            ring: spec.ring,
            made,
            made_pairs: made * spec.width / 2,
            row_width: spec.brings.row_heads(spec.query_heads, spec.key_heads) * spec.width,
            threads: if by_head { 32 * simdgroups } else { 128 },
            simdgroups,
        }
    }
}
