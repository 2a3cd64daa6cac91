//! `h + W x`, written into h: the residual stream is updated by the projection that feeds it, or by experts.
//!
//! Precondition: the sum is of a projection of one weight, or of a sum over experts, used nowhere else, and of a value that
//! nothing reads afterwards. A function of each result may have gone into the projection already: the sum is of what it
//! gives. And the sum is not read by one that flows out and is a step of its own: what flows out goes where this would be.

use crate::fuse::list::{Function, Fused, Kind, Value};

pub(crate) fn rewrite(list: &mut Fused) -> bool {
    let Some(Sum { add, branch, stream }) = last_sum(list, Fused::stored_product) else { return false };
    let output = list.operations[add].output;
    let operation = &mut list.operations[branch];
    operation.kind.add();
    operation.inputs.push(stream);
    operation.output = output;
    // The product moves to where the sum stood: the stream's other readers come before it.
    let operation = list.operations.remove(branch);
    list.operations[add - 1] = operation;
    true
}

/// A sum that can be done in place of one of its sides.
pub(crate) struct Sum {
    /// Its place.
    pub(crate) add: usize,
    /// The place of what makes one side.
    pub(crate) branch: usize,
    /// The other side, which nothing reads afterwards.
    pub(crate) stream: Value,
}

/// The last sum of which one side is what `of_branch` finds, and that can be done in place of the other. The last first: of each
/// is known what becomes of those that read it.
pub(crate) fn last_sum(list: &Fused, of_branch: impl Fn(&Fused, Value) -> Option<usize>) -> Option<Sum> {
    (0..list.operations.len()).rev().find_map(|add| {
        let operation = &list.operations[add];
        if operation.kind != Kind::Elementwise(Function::Add) {
            return None;
        }
        let [left, right] = operation.inputs[..] else { return None };
        // What flows out by a step of its own goes where this would be.
        let last = list.operations.last()?;
        let is_sum = last.kind == Kind::Elementwise(Function::Add);
        if is_sum && last.inputs.contains(&operation.output) {
            return None;
        }
        [(left, right), (right, left)].into_iter().find_map(|(stream, result)| {
            let branch = of_branch(list, result)?;
            let read_later = list.operations[add + 1..].iter().any(|later| later.inputs.contains(&stream));
            (branch < add && !read_later && stream != result).then_some(Sum { add, branch, stream })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::rules::tests::{list, projection, text};

    fn branch(read_again: bool) -> Fused {
        let mut operations: Vec<(&str, Kind, &[usize], usize)> = vec![
            ("output", projection(0), &[1], 2),
            ("stream", Kind::Elementwise(Function::Add), &[0, 2], 3),
        ];
        if read_again {
            operations.push(("again", Kind::Elementwise(Function::Multiply), &[0, 3], 4));
        }
        list(operations, &[8; 5])
    }

    #[test]
    fn a_sum_with_a_projection_is_done_in_place() {
        let mut list = branch(false);
        assert!(rewrite(&mut list));
        assert_eq!(text(&list), "%3 output = project 0 Rows add(%1, %0)\n");
    }

    #[test]
    fn what_a_sum_that_flows_out_reads_stays_beside_it() {
        let mut list = list(
            vec![
                ("output", projection(0), &[0], 1),
                ("stream", Kind::Elementwise(Function::Add), &[0, 1], 2),
                ("branch", Kind::Elementwise(Function::Multiply), &[2, 2], 3),
                ("stream", Kind::Elementwise(Function::Add), &[2, 3], 4),
            ],
            &[8; 5],
        );
        assert!(!rewrite(&mut list));
    }

    #[test]
    fn a_stream_that_is_read_again_is_not_overwritten() {
        let mut list = branch(true);
        assert!(!rewrite(&mut list));
    }
}
