//! `delta_rule(conv(x), x) = delta_rule'(x)`: the decode delta rule convolves its own queries, keys and
//! values.
//!
//! Value heads that share a key head each recompute its query and key, which is cheap; the first of them
//! updates the conv state. Preconditions: one row per pass (several rows would need each other's conv state),
//! and the rule is gated, so its convolved inputs are adjacent columns.

use crate::fuse::list::{Fused, Kind};

pub(crate) fn rewrite(list: &mut Fused) -> bool {
    let fits = |place: &usize| {
        let [convolve, rule] = &list.operations[*place..*place + 2] else { return false };
        matches!((&convolve.kind, &rule.kind), (Kind::Convolve(_), Kind::DeltaRule(rule)) if rule.gated.is_some())
            && rule.inputs == [convolve.output, convolve.inputs[0]]
            && list.uses(convolve.output) == 1
    };
    let Some(place) = (0..list.operations.len().saturating_sub(1)).find(fits) else { return false };
    let convolve = list.operations.remove(place);
    let rule = &mut list.operations[place];
    rule.inputs = convolve.inputs;
    if let (Kind::Convolve(convolve), Kind::DeltaRule(rule)) = (convolve.kind, &mut rule.kind) {
        rule.prologue = Some(convolve);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::rules::recurrent::delta_net;
    use crate::fuse::rules::tests::text;

    #[test]
    fn convolutions_are_fused_into_the_delta_rule() {
        let mut list = delta_net::tests::mixer();
        assert!(!rewrite(&mut list), "nothing is side by side yet");
        assert!(delta_net::rewrite(&mut list));
        assert!(rewrite(&mut list) && !rewrite(&mut list));
        assert_eq!(
            text(&list),
            "%19 inputs = linear 0+1+2+3+4+5 Rows(%0)\n\
             %17 heads = delta_rule gated convolve 6+8+10(%19)\n\
             %18 output = linear 16 Rows(%17)\n"
        );
    }
}
