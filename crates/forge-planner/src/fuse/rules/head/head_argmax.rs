//! `argmax(W x) = argmax over threadgroups (argmax of its rows of W x)`: the head computes partial argmaxes.
//!
//! Each threadgroup of the head writes the argmax of its logits, so the final step reads a few candidates
//! instead of the whole vocabulary. Precondition: the list is an epilogue and ends in a plain or softcapped
//! projection.

use crate::fuse::list::{Epilogue, Fused, Kind};

pub(crate) fn rewrite(list: &mut Fused) -> bool {
    match list.operations.last_mut().map(|operation| &mut operation.kind) {
        Some(Kind::Linear(linear)) if linear.ending == Epilogue::Store && linear.parts.len() == 1 => {
            linear.ending = Epilogue::Best;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::list::Function;
    use crate::fuse::rules::tests::{list, projection, text};

    #[test]
    fn the_head_writes_argmax_candidates() {
        let mut head = list(vec![("logits", projection(0), &[0], 1)], &[4, 9]);
        assert!(rewrite(&mut head));
        assert_eq!(text(&head), "%1 logits = linear 0 Rows best(%0)\n");
        assert!(!rewrite(&mut head));
        let add = Kind::Elementwise(Function::Add);
        let mut other = list(vec![("logits", projection(0), &[0], 1), ("sum", add, &[1, 1], 2)], &[4, 9, 9]);
        assert!(!rewrite(&mut other), "it does not end in a projection");
    }
}
