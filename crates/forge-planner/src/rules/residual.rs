//! `h + W x`, written into h: the residual stream is updated by the projection that feeds it.
//!
//! Precondition: the sum is of a plain projection, used nowhere else, and of a value that nothing reads afterwards.

use crate::fused::{Ending, Fused, Kind};
use forge_ir::Op;

pub(super) fn rewrite(list: &mut Fused) -> bool {
    let fit = (0..list.operations.len()).find_map(|place| fits(list, place).map(|fit| (place, fit)));
    let Some((add, (project, stream))) = fit else { return false };
    let output = list.operations[add].output;
    let operation = &mut list.operations[project];
    if let Kind::Project { ending, .. } = &mut operation.kind {
        *ending = Ending::Add;
    }
    operation.inputs.push(stream);
    operation.output = output;
    // The projection moves to where the sum stood: the stream's other readers come before it.
    let operation = list.operations.remove(project);
    list.operations[add - 1] = operation;
    true
}

/// The place of the projection and the value it is added to.
fn fits(list: &Fused, add: usize) -> Option<(usize, crate::fused::Value)> {
    let operation = &list.operations[add];
    if operation.kind != Kind::Node(Op::Add) {
        return None;
    }
    let [left, right] = operation.inputs[..] else { return None };
    [(left, right), (right, left)].into_iter().find_map(|(stream, result)| {
        let (project, _) = list.plain_projection(result)?;
        let read_later =
            list.operations[add + 1..].iter().any(|operation| operation.inputs.contains(&stream));
        (project < add && !read_later && stream != result).then_some((project, stream))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fused::{Operation, Value};
    use crate::rules::tests::text;
    use forge_ir::{BodyId, Layout, ParamId};

    fn branch(read_again: bool) -> Fused {
        let operation = |name: &str, kind, inputs: &[usize], output| Operation {
            name: name.to_owned(),
            kind,
            inputs: inputs.iter().map(|value| Value(*value)).collect(),
            output: Value(output),
        };
        let project =
            Kind::Project { parts: vec![(ParamId(0), None)], layout: Layout::Rows, ending: Ending::Store };
        let mut operations =
            vec![operation("output", project, &[1], 2), operation("stream", Kind::Node(Op::Add), &[0, 2], 3)];
        if read_again {
            operations.push(operation("again", Kind::Node(Op::Multiply), &[0, 3], 4));
        }
        Fused { body: BodyId(0), operations, widths: vec![8; 5] }
    }

    #[test]
    fn a_sum_with_a_projection_is_done_in_place() {
        let mut list = branch(false);
        assert!(rewrite(&mut list));
        assert_eq!(text(&list), "%3 output = project 0 Rows add(%1, %0)\n");
    }

    #[test]
    fn a_stream_that_is_read_again_is_not_overwritten() {
        let mut list = branch(true);
        assert!(!rewrite(&mut list));
    }
}
