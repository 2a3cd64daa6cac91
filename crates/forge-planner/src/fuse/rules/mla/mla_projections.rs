//! `[A x; C x; K x] = [A; C; K] x`: merges MLA projections (query latents, queries, latents and keys) that
//! read the same value.
//!
//! Preconditions: they belong to one MLA attention, are plain projections of one value, used nowhere else, in
//! one format, and all or none have a bias. Their readers accept columns of wider values, as norms of whole
//! values, per-head matrices and `mla_append` do.

use crate::fuse::list::{Fused, Kind, Linear, Operation, Value};
use forge_ir::ParamId;

pub(crate) fn rewrite(list: &mut Fused) -> bool {
    let fit = (0..list.operations.len()).find_map(|place| fits(list, place));
    let Some((name, parts)) = fit else { return false };
    let input = list.operations[parts[0].place].inputs[0];
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
    let (kind, name) = (Kind::Linear(linear), name.to_owned());
    list.operations.insert(place, Operation { name, kind, inputs: vec![input], output: all });
    true
}

#[derive(Clone, Copy)]
struct Part {
    value: Value,
    place: usize,
    weight: (ParamId, Option<ParamId>),
}

/// The first set of mergeable projections for the append at `place`, in order, and the name of the merged
/// projection.
fn fits(list: &Fused, place: usize) -> Option<(&'static str, Vec<Part>)> {
    let (append, attend) = (&list.operations[place], list.operations.get(place + 1)?);
    let (Kind::MlaAppend(prepared), Kind::MlaAttention(_)) = (&append.kind, &attend.kind) else {
        return None;
    };
    let [rope_query, latent, key] = append.inputs[..] else { return None };
    prepared.prepare.as_ref()?;
    let absorb = &list.operations[list.definition(attend.inputs[0])?];
    let query = absorb.inputs.first().copied().filter(|_| matches!(absorb.kind, Kind::PerHeadLinear(_)))?;
    let part = |value: Value| {
        let (place, weight) = list.plain_projection(value)?;
        Some(Part { value, place, weight })
    };
    let input = |part: &Part| list.operations[part.place].inputs[0];
    // The query latent, if queries are projected from one.
    let of_queries = part(rope_query).and_then(|query| {
        let norm = &list.operations[list.definition(input(&query))?];
        part(norm.inputs[0]).filter(|_| matches!(norm.kind, Kind::Norm { parts: 1, .. }))
    });
    let values = [part(query), part(rope_query), part(latent), part(key)];
    let parts: Vec<Part> = of_queries.into_iter().chain(values.into_iter().flatten()).collect();
    let alike = |a: &Part, b: &Part| {
        input(a) == input(b)
            && a.weight.1.is_some() == b.weight.1.is_some()
            && list.format(a.weight.0) == list.format(b.weight.0)
    };
    let merged = parts.iter().find_map(|first| {
        let all: Vec<Part> = parts.iter().filter(|part| alike(first, part)).copied().collect();
        (all.len() > 1).then_some(all)
    })?;
    let has_latent = merged.iter().any(|part| part.value == latent);
    Some((if has_latent { "inputs" } else { "queries" }, merged))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::rules::mla::mla_append;
    use crate::fuse::rules::mla::mla_append::tests::mixer;
    use crate::fuse::rules::tests::text;
    use forge_ir::Format;

    #[test]
    fn projections_of_one_value_are_merged() {
        let mut list = mixer(true);
        assert!(!rewrite(&mut list), "RoPE and norms of latents do not take columns");
        assert!(mla_append::rewrite(&mut list));
        assert!(rewrite(&mut list) && rewrite(&mut list) && !rewrite(&mut list));
        assert_eq!(
            text(&list),
            "%16 inputs = linear 0+4+5 Rows(%0)\n\
             %1 query_latent = slice 0(%16)\n\
             %2 normed_query_latent = norm 1 gain 1(%1)\n\
             %17 queries = linear 2+3 Rows(%2)\n\
             %3 query = slice 0(%17)\n\
             %4 rope_query = slice 6(%17)\n\
             %6 latent = slice 4(%16)\n\
             %7 rope_key = slice 9(%16)\n\
             %10 latent_query = per_head_linear transposed 7(%3)\n\
             %15 mla_append = mla_append prepare(%4, %6, %7)\n\
             %11 latent_heads = mla_attention(%10, %15)\n\
             %12 heads = per_head_linear 8(%11)\n\
             %13 output = linear 10 Rows(%12)\n"
        );
        assert_eq!([list.widths[16], list.widths[17]], [11, 10]);
    }

    #[test]
    fn queries_of_the_same_value_are_merged_first() {
        let mut list = mixer(false);
        assert!(mla_append::rewrite(&mut list) && rewrite(&mut list) && !rewrite(&mut list));
        assert!(text(&list).starts_with("%16 inputs = linear 2+3+4+5 Rows(%0)\n"), "{}", text(&list));
    }

    #[test]
    fn other_formats_and_biases_are_not_merged() {
        let mut list = mixer(false);
        assert!(mla_append::rewrite(&mut list));
        list.formats = vec![Format::Q4_0; 11];
        list.formats[2..4].fill(Format::Q8_0);
        let mut biased = list.clone();
        biased.formats.clear();
        for operation in &mut biased.operations {
            if let Kind::Linear(linear) = &mut operation.kind
                && [4, 5].contains(&linear.parts[0].0.0)
            {
                linear.parts[0].1 = Some(ParamId(20));
            }
        }
        for mut list in [list, biased] {
            assert!(rewrite(&mut list) && rewrite(&mut list) && !rewrite(&mut list));
            let text = text(&list);
            assert!(text.starts_with("%16 queries = linear 2+3 Rows(%0)\n"), "{text}");
            assert!(text.contains("%17 inputs = linear 4+5 Rows(%0)\n"), "{text}");
        }
    }
}
