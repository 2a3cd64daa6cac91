//! `rope(norm(q)); cache = rope(norm(k)), norm(v)`: one step prepares queries and appends keys and values
//! to the KV cache. Attention then reads only queries and the cache.
//!
//! Preconditions: queries, keys and values are adjacent columns of one value, in this order; or values are
//! computed from the keys' columns. Queries and keys have the same RoPE or none, and per-head norms with the
//! same epsilon or none. Values are normalized, without a gain, only if queries and keys are.

use crate::fuse::list::{Fused, Kind, Operation, RopeAppend, Value};
use crate::fuse::rules::attention::trace_qkv::heads;

pub(crate) fn rewrite(list: &mut Fused) -> bool {
    let fit = (0..list.operations.len()).find_map(|place| fits(list, place));
    let Some(fit) = fit else { return false };
    let rotated = list.new_value(fit.query_width);
    let kind = Kind::RopeAppend(fit.prepare);
    list.operations[fit.place] =
        Operation { name: "rope_append".to_owned(), kind, inputs: vec![fit.all], output: rotated };
    list.operations[fit.place + 1].inputs = vec![rotated];
    list.operations.retain(|operation| !fit.gone.contains(&operation.output));
    true
}

struct Fit {
    place: usize,
    all: Value,
    query_width: usize,
    prepare: RopeAppend,
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
            Kind::Slice { first } if list.uses(value) == found.uses(value) => {
                Some((definition.inputs[0], first))
            }
            _ => None,
        }
    };
    let query_width = list.widths[found.sources[0].0];
    let (all, _) = slice(found.sources[0])?;
    let mut next = 0;
    for source in &found.sources {
        if slice(*source)? != (all, next) {
            return None;
        }
        next += list.widths[source.0];
    }
    let prepare = RopeAppend {
        query_heads: attend.query_heads,
        kv_source: found.kv_source,
        norm: found.norm,
        rope: found.rope,
        cache: *cache,
    };
    let gone = [found.between, found.sources].concat();
    Some(Fit { place, all, query_width, prepare, gone })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::rules::attention::qkv;
    use crate::fuse::rules::tests::{Attention, NORMED, Values, attention, text};

    #[test]
    fn rope_and_append_become_one_step() {
        let mut list = attention(&Attention::default());
        assert!(!rewrite(&mut list), "queries, keys and values are not side by side yet");
        assert!(qkv::rewrite(&mut list));
        assert!(rewrite(&mut list));
        assert_eq!(
            text(&list),
            "%8 qkv = linear 0+1+2 Rows(%0)\n\
             %9 rope_append = rope_append(%8)\n\
             %6 heads = attend(%9)\n"
        );
    }

    #[test]
    fn qk_norms_are_fused_too() {
        let mut list = attention(&Attention { epsilons: Some([1e-6, 1e-6]), ..Attention::default() });
        assert!(qkv::rewrite(&mut list));
        assert!(rewrite(&mut list));
        assert_eq!(
            text(&list),
            "%10 qkv = linear 0+1+2 Rows(%0)\n\
             %11 rope_append = rope_append norm(%10)\n\
             %6 heads = attend(%11)\n"
        );
    }

    #[test]
    fn value_norms_and_values_from_keys_are_fused_too() {
        let values = |values| {
            let mut list = attention(&Attention { values, ..NORMED });
            assert!(qkv::rewrite(&mut list));
            assert!(rewrite(&mut list) && !rewrite(&mut list));
            text(&list)
        };
        assert_eq!(
            values(Values::Normed { parts: 1, epsilon: 1e-6 }),
            "%11 qkv = linear 0+1+2 Rows(%0)\n\
             %12 rope_append = rope_append norm values(%11)\n\
             %6 heads = attend(%12)\n"
        );
        assert_eq!(
            values(Values::OfKeys),
            "%11 qk = linear 0+1 Rows(%0)\n\
             %12 rope_append = rope_append of keys norm values(%11)\n\
             %6 heads = attend(%12)\n"
        );
    }
}
