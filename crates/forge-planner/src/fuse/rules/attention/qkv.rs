//! `[Q x; K x; V x] = [Q; K; V] x`: merges the projections of queries, keys and values; only queries and keys
//! if values are computed from keys.
//!
//! The input is read once, and one dispatch fills the GPU where three small ones would not. Preconditions:
//! they belong to one attention, are plain projections of one value, used nowhere else, in one format, and
//! all or none have a bias. Also, `rope_append` can read them as adjacent columns; no other kernel reads
//! columns of a wider row.

use crate::fuse::list::{Fused, Kind, Linear, Operation, Value};
use crate::fuse::rules::attention::trace_qkv::heads;
use forge_ir::ParamId;

pub(crate) fn rewrite(list: &mut Fused) -> bool {
    let fit = (0..list.operations.len()).find_map(|place| fits(list, place));
    let Some(Fit { input, parts }) = fit else { return false };
    let all = list.new_value(parts.iter().map(|part| list.widths[part.value.0]).sum());
    // Each projection becomes a slice of the merged one, which is inserted at the first of them.
    let mut first = 0;
    for part in &parts {
        let operation = &mut list.operations[part.place];
        operation.kind = Kind::Slice { first };
        operation.inputs = vec![all];
        first += list.widths[part.value.0];
    }
    let place = parts.iter().map(|part| part.place).min().unwrap_or(0);
    let mut linear = Linear::plain(parts[0].weight.0, None);
    linear.parts = parts.iter().map(|part| part.weight).collect();
    let name = if parts.len() == 2 { "qk" } else { "qkv" };
    let operation =
        Operation { name: name.to_owned(), kind: Kind::Linear(linear), inputs: vec![input], output: all };
    list.operations.insert(place, operation);
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

/// The projections of the attention whose append is at `place`, queries first.
fn fits(list: &Fused, place: usize) -> Option<Fit> {
    let heads = heads(list, place)?;
    let part = |value: &Value| {
        let (place, weight) = list.plain_projection_of_uses(*value, heads.uses(*value))?;
        Some(Part { value: *value, place, weight })
    };
    let parts: Vec<Part> = heads.sources.iter().map(part).collect::<Option<_>>()?;
    let input = list.operations[parts[0].place].inputs[0];
    let alike = parts.iter().all(|part| {
        list.operations[part.place].inputs[0] == input
            && part.weight.1.is_some() == parts[0].weight.1.is_some()
            && list.format(part.weight.0) == list.format(parts[0].weight.0)
    });
    alike.then_some(Fit { input, parts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::rules::tests::{Attention, NORMED, Values, attention, text};
    use forge_ir::Format;

    #[test]
    fn three_projections_of_one_value_are_merged() {
        let mut list = attention(&Attention::default());
        assert!(rewrite(&mut list));
        assert_eq!(
            text(&list),
            "%8 qkv = linear 0+1+2 Rows(%0)\n\
             %1 query = slice 0(%8)\n\
             %2 key = slice 8(%8)\n\
             %3 value = slice 12(%8)\n\
             %4 rotated_query = rope(%1)\n\
             %5 rotated_key = rope(%2)\n\
             %7 append = append(%5, %3)\n\
             %6 heads = attend(%4)\n"
        );
        assert_eq!(list.widths[8], 16);
        assert!(!rewrite(&mut list));
    }

    #[test]
    fn values_from_keys_need_no_projection() {
        let mut list = attention(&Attention { values: Values::OfKeys, ..NORMED });
        assert!(rewrite(&mut list));
        assert_eq!(
            text(&list),
            "%11 qk = linear 0+1 Rows(%0)\n\
             %1 query = slice 0(%11)\n\
             %2 key = slice 8(%11)\n\
             %8 query_norm = norm 2 gain 4(%1)\n\
             %9 key_norm = norm 1 gain 5(%2)\n\
             %4 rotated_query = rope(%8)\n\
             %5 rotated_key = rope(%9)\n\
             %10 value_norm = norm 1(%2)\n\
             %7 append = append(%5, %10)\n\
             %6 heads = attend(%4)\n"
        );
        assert!(!rewrite(&mut list));
    }

    #[test]
    fn other_formats_are_not_fused() {
        let mut list = attention(&Attention::default());
        list.formats = vec![Format::Q4_0, Format::Q4_0, Format::Q8_0];
        assert!(!rewrite(&mut list));
        list.formats[2] = Format::Q4_0;
        assert!(rewrite(&mut list));
    }

    #[test]
    fn other_inputs_biases_and_rotations_are_not_fused() {
        for what in [
            Attention { inputs: [0, 0, 1], ..Attention::default() },
            Attention { biases: [true, false, true], ..Attention::default() },
            Attention { magnitudes: [1.0, 2.0], ..Attention::default() },
            Attention { epsilons: Some([1e-5, 1e-6]), ..Attention::default() },
            Attention { values: Values::Normed { parts: 2, epsilon: 1e-6 }, ..NORMED },
            Attention { values: Values::Normed { parts: 1, epsilon: 1e-5 }, ..NORMED },
            Attention { values: Values::Normed { parts: 1, epsilon: 1e-6 }, ..Attention::default() },
        ] {
            let mut list = attention(&what);
            let before = text(&list);
            assert!(!rewrite(&mut list));
            assert_eq!(text(&list), before);
        }
    }
}
