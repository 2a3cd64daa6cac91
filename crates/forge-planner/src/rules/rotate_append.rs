//! `attention(rotate q, rotate k, v) = attend(rotate q, cache ∪ (rotate k, v))`: one step rotates queries and keys
//! and appends keys and values to the cache; attention then reads nothing but queries and the cache.
//!
//! Precondition: queries, keys and values are neighbouring columns of one value, in this order, and queries and keys
//! are turned by the same rotation.

use crate::fused::{Fused, Kind, Operation, Value};
use forge_ir::{Op, Rotation};

pub(super) fn rewrite(list: &mut Fused) -> bool {
    let fit = (0..list.operations.len()).find_map(|place| fits(list, place).map(|fit| (place, fit)));
    let Some((place, fit)) = fit else { return false };
    let Kind::Node(Op::Attention { query_heads, scale, cache, .. }) = list.operations[place].kind else {
        return false;
    };
    let rotated = list.new_value(fit.query_width);
    let output = list.operations[place].output;
    let rotate = Operation {
        name: "rotate_append".to_owned(),
        kind: Kind::RotateAppend { query_heads, rotation: fit.rotation, cache },
        inputs: vec![fit.all],
        output: rotated,
    };
    let attend = Operation {
        name: "attend".to_owned(),
        kind: Kind::Attend { query_heads, scale, cache },
        inputs: vec![rotated],
        output,
    };
    list.operations.splice(place..=place, [rotate, attend]);
    let gone = fit.gone;
    list.operations.retain(|operation| !gone.contains(&operation.output));
    true
}

struct Fit {
    all: Value,
    query_width: usize,
    rotation: Rotation,
    gone: Vec<Value>,
}

fn fits(list: &Fused, place: usize) -> Option<Fit> {
    let attention = &list.operations[place];
    let Kind::Node(Op::Attention { .. }) = attention.kind else { return None };
    let [query, key, value] = attention.inputs[..] else { return None };
    let rotation = |value| match &list.operations[list.definition(value)?].kind {
        Kind::Node(Op::Rotate { rotation, .. }) => {
            Some((list.operations[list.definition(value)?].inputs[0], rotation))
        }
        _ => None,
    };
    let slice = |value| {
        let definition = &list.operations[list.definition(value)?];
        match definition.kind {
            Kind::Slice { first } if list.uses(value) == 1 => Some((definition.inputs[0], first)),
            _ => None,
        }
    };
    let (plain_query, query_rotation) = rotation(query)?;
    let (plain_key, key_rotation) = rotation(key)?;
    let (all, first_query) = slice(plain_query)?;
    let query_width = list.widths[query.0];
    let neighbours = first_query == 0
        && slice(plain_key)? == (all, query_width)
        && slice(value)? == (all, query_width + list.widths[key.0]);
    (neighbours && query_rotation == key_rotation).then(|| Fit {
        all,
        query_width,
        rotation: query_rotation.clone(),
        gone: vec![query, key, plain_query, plain_key, value],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::merge_projections;
    use crate::rules::tests::{attention, text};

    #[test]
    fn rotations_and_cache_writes_become_one_step_before_attention() {
        let mut list = attention(&[0, 0, 0], &[false, false, false]);
        assert!(!rewrite(&mut list), "queries, keys and values are not side by side yet");
        assert!(merge_projections::rewrite(&mut list));
        assert!(rewrite(&mut list));
        assert_eq!(
            text(&list),
            "%7 qkv = project 0+1+2 Rows(%0)\n\
             %8 rotate_append = rotate_append(%7)\n\
             %6 attend = attend(%8)\n"
        );
    }

    #[test]
    fn two_different_rotations_are_left_alone() {
        let mut list = attention(&[0, 0, 0], &[false, false, false]);
        assert!(merge_projections::rewrite(&mut list));
        for operation in &mut list.operations {
            if let (Kind::Node(Op::Rotate { rotation, .. }), "rotated_key") =
                (&mut operation.kind, operation.name.as_str())
            {
                rotation.magnitude = 2.0;
            }
        }
        assert!(!rewrite(&mut list));
    }
}
