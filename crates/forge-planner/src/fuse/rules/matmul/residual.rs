//! `h + W x`, written into h: a projection or experts add their result to the residual stream.
//!
//! Preconditions: one side of the sum is a projection of one weight or a sum over experts, used nowhere else;
//! nothing reads the other side afterwards. The projection may already have a unary epilogue, which is
//! applied before the addition. No later addition in a separate step may read the sum and be the body's
//! output, since that output would overwrite it.

use crate::fuse::list::{Function, Fused, Kind, Value};

pub(crate) fn rewrite(list: &mut Fused) -> bool {
    let Some(Sum { add, branch, stream }) = last_sum(list, Fused::stored_product) else { return false };
    let output = list.operations[add].output;
    let operation = &mut list.operations[branch];
    operation.kind.add();
    operation.inputs.push(stream);
    operation.output = output;
    // The product moves to the index of the sum, after the stream's other readers.
    let operation = list.operations.remove(branch);
    list.operations[add - 1] = operation;
    true
}

/// A sum that can be computed in place of one of its sides.
pub(crate) struct Sum {
    /// Its index.
    pub(crate) add: usize,
    /// Index of the operation that computes one side.
    pub(crate) branch: usize,
    /// The other side, which nothing reads afterwards.
    pub(crate) stream: Value,
}

/// The last sum that can be done in place, with one side matched by `of_branch`. Sums are rewritten from last
/// to first, so that the fate of each sum's readers is already decided.
pub(crate) fn last_sum(list: &Fused, of_branch: impl Fn(&Fused, Value) -> Option<usize>) -> Option<Sum> {
    (0..list.operations.len()).rev().find_map(|add| {
        let operation = &list.operations[add];
        if operation.kind != Kind::Elementwise(Function::Add) {
            return None;
        }
        let [left, right] = operation.inputs[..] else { return None };
        // A body output that is computed by a separate step is written to the same buffer.
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
    fn sums_with_projections_are_in_place() {
        let mut list = branch(false);
        assert!(rewrite(&mut list));
        assert_eq!(text(&list), "%3 output = linear 0 Rows add(%1, %0)\n");
    }

    #[test]
    fn sums_read_by_the_output_sum_are_not_fused() {
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
    fn streams_with_later_readers_are_not_overwritten() {
        let mut list = branch(true);
        assert!(!rewrite(&mut list));
    }
}
