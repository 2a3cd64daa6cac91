//! What attention reads, traced back: through rotations and norms of heads to the values that they are made of.

use crate::fused::{Fused, HeadNorm, Kind, Value};
use forge_ir::{ParamId, Rotation};

/// An attention whose queries and keys are turned alike, and normed alike or not at all.
pub(super) struct Heads {
    /// The place of the append; that of the attention follows it.
    pub(super) append: usize,
    /// Queries, keys and values before anything was done to them.
    pub(super) sources: [Value; 3],
    /// Of queries and keys.
    pub(super) rotation: Rotation,
    /// Of queries and keys.
    pub(super) norm: Option<HeadNorm>,
    /// Values on the way from the sources to the attention, which nothing else reads.
    pub(super) between: Vec<Value>,
}

/// The attention whose append stands at this place, if it is of that kind.
pub(super) fn heads(list: &Fused, append: usize) -> Option<Heads> {
    let Kind::Append { .. } = list.operations[append].kind else { return None };
    let attend = list.operations.get(append + 1)?;
    let Kind::Attend(_) = attend.kind else { return None };
    let [key, value] = list.operations[append].inputs[..] else { return None };
    let mut between = Vec::new();
    let query = trace(list, attend.inputs[0], &mut between)?;
    let key = trace(list, key, &mut between)?;
    let norm = match (query.norm, key.norm) {
        (None, None) => None,
        (Some(query), Some(key)) if (query.epsilon, query.turned) == (key.epsilon, key.turned) => {
            let Normed { gain: query_gain, epsilon, turned } = query;
            Some(HeadNorm { query_gain, key_gain: key.gain, epsilon, turned })
        }
        _ => return None,
    };
    // Kernels norm before they turn: a rotation does not change a head's length, unless it magnifies.
    if norm.is_some_and(|norm| norm.turned) && query.rotation.magnitude != 1.0 {
        return None;
    }
    (query.rotation == key.rotation).then(|| Heads {
        append,
        sources: [query.source, key.source, value],
        rotation: query.rotation.clone(),
        norm,
        between,
    })
}

struct Traced<'a> {
    source: Value,
    rotation: &'a Rotation,
    norm: Option<Normed>,
}

#[derive(Clone, Copy)]
struct Normed {
    gain: ParamId,
    epsilon: f32,
    /// Whether it is of heads that have been turned.
    turned: bool,
}

/// Back through a rotation, and a norm of heads before it or after it if there is one.
fn trace<'a>(list: &'a Fused, value: Value, between: &mut Vec<Value>) -> Option<Traced<'a>> {
    let after = norm_of_heads(list, value, true);
    let turned = after.map_or(value, |(_, input, _)| input);
    let rotate = &list.operations[list.definition(turned)?];
    let Kind::Rotate { heads, rotation } = &rotate.kind else { return None };
    let before = norm_of_heads(list, rotate.inputs[0], false);
    let source = before.map_or(rotate.inputs[0], |(_, input, _)| input);
    let passed: Vec<Value> = [Some(value), after.map(|_| turned), before.map(|_| rotate.inputs[0])]
        .into_iter()
        .flatten()
        .collect();
    // One norm, of the heads that are turned, and nobody else looks at what is between.
    let norms: Vec<(Normed, usize)> =
        [after, before].into_iter().flatten().map(|(norm, _, parts)| (norm, parts)).collect();
    let fits = norms.len() < 2 && norms.iter().all(|(_, parts)| parts == heads);
    if !fits || passed.iter().any(|value| list.uses(*value) != 1) {
        return None;
    }
    between.extend(passed);
    Some(Traced { source, rotation, norm: norms.first().map(|(norm, _)| *norm) })
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
