//! `rotate(norm(q)); cache = rotate(norm(k)), v`: one step prepares queries and appends keys and values to the cache;
//! attention then reads nothing but queries and the cache.
//!
//! Precondition: queries, keys and values are neighbouring columns of one value, in this order, queries and keys are
//! turned by the same rotation, and normed by heads with the same epsilon or not at all.

use super::heads::heads;
use crate::fused::{Fused, Kind, Operation, RotateAppend, Value};

pub(super) fn rewrite(list: &mut Fused) -> bool {
    let fit = (0..list.operations.len()).find_map(|place| fits(list, place));
    let Some(fit) = fit else { return false };
    let rotated = list.new_value(fit.query_width);
    let kind = Kind::RotateAppend(fit.prepare);
    list.operations[fit.place] =
        Operation { name: "rotate_append".to_owned(), kind, inputs: vec![fit.all], output: rotated };
    list.operations[fit.place + 1].inputs = vec![rotated];
    list.operations.retain(|operation| !fit.gone.contains(&operation.output));
    true
}

struct Fit {
    place: usize,
    all: Value,
    query_width: usize,
    prepare: RotateAppend,
    gone: Vec<Value>,
}

fn fits(list: &Fused, place: usize) -> Option<Fit> {
    let found = heads(list, place)?;
    let (Kind::Append { cache }, Kind::Attend(attend)) =
        (&list.operations[found.append].kind, &list.operations[found.append + 1].kind)
    else {
        return None;
    };
    let slice = |value: Value| {
        let definition = &list.operations[list.definition(value)?];
        match definition.kind {
            Kind::Slice { first } if list.uses(value) == 1 => Some((definition.inputs[0], first)),
            _ => None,
        }
    };
    let [query, key, value] = found.sources;
    let (all, first) = slice(query)?;
    let query_width = list.widths[query.0];
    let neighbours = first == 0
        && slice(key)? == (all, query_width)
        && slice(value)? == (all, query_width + list.widths[key.0]);
    let prepare = RotateAppend {
        query_heads: attend.query_heads,
        norm: found.norm,
        rotation: found.rotation,
        cache: *cache,
    };
    let gone = [found.between, found.sources.to_vec()].concat();
    neighbours.then_some(Fit { place, all, query_width, prepare, gone })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::merge_projections;
    use crate::rules::tests::{Attention, attention, text};

    #[test]
    fn rotations_and_cache_writes_become_one_step_before_attention() {
        let mut list = attention(&Attention::default());
        assert!(!rewrite(&mut list), "queries, keys and values are not side by side yet");
        assert!(merge_projections::rewrite(&mut list));
        assert!(rewrite(&mut list));
        assert_eq!(
            text(&list),
            "%8 qkv = project 0+1+2 Rows(%0)\n\
             %9 rotate_append = rotate_append(%8)\n\
             %6 heads = attend(%9)\n"
        );
    }

    #[test]
    fn norms_of_heads_go_along() {
        let mut list = attention(&Attention { epsilons: Some([1e-6, 1e-6]), ..Attention::default() });
        assert!(merge_projections::rewrite(&mut list));
        assert!(rewrite(&mut list));
        assert_eq!(
            text(&list),
            "%10 qkv = project 0+1+2 Rows(%0)\n\
             %11 rotate_append = rotate_append norm(%10)\n\
             %6 heads = attend(%11)\n"
        );
    }
}
