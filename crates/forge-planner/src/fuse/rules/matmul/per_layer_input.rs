//! `f(W x) · a = y`, where a is the layer's columns of the per-layer inputs: the projection reads them as an
//! epilogue operand.
//!
//! Preconditions: one row per pass (with more rows the columns are strided), and the product is of a
//! projection of one weight and the columns, both used nowhere else. The projection may already have a unary
//! epilogue.

use crate::fuse::list::{Epilogue, Function, Fused, Kind};

pub(crate) fn rewrite(list: &mut Fused) -> bool {
    let Some(Fit { product, linear, slice }) = (0..list.operations.len()).find_map(|place| fits(list, place))
    else {
        return false;
    };
    let output = list.operations[product].output;
    let operation = &mut list.operations[linear];
    operation.output = output;
    if let Kind::Linear(linear) = &mut operation.kind {
        linear.ending = Epilogue::MultiplyPerLayerInput;
    }
    list.operations.remove(product);
    list.operations.remove(slice);
    true
}

/// Indices of the product, the projection and the columns.
struct Fit {
    product: usize,
    linear: usize,
    slice: usize,
}

fn fits(list: &Fused, product: usize) -> Option<Fit> {
    let operation = &list.operations[product];
    if operation.kind != Kind::Elementwise(Function::Multiply) {
        return None;
    }
    let [left, right] = operation.inputs[..] else { return None };
    [(left, right), (right, left)].into_iter().find_map(|(result, input)| {
        let linear = list.stored_product(result)?;
        let slice = list.definition_for_one(input)?;
        let is_slice = list.operations[slice].kind == Kind::PerLayerInput;
        let is_projection = matches!(list.operations[linear].kind, Kind::Linear(_));
        (is_slice && is_projection).then_some(Fit { product, linear, slice })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::list::UnaryOp;
    use crate::fuse::rules::matmul::unary_epilogue;
    use crate::fuse::rules::tests::{list, projection, text};

    fn gate(of: &[usize]) -> Fused {
        list(
            vec![
                ("input_gate", projection(0), &[0], 1),
                ("scaled", Kind::Elementwise(Function::Unary(UnaryOp::Scale(0.5))), &[1], 2),
                ("own_input", Kind::PerLayerInput, &[], 3),
                ("gated_input", Kind::Elementwise(Function::Multiply), of, 4),
                ("input", projection(1), &[4], 5),
            ],
            &[8, 6, 6, 6, 6, 8],
        )
    }

    #[test]
    fn column_factors_are_fused_into_projections() {
        for of in [&[2, 3], &[3, 2]] {
            let mut list = gate(of);
            assert!(!rewrite(&mut list), "what comes between is not in the projection yet");
            assert!(unary_epilogue::rewrite(&mut list));
            assert!(rewrite(&mut list) && !rewrite(&mut list));
            assert_eq!(
                text(&list),
                "%4 scaled = linear 0 Rows scale times per_layer_input(%0)\n%5 input = linear 1 Rows(%4)\n"
            );
        }
    }

    #[test]
    fn values_with_other_readers_are_not_fused() {
        for (reader, value) in [(4, 3), (4, 2)] {
            let mut list = gate(&[2, 3]);
            list.operations[reader].inputs[0] = crate::fuse::list::Value(value);
            unary_epilogue::rewrite(&mut list);
            assert!(!rewrite(&mut list));
        }
    }
}
