//! `f(W x) = y`: a unary function (softcap, scale or activation) becomes part of the projection's epilogue.
//!
//! Precondition: its input is a plain projection's result, used nowhere else.

use crate::fuse::list::{Function, Fused, Kind};

pub(crate) fn rewrite(list: &mut Fused) -> bool {
    let fit = (0..list.operations.len()).find_map(|place| {
        let Kind::Elementwise(Function::Unary(each)) = list.operations[place].kind else { return None };
        let (linear, _) = list.plain_projection(list.operations[place].inputs[0])?;
        Some((place, linear, each))
    });
    let Some((place, linear, each)) = fit else { return false };
    let function = list.operations.remove(place);
    let operation = &mut list.operations[linear];
    operation.output = function.output;
    operation.name = function.name;
    if let Kind::Linear(linear) = &mut operation.kind {
        linear.unary = Some(each);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::list::UnaryOp;
    use crate::fuse::rules::matmul::residual;
    use crate::fuse::rules::tests::{list, projection, text};
    use forge_ir::Activation;

    fn head(each: UnaryOp, reader: usize) -> Fused {
        list(
            vec![
                ("head", projection(0), &[0], 1),
                ("logits", Kind::Elementwise(Function::Unary(each)), &[1], 2),
                ("last", Kind::Elementwise(Function::Multiply), &[reader, 2], 3),
            ],
            &[4, 9, 9, 9],
        )
    }

    #[test]
    fn unary_functions_are_fused_into_projections() {
        for (each, name) in [
            (UnaryOp::Softcap(30.0), "softcap"),
            (UnaryOp::Scale(0.5), "scale"),
            (UnaryOp::Activate(Activation::GeluTanh), "activate"),
        ] {
            let mut list = head(each, 2);
            assert!(rewrite(&mut list));
            let expected = format!("%2 logits = linear 0 Rows {name}(%0)\n%3 last = multiply(%2, %2)\n");
            assert_eq!(text(&list), expected);
        }
    }

    #[test]
    fn results_with_other_readers_are_not_gated() {
        assert!(!rewrite(&mut head(UnaryOp::Softcap(30.0), 1)));
    }

    #[test]
    fn unary_functions_and_sums_become_epilogues() {
        let mut list = list(
            vec![
                ("output", projection(0), &[1], 2),
                ("scaled", Kind::Elementwise(Function::Unary(UnaryOp::Scale(0.5))), &[2], 3),
                ("stream", Kind::Elementwise(Function::Add), &[0, 3], 4),
            ],
            &[8; 5],
        );
        assert!(rewrite(&mut list) && !rewrite(&mut list));
        assert!(residual::rewrite(&mut list));
        assert_eq!(text(&list), "%4 scaled = linear 0 Rows scale add(%1, %0)\n");
    }
}
