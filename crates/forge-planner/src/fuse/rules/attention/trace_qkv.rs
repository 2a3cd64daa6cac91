//! Traces the inputs of attention back through RoPE and QK-norm to their projections.

use crate::fuse::list::{Attend, Fused, HeadNorm, Kind, KvSource, Value};
use forge_ir::ParamId;
use forge_ops::RopeParameters;

/// An attention whose queries and keys have the same RoPE or none, and the same QK-norm or none. Values are
/// unchanged, or normalized without a gain.
pub(crate) struct Heads {
    /// Index of the append; the attention follows it.
    pub(crate) append: usize,
    /// Queries, keys and values before RoPE and norms. Values are omitted if they are computed from the keys'
    /// source.
    pub(crate) sources: Vec<Value>,
    /// What `sources` contains besides queries.
    pub(crate) kv_source: KvSource,
    /// RoPE of queries and keys.
    pub(crate) rope: RopeParameters,
    /// QK-norm.
    pub(crate) norm: Option<HeadNorm>,
    /// Intermediate values between the sources and the attention, without other readers.
    pub(crate) between: Vec<Value>,
}

impl Heads {
    /// Number of reads of a source by this attention.
    pub(crate) fn uses(&self, source: Value) -> usize {
        if self.kv_source == KvSource::Keys && source == self.sources[1] { 2 } else { 1 }
    }
}

/// The attention whose append is at this index, if it matches.
pub(crate) fn heads(list: &Fused, append: usize) -> Option<Heads> {
    let Kind::Append { .. } = list.operations[append].kind else { return None };
    let attend = list.operations.get(append + 1)?;
    let Kind::Attend(Attend { query_heads, .. }) = attend.kind else { return None };
    let [key, value] = list.operations[append].inputs[..] else { return None };
    let mut between = Vec::new();
    let query_width = list.widths[attend.inputs[0].0] / query_heads;
    let query = trace(list, attend.inputs[0], query_heads, &mut between)?;
    let key = trace(list, key, list.widths[key.0] / query_width, &mut between)?;
    let (value, value_epsilon) = of_values(list, value, key.heads, &mut between);
    let epsilon = query.norm.map(|norm| norm.epsilon);
    let norm = match (query.norm, key.norm) {
        (None, None) => None,
        (Some(query), Some(key)) if (query.epsilon, query.after_rope) == (key.epsilon, key.after_rope) => {
            Some(query.of_heads(Some(key.gain), value_epsilon.is_some()))
        }
        _ => return None,
    };
    // All norms share one epsilon.
    if value_epsilon.is_some() && value_epsilon != epsilon {
        return None;
    }
    if query.rope != key.rope || !query.can_come_first() {
        return None;
    }
    let kv_source = if value == key.source { KvSource::Keys } else { KvSource::KeysAndValues };
    let sources = match kv_source {
        KvSource::Keys => vec![query.source, key.source],
        _ => vec![query.source, key.source, value],
    };
    Some(Heads { append, sources, kv_source, rope: query.rope(), norm, between })
}

/// Queries of attention that a separate step rotates or normalizes: their source and intermediate values.
pub(crate) struct Queries {
    /// The queries before RoPE and norm.
    pub(crate) source: Value,
    /// RoPE.
    pub(crate) rope: RopeParameters,
    /// Norm of the heads.
    pub(crate) norm: Option<HeadNorm>,
    /// Intermediate values, without other readers.
    pub(crate) between: Vec<Value>,
}

/// Traces one value with this number of heads.
pub(crate) fn queries(list: &Fused, value: Value, heads: usize) -> Option<Queries> {
    let mut between = Vec::new();
    let query = trace(list, value, heads, &mut between).filter(Traced::can_come_first)?;
    let norm = query.norm.map(|norm| norm.of_heads(None, false));
    let is_prepared = !between.is_empty();
    is_prepared.then(|| Queries { source: query.source, rope: query.rope(), norm, between })
}

