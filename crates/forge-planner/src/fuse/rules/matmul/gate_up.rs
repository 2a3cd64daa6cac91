//! `act(G x) * (U x) = y`: gate and up are merged, where row 2i of the matrix is row i of G and row 2i + 1
//! row i of U.
//!
//! One simdgroup computes both results of a pair, and the gated activation is its epilogue, so gate and up
//! are not written to memory. Preconditions: both are plain projections of the same value, used nowhere else,
//! in one format, and both or neither have a bias.

use crate::fuse::list::{Epilogue, Function, Fused, Kind, Linear, UnaryOp, Value};
use forge_ir::Layout;

pub(crate) fn rewrite(list: &mut Fused) -> bool {
    let fit = (0..list.operations.len()).find_map(|place| fits(list, place).map(|fit| (place, fit)));
    let Some((place, fit)) = fit else { return false };
    let operation = &mut list.operations[place];
    operation.kind = Kind::Linear(fit.linear);
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
    linear: Linear,
    input: Value,
    gone: Vec<usize>,
}

/// Matches the multiplication at `place` if it multiplies an activated projection by another projection.
fn fits(list: &Fused, place: usize) -> Option<Fit> {
    let multiply = &list.operations[place];
    if multiply.kind != Kind::Elementwise(Function::Multiply) {
        return None;
    }
    let activated = |value| {
        let place = list.definition(value)?;
        match list.operations[place].kind {
            Kind::Elementwise(Function::Unary(UnaryOp::Activate(activation))) if list.uses(value) == 1 => {
                Some((place, activation))
            }
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
    let alike = gate.1.is_some() == up.1.is_some() && list.format(gate.0) == list.format(up.0);
    if list.operations[up_place].inputs[0] != input || !alike {
        return None;
    }
    let mut linear = Linear::plain(gate.0, None);
    linear.parts = vec![gate, up];
    linear.layout = Layout::Alternate;
    linear.ending = Epilogue::Gate(activation);
    Some(Fit { linear, input, gone: vec![activate, gate_place, up_place] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::rules::tests::{list, projection, text};
    use forge_ir::{Activation, Format, ParamId};

    fn feed_forward(up_input: usize, up_bias: bool) -> Fused {
        let mut up = Linear::plain(ParamId(1), None);
        up.parts[0].1 = up_bias.then_some(ParamId(2));
        let activate = Kind::Elementwise(Function::Unary(UnaryOp::Activate(Activation::Silu)));
        list(
            vec![
                ("gate", projection(0), &[0], 1),
                ("up", Kind::Linear(up), &[up_input], 2),
                ("act", activate, &[1], 3),
                ("inner", Kind::Elementwise(Function::Multiply), &[3, 2], 4),
                ("down", projection(3), &[4], 5),
            ],
            &[8, 6, 6, 6, 6, 8],
        )
    }

    #[test]
    fn gate_up_and_activation_become_one_step() {
        let mut list = feed_forward(0, false);
        assert!(rewrite(&mut list));
        assert_eq!(text(&list), "%4 gate_up = linear 0+1 Alternate gate(%0)\n%5 down = linear 3 Rows(%4)\n");
        assert!(!rewrite(&mut list));
    }

    #[test]
    fn other_inputs_formats_and_biases_are_not_fused() {
        let mut of_two_formats = feed_forward(0, false);
        of_two_formats.formats = vec![Format::Q4_0, Format::Q8_0];
        for mut list in [feed_forward(1, false), feed_forward(0, true), of_two_formats] {
            let before = text(&list);
            assert!(!rewrite(&mut list));
            assert_eq!(text(&list), before);
        }
    }
}
