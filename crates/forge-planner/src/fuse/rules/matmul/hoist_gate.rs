//! `(W x) g = W (x g)`, where g is a scalar per row: a branch is gated before its last projection.
//!
//! The branch then ends in a projection, so that an addition to the residual stream can be its epilogue.
//! Preconditions: the product is of a plain projection without bias, used nowhere else, and g is a scalar per
//! row.

use crate::fuse::list::{Function, Fused, Kind};

pub(crate) fn rewrite(list: &mut Fused) -> bool {
    let Some((gate, linear)) = (0..list.operations.len()).find_map(|place| fits(list, place)) else {
        return false;
    };
    let x = list.operations[linear].inputs[0];
    let gated = list.new_value(list.widths[x.0]);
    let mut projection = list.operations.remove(linear);
    let multiply = &mut list.operations[gate - 1];
    projection.inputs[0] = gated;
    projection.output = std::mem::replace(&mut multiply.output, gated);
    multiply.inputs[0] = x;
    list.operations.insert(gate, projection);
    true
}

/// Indices of a product with a scalar per row, and of the projection before it.
fn fits(list: &Fused, gate: usize) -> Option<(usize, usize)> {
    let operation = &list.operations[gate];
    if operation.kind != Kind::Elementwise(Function::ScaleRows) {
        return None;
    }
    let (linear, (_, bias)) = list.plain_projection(operation.inputs[0])?;
    (bias.is_none() && operation.inputs[1] != operation.inputs[0]).then_some((gate, linear))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::list::Linear;
    use crate::fuse::rules::tests::{list, projection, text};
    use forge_ir::ParamId;

    fn gated(bias: bool) -> Fused {
        let down = Kind::Linear(Linear::plain(ParamId(0), bias.then_some(ParamId(2))));
        list(
            vec![
                ("down", down, &[1], 2),
                ("gate", projection(1), &[0], 3),
                ("shared", Kind::Elementwise(Function::ScaleRows), &[2, 3], 4),
            ],
            &[8, 6, 8, 1, 8],
        )
    }

    #[test]
    fn gates_move_before_the_projection() {
        let mut list = gated(false);
        assert!(rewrite(&mut list));
        assert_eq!(
            text(&list),
            "%3 gate = linear 1 Rows(%0)\n%5 shared = scale rows(%1, %3)\n%4 down = linear 0 Rows(%5)\n"
        );
        assert_eq!(list.widths[5], 6);
        assert!(!rewrite(&mut list));
    }

    #[test]
    fn a_bias_precedes_the_gate() {
        assert!(!rewrite(&mut gated(true)));
    }
}