struct Traced<'a> {
    source: Value,
    heads: usize,
    rope: Option<&'a RopeParameters>,
    norm: Option<Normed>,
}

impl Traced<'_> {
    fn rope(&self) -> RopeParameters {
        self.rope.cloned().unwrap_or_else(RopeParameters::none)
    }

    /// Kernels compute the mean of squares before RoPE. RoPE preserves a head's length unless its magnitude
    /// is not 1.
    fn can_come_first(&self) -> bool {
        !self.norm.is_some_and(|norm| norm.after_rope) || self.rope.is_none_or(|rope| rope.magnitude == 1.0)
    }
}

#[derive(Clone, Copy)]
struct Normed {
    gain: ParamId,
    epsilon: f32,
    /// Whether the norm follows RoPE.
    after_rope: bool,
}

impl Normed {
    fn of_heads(self, key_gain: Option<ParamId>, values: bool) -> HeadNorm {
        let Normed { gain: query_gain, epsilon, after_rope } = self;
        HeadNorm { query_gain, key_gain, epsilon, after_rope, values }
    }
}

/// Traces back through RoPE, if any, and a per-head norm before or after it, if any.
fn trace<'a>(list: &'a Fused, value: Value, heads: usize, between: &mut Vec<Value>) -> Option<Traced<'a>> {
    let after = norm_of_heads(list, value, true);
    let rotated = after.map_or(value, |(_, input, _)| input);
    let operation = list.definition(rotated).map(|place| &list.operations[place]);
    let Some((operation, Kind::Rope { heads: rotated_heads, rope })) = operation.map(|it| (it, &it.kind))
    else {
        // Heads without RoPE have a norm at most.
        let skipped = after.map(|_| value);
        let fits = after.is_none_or(|(_, _, parts)| parts == heads && list.uses(value) == 1);
        between.extend(skipped);
        let norm = after.map(|(norm, ..)| Normed { after_rope: false, ..norm });
        return fits.then_some(Traced { source: rotated, heads, rope: None, norm });
    };
    let before = norm_of_heads(list, operation.inputs[0], false);
    let source = before.map_or(operation.inputs[0], |(_, input, _)| input);
    let skipped: Vec<Value> = [Some(value), after.map(|_| rotated), before.map(|_| operation.inputs[0])]
        .into_iter()
        .flatten()
        .collect();
    // At most one norm, with the same number of heads, and no other reader of intermediate values.
    let norms: Vec<(Normed, usize)> =
        [after, before].into_iter().flatten().map(|(norm, _, parts)| (norm, parts)).collect();
    let fits = *rotated_heads == heads && norms.len() < 2 && norms.iter().all(|(_, parts)| *parts == heads);
    if !fits || skipped.iter().any(|value| list.uses(*value) != 1) {
        return None;
    }
    between.extend(skipped);
    Some(Traced { source, heads, rope: Some(rope), norm: norms.first().map(|(norm, _)| *norm) })
}

/// Source of the values, and the epsilon of their norm: traces back through a per-head norm without a gain,
/// if any.
fn of_values(list: &Fused, value: Value, heads: usize, between: &mut Vec<Value>) -> (Value, Option<f32>) {
    let norm = list.definition_for_one(value).map(|place| &list.operations[place]);
    match norm.map(|norm| (&norm.kind, norm.inputs[0])) {
        Some((Kind::Norm { gain: None, parts, epsilon }, source)) if *parts == heads => {
            between.push(value);
            (source, Some(*epsilon))
        }
        _ => (value, None),
    }
}

/// The norm with a gain that defines a value, with its input and number of parts.
fn norm_of_heads(list: &Fused, value: Value, after_rope: bool) -> Option<(Normed, Value, usize)> {
    let norm = &list.operations[list.definition(value)?];
    match norm.kind {
        Kind::Norm { gain: Some(gain), parts, epsilon } => {
            Some((Normed { gain, epsilon, after_rope }, norm.inputs[0], parts))
        }
        _ => None,
    }
}
