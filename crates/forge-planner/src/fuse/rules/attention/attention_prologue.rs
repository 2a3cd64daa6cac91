//! `attend(rope_append(qkv)) = attend'(qkv)` and `attend(rope(norm(q))) = attend'(q)`: decode attention
//! applies RoPE and QK-norm to its own query, and to key and value if they are in the same buffer.
//!
//! Each threadgroup rotates the query heads that it processes, which is cheap. The threadgroup with the end
//! of the KV range also rotates the new key, writes key and value, and starts its softmax from them, so no
//! barrier is needed for the write. Only queries are prepared if an earlier layer or a separate step has
//! appended keys and values. Preconditions: one row per pass (two rows of one slot would read each other's
//! keys), the prepared heads fit in threadgroup memory, and only attention reads them.

use crate::fuse::list::{Fused, Kind, KvSource, RopeAppend};
use crate::fuse::rules::attention::trace_qkv::{Queries, queries};
use forge_ir::Body;

pub(crate) fn rewrite(list: &mut Fused, body: &Body) -> bool {
    prepare_row(list, body) || prepare_queries(list, body)
}

fn prepare_row(list: &mut Fused, body: &Body) -> bool {
    let fits = |place: &usize| {
        let [prepare, attend] = &list.operations[*place..*place + 2] else { return false };
        let (Kind::RopeAppend(prepared), Kind::Attend(_)) = (&prepare.kind, &attend.kind) else {
            return false;
        };
        let Some(state) = body.cache(prepared.cache) else { return false };
        attend.inputs.first() == Some(&prepare.output)
            && forge_kernels::prologue_fits(prepared.query_heads, state.heads, state.width)
    };
    let Some(place) = (0..list.operations.len().saturating_sub(1)).find(fits) else { return false };
    let prepare = list.operations.remove(place);
    let attend = &mut list.operations[place];
    attend.inputs.splice(..1, prepare.inputs);
    if let (Kind::RopeAppend(prepared), Kind::Attend(attend)) = (prepare.kind, &mut attend.kind) {
        attend.prologue = Some(prepared);
    }
    true
}

fn prepare_queries(list: &mut Fused, body: &Body) -> bool {
    let fits = |place: usize| {
        let Kind::Attend(attend) = &list.operations[place].kind else { return None };
        let state = body.cache(attend.cache)?;
        let fits = forge_kernels::prologue_fits(attend.query_heads, state.heads, state.width);
        let queries = queries(list, list.operations[place].inputs[0], attend.query_heads)?;
        (attend.prologue.is_none() && fits).then_some((place, queries))
    };
    let Some((place, Queries { source, rope, norm, between })) = (0..list.operations.len()).find_map(fits)
    else {
        return false;
    };
    let operation = &mut list.operations[place];
    operation.inputs[0] = source;
    if let Kind::Attend(attend) = &mut operation.kind {
        let (query_heads, cache) = (attend.query_heads, attend.cache);
        let kv_source = KvSource::Nothing;
        attend.prologue = Some(RopeAppend { query_heads, kv_source, norm, rope, cache });
    }
    list.operations.retain(|operation| !between.contains(&operation.output));
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::rules::attention::{qkv, rope_append};
    use crate::fuse::rules::tests::{Attention, NORMED, attention, attention_body, text, without_rope};

    #[test]
    fn rope_and_norms_are_fused_into_attention() {
        let mut list = attention(&Attention::default());
        assert!(qkv::rewrite(&mut list));
        assert!(rope_append::rewrite(&mut list));
        let mut wide = list.clone();
        assert!(rewrite(&mut list, &attention_body(4)));
        assert_eq!(text(&list), "%8 qkv = linear 0+1+2 Rows(%0)\n%6 heads = attend prologue(%8)\n");
        let before = text(&wide);
        assert!(
            !rewrite(&mut wide, &attention_body(4096)),
            "heads that wide do not fit in threadgroup memory"
        );
        assert_eq!(text(&wide), before);
    }

    #[test]
    fn heads_without_rope_are_prepared_too() {
        for what in [Attention::default(), NORMED] {
            let mut list = without_rope(&what);
            assert!(qkv::rewrite(&mut list));
            assert!(rope_append::rewrite(&mut list));
            assert!(rewrite(&mut list, &attention_body(4)));
            let norm = if what.epsilons.is_some() { " norm" } else { "" };
            let queries = if what.epsilons.is_some() { 10 } else { 8 };
            assert_eq!(
                text(&list),
                format!(
                    "%{queries} qkv = linear 0+1+2 Rows(%0)\n%6 heads = attend prologue{norm}(%{queries})\n"
                )
            );
        }
    }

    #[test]
    fn unprepared_queries_are_not_changed() {
        let mut list = without_rope(&Attention::default());
        let before = text(&list);
        assert!(!rewrite(&mut list, &attention_body(4)));
        assert_eq!(text(&list), before);
    }

    #[test]
    fn queries_are_prepared_after_earlier_appends() {
        let mut list = attention(&NORMED);
        let mut wide = list.clone();
        assert!(rewrite(&mut list, &attention_body(4)) && !rewrite(&mut list, &attention_body(4)));
        assert_eq!(
            text(&list),
            "%1 query = linear 0 Rows(%0)\n\
             %2 key = linear 1 Rows(%0)\n\
             %3 value = linear 2 Rows(%0)\n\
             %9 key_norm = norm 1 gain 5(%2)\n\
             %5 rotated_key = rope(%9)\n\
             %7 append = append(%5, %3)\n\
             %6 heads = attend prologue of queries norm(%1)\n"
        );
        assert!(!rewrite(&mut wide, &attention_body(4096)));
    }

    #[test]
    fn queries_with_other_readers_are_not_fused() {
        let mut list = attention(&Attention::default());
        list.operations[5].inputs[1] = list.operations[3].output;
        assert!(!rewrite(&mut list, &attention_body(4)));
    }
}
