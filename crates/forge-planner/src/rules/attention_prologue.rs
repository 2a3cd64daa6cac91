//! `attend(rotate_append(qkv)) = attend'(qkv)`: attention of one row prepares its own query, key and value.
//!
//! Each threadgroup turns the query heads it works for, which is next to nothing; the one that has the end of the cache
//! turns the new key too, writes key and value, and starts its softmax from them, so nobody waits for the write.
//! Precondition: one row a pass (two rows of one slot would have to see each other's keys), and the prepared heads
//! fit in threadgroup memory.

use crate::fused::{Fused, Kind};
use forge_ir::Body;

pub(super) fn rewrite(list: &mut Fused, body: &Body) -> bool {
    let fits = |place: &usize| {
        let [prepare, attend] = &list.operations[*place..*place + 2] else { return false };
        let (Kind::RotateAppend(prepared), Kind::Attend(_)) = (&prepare.kind, &attend.kind) else {
            return false;
        };
        let Some(state) = body.cache(prepared.cache) else { return false };
        attend.inputs == [prepare.output]
            && forge_kernels::prologue_fits(prepared.query_heads, state.heads, state.width)
    };
    let Some(place) = (0..list.operations.len().saturating_sub(1)).find(fits) else { return false };
    let prepare = list.operations.remove(place);
    let attend = &mut list.operations[place];
    attend.inputs = prepare.inputs;
    if let (Kind::RotateAppend(prepared), Kind::Attend(attend)) = (prepare.kind, &mut attend.kind) {
        attend.prologue = Some(prepared);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::tests::{Attention, attention, attention_body, text};
    use crate::rules::{merge_projections, rotate_append};

    #[test]
    fn attention_takes_the_preparation_in() {
        let mut list = attention(&Attention::default());
        assert!(!rewrite(&mut list, &attention_body(4)));
        assert!(merge_projections::rewrite(&mut list));
        assert!(rotate_append::rewrite(&mut list));
        let mut wide = list.clone();
        assert!(rewrite(&mut list, &attention_body(4)));
        assert_eq!(text(&list), "%8 qkv = project 0+1+2 Rows(%0)\n%6 heads = attend prologue(%8)\n");
        let before = text(&wide);
        assert!(!rewrite(&mut wide, &attention_body(4096)), "heads that wide have no room");
        assert_eq!(text(&wide), before);
    }
}
