//! `factor · (h + norm(x))`, written into h: a norm adds its result to the residual stream and multiplies the
//! sum.
//!
//! A norm already has the whole row, so the addition costs only the read of h. Preconditions: the norm is
//! over the whole row and only the addition reads it; nothing reads h afterwards, and the body's output is
//! not written to h while h is still needed. The factor is a scalar weight, whose product is the only reader
//! of the sum.

use crate::fuse::list::{Fused, Kind, NormAdd, Value};
use crate::fuse::rules::matmul::residual::{Sum, last_sum};

pub(crate) fn rewrite(list: &mut Fused) -> bool {
    multiply(list) || add(list)
}

/// Merges a norm and an addition.
fn add(list: &mut Fused) -> bool {
    let Some(Sum { add, branch: norm, stream }) = last_sum(list, norm_of_a_row) else { return false };
    let Kind::Norm { gain, epsilon, .. } = list.operations[norm].kind else { return false };
    let branch = list.operations[norm].inputs[0];
    let sum = &mut list.operations[add];
    sum.kind = Kind::NormAdd(NormAdd { gain, epsilon, factor: None, next_norm: None });
    sum.inputs = vec![branch, stream];
    list.operations.remove(norm);
    true
}

/// Index of the norm that defines a value, if it is over the whole row and has one reader.
fn norm_of_a_row(list: &Fused, normed: Value) -> Option<usize> {
    let norm = list.definition(normed)?;
    let is_norm = matches!(list.operations[norm].kind, Kind::Norm { parts: 1, .. });
    (is_norm && list.uses(normed) == 1).then_some(norm)
}

/// Merges an addition and its product with a scalar weight.
fn multiply(list: &mut Fused) -> bool {
    let fits = |place: &usize| {
        let operation = &list.operations[*place];
        let Kind::ScaleBy { .. } = operation.kind else { return None };
        let sum = list.definition(operation.inputs[0])?;
        let is_sum = matches!(list.operations[sum].kind, Kind::NormAdd(NormAdd { factor: None, .. }));
        (is_sum && sum + 1 == *place && list.uses(operation.inputs[0]) == 1).then_some((sum, *place))
    };
    let Some((sum, product)) = (0..list.operations.len()).find_map(|place| fits(&place)) else {
        return false;
    };
    let product = list.operations.remove(product);
    let (Kind::NormAdd(norm), Kind::ScaleBy { factor }) = (&mut list.operations[sum].kind, product.kind)
    else {
        return false;
    };
    norm.factor = Some(factor);
    list.operations[sum].output = product.output;
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::list::Function;
    use crate::fuse::rules::tests::{list, projection, text};
    use forge_ir::ParamId;

    fn norm(gain: usize, parts: usize) -> Kind {
        Kind::Norm { gain: Some(ParamId(gain)), parts, epsilon: 1e-6 }
    }

    fn branch(parts: usize, read_again: bool) -> Fused {
        let mut operations: Vec<(&str, Kind, &[usize], usize)> = vec![
            ("output", projection(0), &[1], 2),
            ("output_norm", norm(1, parts), &[2], 3),
            ("stream", Kind::Elementwise(Function::Add), &[0, 3], 4),
            ("stream", Kind::ScaleBy { factor: ParamId(2) }, &[4], 5),
        ];
        if read_again {
            operations.push(("again", Kind::Elementwise(Function::Multiply), &[0, 5], 6));
        }
        list(operations, &[8; 7])
    }

    #[test]
    fn norm_sum_and_factor_become_one_step() {
        let mut list = branch(1, false);
        while rewrite(&mut list) {}
        assert_eq!(
            text(&list),
            "%2 output = linear 0 Rows(%1)\n%5 stream = norm add gain 1 times 2(%2, %0)\n"
        );
    }

    #[test]
    fn head_norms_and_reread_streams_are_not_fused() {
        assert!(!rewrite(&mut branch(2, false)));
        assert!(!rewrite(&mut branch(1, true)));
    }

    #[test]
    fn norms_with_other_readers_are_not_fused() {
        let mut list = list(
            vec![
                ("output_norm", norm(1, 1), &[1], 2),
                ("stream", Kind::Elementwise(Function::Add), &[0, 2], 3),
                ("again", Kind::Elementwise(Function::Multiply), &[2, 3], 4),
            ],
            &[8; 5],
        );
        assert!(!rewrite(&mut list));
    }
}
