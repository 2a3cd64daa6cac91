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
        (Some((query_gain, epsilon)), Some((key_gain, same))) if epsilon == same => {
            Some(HeadNorm { query_gain, key_gain, epsilon })
        }
        _ => return None,
    };
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
    norm: Option<(ParamId, f32)>,
}

/// Back through a rotation, and a norm of heads if there is one.
fn trace<'a>(list: &'a Fused, value: Value, between: &mut Vec<Value>) -> Option<Traced<'a>> {
    let rotate = &list.operations[list.definition(value)?];
    let Kind::Rotate { heads, rotation } = &rotate.kind else { return None };
    let turned = rotate.inputs[0];
    between.push(value);
    if list.uses(value) != 1 {
        return None;
    }
    let norm = list.definition(turned).map(|place| &list.operations[place]);
    if let Some(norm) = norm
        && let Kind::Norm { gain: Some(gain), parts, epsilon } = norm.kind
        && parts == *heads
        && list.uses(turned) == 1
    {
        between.push(turned);
        return Some(Traced { source: norm.inputs[0], rotation, norm: Some((gain, epsilon)) });
    }
    Some(Traced { source: turned, rotation, norm: None })
}
