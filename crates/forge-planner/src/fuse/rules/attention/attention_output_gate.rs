//! `attend(q) · sigmoid(G x) = attend'(q, [...; G] x)`: attention multiplies its output by the sigmoid of
//! gates, which are projected together with queries, keys and values.
//!
//! Preconditions: queries, keys and values are one projection that only `rope_append` reads; gates are a
//! projection of the same value in the same format, with a bias if that one has a bias; and nothing else
//! reads the gates or the ungated output.

use crate::fuse::list::{Epilogue, Function, Fused, Kind, KvSource, Linear, UnaryOp, Value};
use forge_ir::Layout;
use forge_ops::Activation;

pub(crate) fn rewrite(list: &mut Fused) -> bool {
    let Some(Fit { product, attend, prepare, merged, gates }) =
        (0..list.operations.len()).find_map(|place| fits(list, place))
    else {
        return false;
    };
    let row = list.operations[merged].output;
    let (heads, of_gates) = (list.operations[product].output, list.operations[gates].output);
    list.widths[row.0] += list.widths[of_gates.0];
    let part = match &list.operations[gates].kind {
        Kind::Linear(linear) => linear.parts[0],
        _ => return false,
    };
    list.operations[merged].name += "_gates";
    if let Kind::Linear(linear) = &mut list.operations[merged].kind {
        linear.parts.push(part);
    }
    if let Kind::RopeAppend(prepared) = &mut list.operations[prepare].kind {
        prepared.kv_source = KvSource::KeysValuesAndGates;
    }
    let operation = &mut list.operations[attend];
    operation.inputs.push(row);
    operation.output = heads;
    if let Kind::Attend(attend) = &mut operation.kind {
        attend.gated = true;
    }
    let mut gone = [product, gates];
    gone.sort_unstable();
    gone.into_iter().rev().for_each(|place| drop(list.operations.remove(place)));
    true
}

/// Indices of the matched operations.
struct Fit {
    product: usize,
    attend: usize,
    prepare: usize,
    merged: usize,
    gates: usize,
}

/// Matches a product of attention output and gates.
fn fits(list: &Fused, product: usize) -> Option<Fit> {
    let operation = &list.operations[product];
    if operation.kind != Kind::Elementwise(Function::Multiply) {
        return None;
    }
    let alone = |value: &Value| list.definition_for_one(*value);
    let [one, other] = operation.inputs[..] else { return None };
    let attends = |place: usize| matches!(list.operations[place].kind, Kind::Attend(_));
    let (heads, of_gates) = if attends(list.definition(one)?) { (one, other) } else { (other, one) };
    let (attend, gates) = (alone(&heads).filter(|place| attends(*place))?, alone(&of_gates)?);
    let prepare = alone(list.operations[attend].inputs.first()?)?;
    let Kind::RopeAppend(prepared) = &list.operations[prepare].kind else { return None };
    let merged = alone(list.operations[prepare].inputs.first()?)?;
    let (queries, opened) = (plain(list, merged)?, plain(list, gates)?);
    let (first, gate) = (queries.parts[0], opened.parts[0]);
    let fits = prepared.kv_source == KvSource::KeysAndValues
        && queries.unary.is_none()
        && opened.unary == Some(UnaryOp::Activate(Activation::Sigmoid))
        && opened.parts.len() == 1
        && list.operations[merged].inputs == list.operations[gates].inputs
        && list.format(first.0) == list.format(gate.0)
        && first.1.is_some() == gate.1.is_some()
        && list.widths[of_gates.0] == list.widths[heads.0];
    fits.then_some(Fit { product, attend, prepare, merged, gates })
}

/// The projection at an index, if it has no norm and no epilogue besides a unary function.
fn plain(list: &Fused, place: usize) -> Option<&Linear> {
    match &list.operations[place].kind {
        Kind::Linear(linear)
            if linear.layout == Layout::Rows
                && linear.ending == Epilogue::Store
                && linear.norm.is_none()
                && linear.own_norm.is_none() =>
        {
            Some(linear)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::list::Operation;
    use crate::fuse::rules::attention::{attention_prologue, qkv, rope_append};
    use crate::fuse::rules::matmul::unary_epilogue;
    use crate::fuse::rules::tests::{Attention, attention, attention_body, text};
    use forge_ir::{Format, ParamId};

    /// Attention whose output is multiplied by the sigmoid of a projection.
    fn gated(bias: Option<ParamId>) -> Fused {
        let mut list = attention(&Attention::default());
        let add = |list: &mut Fused, name: &str, kind, inputs: &[Value]| {
            let output = list.new_value(8);
            let inputs = inputs.to_vec();
            list.operations.push(Operation { name: name.to_owned(), kind, inputs, output });
            output
        };
        let linear = Kind::Linear(Linear::plain(ParamId(6), bias));
        let gates = add(&mut list, "output_gate", linear, &[Value::INPUT]);
        let sigmoid = Kind::Elementwise(Function::Unary(UnaryOp::Activate(Activation::Sigmoid)));
        let opened = add(&mut list, "open_output", sigmoid, &[gates]);
        add(&mut list, "gated_heads", Kind::Elementwise(Function::Multiply), &[Value(6), opened]);
        assert!(unary_epilogue::rewrite(&mut list));
        list
    }

    fn prepared(list: &mut Fused) {
        assert!(qkv::rewrite(list));
        assert!(rope_append::rewrite(list));
    }

    #[test]
    fn attention_output_gates_are_projected_with_queries() {
        let mut list = gated(None);
        prepared(&mut list);
        assert!(rewrite(&mut list));
        assert_eq!(
            text(&list),
            "%11 qkv_gates = linear 0+1+2+6 Rows(%0)\n\
             %12 rope_append = rope_append with gates(%11)\n\
             %10 heads = attend gated(%12, %11)\n"
        );
        assert_eq!(list.widths[11], 24);
        assert!(!rewrite(&mut list));
        assert!(attention_prologue::rewrite(&mut list, &attention_body(4)));
        assert_eq!(
            text(&list),
            "%11 qkv_gates = linear 0+1+2+6 Rows(%0)\n\
             %10 heads = attend gated prologue with gates(%11, %11)\n"
        );
    }

    #[test]
    fn other_formats_biases_and_readers_are_not_fused() {
        let left_alone = |mut list: Fused| {
            let before = text(&list);
            assert!(!rewrite(&mut list));
            assert_eq!(text(&list), before);
        };
        // Queries, keys and values that are not one projection.
        left_alone(gated(None));
        let mut biased = gated(Some(ParamId(7)));
        prepared(&mut biased);
        left_alone(biased);
        let mut list = gated(None);
        prepared(&mut list);
        let mut packed = list.clone();
        packed.formats = vec![
            Format::Q4_0,
            Format::Q4_0,
            Format::Q4_0,
            Format::F32,
            Format::F32,
            Format::F32,
            Format::Q8_0,
        ];
        left_alone(packed);
        let output = list.new_value(8);
        let kind = Kind::Elementwise(Function::Add);
        list.operations.push(Operation {
            name: "again".to_owned(),
            kind,
            inputs: vec![Value(6), Value(10)],
            output,
        });
        left_alone(list);
    }
}
