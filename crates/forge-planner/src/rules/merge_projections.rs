//! `[Q x; K x; V x] = [Q; K; V] x`: queries, keys and values in one grid.
//!
//! The input is read once, and one dispatch fills the chip where three small ones would not. Precondition: they are
//! the inputs of one attention (queries and keys through a rotation), plain projections of one value, used nowhere
//! else, and all or none have a bias.

use crate::fused::{Ending, Fused, Kind, Operation, Value};
use forge_ir::{Layout, Op, ParamId};

pub(super) fn rewrite(list: &mut Fused) -> bool {
    let fit = (0..list.operations.len()).find_map(|place| fits(list, place));
    let Some(Fit { input, parts }) = fit else { return false };
    let all = list.new_value(parts.iter().map(|part| list.widths[part.value.0]).sum());
    // Each projection becomes a slice of the merged one, which goes where the first of them stood.
    let mut first = 0;
    for part in &parts {
        let operation = &mut list.operations[part.place];
        operation.kind = Kind::Slice { first };
        operation.inputs = vec![all];
        first += list.widths[part.value.0];
    }
    let place = parts.iter().map(|part| part.place).min().unwrap_or(0);
    let kind = Kind::Project {
        parts: parts.iter().map(|part| part.weight).collect(),
        layout: Layout::Rows,
        ending: Ending::Store,
    };
    list.operations
        .insert(place, Operation { name: "qkv".to_owned(), kind, inputs: vec![input], output: all });
    true
}

struct Fit {
    input: Value,
    parts: Vec<Part>,
}

struct Part {
    value: Value,
    place: usize,
    weight: (ParamId, Option<ParamId>),
}

/// The projections behind the attention at `place`, queries first.
fn fits(list: &Fused, place: usize) -> Option<Fit> {
    let Kind::Node(Op::Attention { .. }) = list.operations[place].kind else { return None };
    let part = |input: &Value| {
        let definition = &list.operations[list.definition(*input)?];
        let value = match definition.kind {
            Kind::Node(Op::Rotate { .. }) if list.uses(*input) == 1 => definition.inputs[0],
            _ => *input,
        };
        let (place, weight) = list.plain_projection(value)?;
        Some(Part { value, place, weight })
    };
    let parts: Vec<Part> = list.operations[place].inputs.iter().map(part).collect::<Option<_>>()?;
    let input = list.operations[parts[0].place].inputs[0];
    let alike = parts.iter().all(|part| {
        list.operations[part.place].inputs[0] == input
            && part.weight.1.is_some() == parts[0].weight.1.is_some()
    });
    alike.then_some(Fit { input, parts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::tests::{attention, text};

    #[test]
    fn three_projections_of_one_value_become_slices_of_one() {
        let mut list = attention(&[0, 0, 0], &[false, false, false]);
        assert!(rewrite(&mut list));
        assert_eq!(
            text(&list),
            "%7 qkv = project 0+1+2 Rows(%0)\n\
             %1 query = slice 0(%7)\n\
             %2 key = slice 8(%7)\n\
             %3 value = slice 12(%7)\n\
             %4 rotated_query = rotate(%1)\n\
             %5 rotated_key = rotate(%2)\n\
             %6 heads = attention(%4, %5, %3)\n"
        );
        assert_eq!(list.widths[7], 16);
        assert!(!rewrite(&mut list));
    }

    #[test]
    fn another_input_or_one_bias_is_left_alone() {
        for mut list in
            [attention(&[0, 0, 1], &[false, false, false]), attention(&[0, 0, 0], &[true, false, true])]
        {
            let before = text(&list);
            assert!(!rewrite(&mut list));
            assert_eq!(text(&list), before);
        }
    }
}
