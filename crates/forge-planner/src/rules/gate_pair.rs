//! `act(G x) * (U x) = y`, where row 2i of one matrix is row i of G and row 2i + 1 is row i of U.
//!
//! One grid computes both products of a pair in one simdgroup, and the activation is its epilogue: two vectors of
//! the feed-forward width are never written. Precondition: both are plain projections of the same value, used
//! nowhere else, and both or neither have a bias.

use crate::fused::{Ending, Fused, Kind};
use forge_ir::{Layout, Op};

pub(super) fn rewrite(list: &mut Fused) -> bool {
    let fit = (0..list.operations.len()).find_map(|place| fits(list, place).map(|fit| (place, fit)));
    let Some((place, fit)) = fit else { return false };
    let operation = &mut list.operations[place];
    operation.kind = fit.kind;
    operation.inputs = vec![fit.input];
    operation.name = "gate_up".to_owned();
    let mut gone = fit.gone;
    gone.sort_unstable_by(|a, b| b.cmp(a));
    for place in gone {
        list.operations.remove(place);
    }
    true
}

struct Fit {
    kind: Kind,
    input: crate::fused::Value,
    gone: Vec<usize>,
}

/// Whether the multiplication at `place` is one of an activated projection with another.
fn fits(list: &Fused, place: usize) -> Option<Fit> {
    let multiply = &list.operations[place];
    if multiply.kind != Kind::Node(Op::Multiply) {
        return None;
    }
    let activated = |value| {
        let place = list.definition(value)?;
        match list.operations[place].kind {
            Kind::Node(Op::Activate(activation)) if list.uses(value) == 1 => Some((place, activation)),
            _ => None,
        }
    };
    let [left, right] = multiply.inputs[..] else { return None };
    let (other, (activate, activation)) = activated(left)
        .map(|found| (right, found))
        .or_else(|| activated(right).map(|found| (left, found)))?;
    let (gate_place, gate) = list.plain_projection(list.operations[activate].inputs[0])?;
    let (up_place, up) = list.plain_projection(other)?;
    let input = list.operations[gate_place].inputs[0];
    if list.operations[up_place].inputs[0] != input || gate.1.is_some() != up.1.is_some() {
        return None;
    }
    let kind =
        Kind::Project { parts: vec![gate, up], layout: Layout::Alternate, ending: Ending::Gate(activation) };
    Some(Fit { kind, input, gone: vec![activate, gate_place, up_place] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fused::{Operation, Value};
    use crate::rules::tests::text;
    use forge_ir::{Activation, BodyId, ParamId};

    fn feed_forward(up_input: usize, up_bias: bool) -> Fused {
        let project = |weight, bias| Kind::Project {
            parts: vec![(ParamId(weight), bias)],
            layout: Layout::Rows,
            ending: Ending::Store,
        };
        let operation = |name: &str, kind, inputs: &[usize], output| Operation {
            name: name.to_owned(),
            kind,
            inputs: inputs.iter().map(|value| Value(*value)).collect(),
            output: Value(output),
        };
        Fused {
            body: BodyId(0),
            operations: vec![
                operation("gate", project(0, None), &[0], 1),
                operation("up", project(1, up_bias.then_some(ParamId(2))), &[up_input], 2),
                operation("act", Kind::Node(Op::Activate(Activation::Silu)), &[1], 3),
                operation("inner", Kind::Node(Op::Multiply), &[3, 2], 4),
                operation("down", project(3, None), &[4], 5),
            ],
            widths: vec![8, 6, 6, 6, 6, 8],
        }
    }

    #[test]
    fn two_projections_and_an_activation_become_one() {
        let mut list = feed_forward(0, false);
        assert!(rewrite(&mut list));
        assert_eq!(
            text(&list),
            "%4 gate_up = project 0+1 Alternate gate(%0)\n%5 down = project 3 Rows(%4)\n"
        );
        assert!(!rewrite(&mut list));
    }

    #[test]
    fn different_inputs_or_one_bias_are_left_alone() {
        for mut list in [feed_forward(1, false), feed_forward(0, true)] {
            let before = text(&list);
            assert!(!rewrite(&mut list));
            assert_eq!(text(&list), before);
        }
    }
}
