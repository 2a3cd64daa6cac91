//! `h + (a + b) = (h + a) + b`: two branches are added to the residual stream in sequence, so that each
//! addition can be the epilogue of its branch.
//!
//! Preconditions: both branches end in a projection or in experts, used nowhere else; their sum is used
//! nowhere else; and nothing reads h after either of them is computed.

use crate::fuse::list::{Function, Fused, Kind, Value};

pub(crate) fn rewrite(list: &mut Fused) -> bool {
    let Some(fit) = (0..list.operations.len()).find_map(|place| fits(list, place)) else { return false };
    let Fit { branches, stream, both, sum } = fit;
    // The sum of the branches becomes the sum of the stream and the first branch.
    list.operations[both].inputs = vec![stream, branches[0]];
    let first = list.operations[both].output;
    list.operations[sum].inputs = vec![first, branches[1]];
    true
}

struct Fit {
    branches: [Value; 2],
    stream: Value,
    /// Index of the sum of both branches.
    both: usize,
    /// Index of the sum with the stream.
    sum: usize,
}

fn fits(list: &Fused, sum: usize) -> Option<Fit> {
    let is_sum = |place: usize| list.operations[place].kind == Kind::Elementwise(Function::Add);
    let [left, right] = list.operations[sum].inputs[..] else { return None };
    if !is_sum(sum) {
        return None;
    }
    [(left, right), (right, left)].into_iter().find_map(|(stream, value)| {
        let both = list.definition(value).filter(|place| is_sum(*place) && list.uses(value) == 1)?;
        let [a, b] = list.operations[both].inputs[..] else { return None };
        list.stored_product(a)?;
        list.stored_product(b)?;
        let between = &list.operations[both + 1..sum];
        let alone = !between.iter().any(|operation| operation.inputs.contains(&stream));
        let made = stream == Value::INPUT || list.definition(stream).is_some_and(|place| place < both);
        (alone && made && a != b).then_some(Fit { branches: [a, b], stream, both, sum })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::rules::tests::{list, projection, text};

    fn branches(second: Kind) -> Fused {
        let add = || Kind::Elementwise(Function::Add);
        list(
            vec![
                ("one", projection(0), &[1], 2),
                ("other", second, &[1], 3),
                ("both", add(), &[2, 3], 4),
                ("stream", add(), &[0, 4], 5),
            ],
            &[8; 6],
        )
    }

    #[test]
    fn branches_are_added_to_the_stream_in_order() {
        let mut list = branches(projection(1));
        assert!(rewrite(&mut list));
        assert_eq!(
            text(&list),
            "%2 one = linear 0 Rows(%1)\n\
             %3 other = linear 1 Rows(%1)\n\
             %4 both = add(%0, %2)\n\
             %5 stream = add(%4, %3)\n"
        );
        assert!(!rewrite(&mut list));
    }

    #[test]
    fn other_branch_ends_are_not_fused() {
        assert!(!rewrite(&mut branches(Kind::Norm { gain: None, parts: 1, epsilon: 1e-5 })));
    }
}
