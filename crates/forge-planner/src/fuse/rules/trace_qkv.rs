//! What attention reads, traced back: through rotations and norms of heads to the values that they are made of.

use crate::fuse::list::{Attend, Fused, HeadNorm, Kind, KvSource, Value};
use forge_ir::{ParamId, Rotation};

/// An attention whose queries and keys are turned alike or not at all, and normed alike or not at all; its values are as they are, or normed
/// without a gain.
pub(crate) struct Heads {
    /// The place of the append; that of the attention follows it.
    pub(crate) append: usize,
    /// Queries, keys and values before anything was done to them; no values where these are made of what keys are made of.
    pub(crate) sources: Vec<Value>,
    /// What `sources` has beside queries.
    pub(crate) brings: KvSource,
    /// Of queries and keys.
    pub(crate) rotation: Rotation,
    /// Of queries and keys.
    pub(crate) norm: Option<HeadNorm>,
    /// Values on the way from the sources to the attention, which nothing else reads.
    pub(crate) between: Vec<Value>,
}

impl Heads {
    /// How often a source is read on the way to attention.
    pub(crate) fn uses(&self, source: Value) -> usize {
        if self.brings == KvSource::Keys && source == self.sources[1] { 2 } else { 1 }
    }
}

/// The attention whose append stands at this place, if it is of that kind.
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
        (Some(query), Some(key)) if (query.epsilon, query.turned) == (key.epsilon, key.turned) => {
            Some(query.of_heads(Some(key.gain), value_epsilon.is_some()))
        }
        _ => return None,
    };
    // One epsilon is for all.
    if value_epsilon.is_some() && value_epsilon != epsilon {
        return None;
    }
    if query.rotation != key.rotation || !query.can_come_first() {
        return None;
    }
    let brings = if value == key.source { KvSource::Keys } else { KvSource::KeysAndValues };
    let sources = match brings {
        KvSource::Keys => vec![query.source, key.source],
        _ => vec![query.source, key.source, value],
    };
    Some(Heads { append, sources, brings, rotation: query.rotation(), norm, between })
}

/// Queries that attention reads, if they are turned or normed by a step of their own: what they are made of, and values on the way.
pub(crate) struct Queries {
    /// Before anything was done to them.
    pub(crate) source: Value,
    /// How they turn.
    pub(crate) rotation: Rotation,
    /// Of heads.
    pub(crate) norm: Option<HeadNorm>,
    /// On the way to the attention, which nothing else reads.
    pub(crate) between: Vec<Value>,
}

/// Traces one value of so many heads back.
pub(crate) fn queries(list: &Fused, value: Value, heads: usize) -> Option<Queries> {
    let mut between = Vec::new();
    let query = trace(list, value, heads, &mut between).filter(Traced::can_come_first)?;
    let norm = query.norm.map(|norm| norm.of_heads(None, false));
    let is_prepared = !between.is_empty();
    is_prepared.then(|| Queries { source: query.source, rotation: query.rotation(), norm, between })
}

struct Traced<'a> {
    source: Value,
    heads: usize,
    rotation: Option<&'a Rotation>,
    norm: Option<Normed>,
}

impl Traced<'_> {
    fn rotation(&self) -> Rotation {
        self.rotation.cloned().unwrap_or_else(Rotation::none)
    }

    /// Kernels take the mean of squares before they turn: a rotation does not change a head's length, unless it magnifies.
    fn can_come_first(&self) -> bool {
        !self.norm.is_some_and(|norm| norm.turned)
            || self.rotation.is_none_or(|rotation| rotation.magnitude == 1.0)
    }
}

#[derive(Clone, Copy)]
struct Normed {
    gain: ParamId,
    epsilon: f32,
    /// Whether it is of heads that have been turned.
    turned: bool,
}

impl Normed {
    fn of_heads(self, key_gain: Option<ParamId>, values: bool) -> HeadNorm {
        let Normed { gain: query_gain, epsilon, turned } = self;
        HeadNorm { query_gain, key_gain, epsilon, turned, values }
    }
}

/// Back through a rotation of so many heads if there is one, and a norm of heads before it or after it if there is one.
fn trace<'a>(list: &'a Fused, value: Value, heads: usize, between: &mut Vec<Value>) -> Option<Traced<'a>> {
    let after = norm_of_heads(list, value, true);
    let turned = after.map_or(value, |(_, input, _)| input);
    let rotate = list.definition(turned).map(|place| &list.operations[place]);
    let Some((rotate, Kind::Rotate { heads: turning, rotation })) = rotate.map(|it| (it, &it.kind)) else {
        // Heads that do not turn are normed before anything.
        let passed = after.map(|_| value);
        let fits = after.is_none_or(|(_, _, parts)| parts == heads && list.uses(value) == 1);
        between.extend(passed);
        let norm = after.map(|(norm, ..)| Normed { turned: false, ..norm });
        return fits.then_some(Traced { source: turned, heads, rotation: None, norm });
    };
    let before = norm_of_heads(list, rotate.inputs[0], false);
    let source = before.map_or(rotate.inputs[0], |(_, input, _)| input);
    let passed: Vec<Value> = [Some(value), after.map(|_| turned), before.map(|_| rotate.inputs[0])]
        .into_iter()
        .flatten()
        .collect();
    // One norm, of the heads that are turned, and nobody else looks at what is between.
    let norms: Vec<(Normed, usize)> =
        [after, before].into_iter().flatten().map(|(norm, _, parts)| (norm, parts)).collect();
    let fits = *turning == heads && norms.len() < 2 && norms.iter().all(|(_, parts)| *parts == heads);
    if !fits || passed.iter().any(|value| list.uses(*value) != 1) {
        return None;
    }
    between.extend(passed);
    Some(Traced { source, heads, rotation: Some(rotation), norm: norms.first().map(|(norm, _)| *norm) })
}

/// What values are made of, and the epsilon of their norm: back through a norm of heads without a gain, if there is one.
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

/// The norm with a gain that defines a value, what it reads, and of how many parts it is.
fn norm_of_heads(list: &Fused, value: Value, turned: bool) -> Option<(Normed, Value, usize)> {
    let norm = &list.operations[list.definition(value)?];
    match norm.kind {
        Kind::Norm { gain: Some(gain), parts, epsilon } => {
            Some((Normed { gain, epsilon, turned }, norm.inputs[0], parts))
        }
        _ => None,
    }
}
