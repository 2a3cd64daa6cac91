//! `rope(r); cache = norm(c), rope(k)`: one step rotates MLA queries, normalizes latents, rotates keys,
//! and appends latents and keys to the cache. Attention then reads only queries and the cache.
//!
//! Preconditions: latents are normalized whole, with a gain; queries and keys have the same RoPE; and
//! intermediate values have no other reader. The three inputs may be columns of wider values.

use crate::fuse::list::{Fused, Kind, MlaAppend, MlaPrepare, Operation, Value};

pub(crate) fn rewrite(list: &mut Fused) -> bool {
    let fit = (0..list.operations.len()).find_map(|place| Some((place, fits(list, place)?)));
    let Some((place, fit)) = fit else { return false };
    let q_rope = list.new_value(list.widths[fit.inputs[0].0]);
    list.operations[place] = Operation {
        name: "mla_append".to_owned(),
        kind: Kind::MlaAppend(fit.append),
        inputs: fit.inputs.to_vec(),
        output: q_rope,
    };
    list.operations[place + 1].inputs[1] = q_rope;
    list.operations.retain(|operation| !fit.gone.contains(&operation.output));
    true
}

struct Fit {
    append: MlaAppend,
    /// RoPE queries, latents and RoPE keys, before norm and RoPE.
    inputs: [Value; 3],
    gone: [Value; 3],
}

/// Matches the append at `place` and the attention after it.
fn fits(list: &Fused, place: usize) -> Option<Fit> {
    let (append, attend) = (&list.operations[place], list.operations.get(place + 1)?);
    let Kind::MlaAppend(MlaAppend { cache, prepare: None }) = append.kind else { return None };
    let (Kind::MlaAttention(_), [_, query]) = (&attend.kind, &attend.inputs[..]) else { return None };
    let [latent, key] = append.inputs[..] else { return None };
    let only = |value| list.definition_for_one(value);
    let rope = |value: Value| match &list.operations[only(value)?] {
        Operation { kind: Kind::Rope { heads, rope }, inputs, .. } => Some((*heads, rope, inputs[0])),
        _ => None,
    };
    let ((heads, rope, from_query), (1, of_key, from_key)) = (rope(*query)?, rope(key)?) else {
        return None;
    };
    let norm = &list.operations[only(latent)?];
    let Kind::Norm { gain: Some(gain), parts: 1, epsilon } = norm.kind else { return None };
    let prepare = MlaPrepare { heads, gain, epsilon, rope: rope.clone() };
    (rope == of_key).then(|| Fit {
        append: MlaAppend { cache, prepare: Some(prepare) },
        inputs: [from_query, norm.inputs[0], from_key],
        gone: [*query, latent, key],
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::fuse::list::{MlaAttention, PerHeadLinear};
    use crate::fuse::rules::tests::{list, projection, text};
    use forge_ir::{Pairing, ParamId, RopeParameters};

    /// MLA with 2 heads: 3 channels without RoPE, 2 with RoPE, values of 3, latents of 5. Queries are
    /// projected from the input, or from query latents of 4.
    pub(crate) fn mixer(of_latents: bool) -> Fused {
        let rope = RopeParameters {
            frequencies: vec![1.0].into(),
            pairing: Pairing::Half,
            magnitude: 1.0,
            long: None,
        };
        let rope = |heads| Kind::Rope { heads, rope: rope.clone() };
        let norm = |gain| Kind::Norm { gain: Some(ParamId(gain)), parts: 1, epsilon: 1e-6 };
        let each = |weight, transposed| {
            Kind::PerHeadLinear(PerHeadLinear { weight: ParamId(weight), heads: 2, transposed })
        };
        let append = Kind::MlaAppend(MlaAppend { cache: ParamId(9), prepare: None });
        let (cache, prologue) = (ParamId(9), None);
        let attend = Kind::MlaAttention(MlaAttention { heads: 2, scale: 0.5, cache, prologue });
        let from: &[usize] = if of_latents { &[2] } else { &[0] };
        let mut operations: Vec<(&str, Kind, &[usize], usize)> = vec![
            ("query", projection(2), from, 3),
            ("rope_query", projection(3), from, 4),
            ("rotated_query", rope(2), &[4], 5),
            ("latent", projection(4), &[0], 6),
            ("rope_key", projection(5), &[0], 7),
            ("normed_latent", norm(6), &[6], 8),
            ("rotated_key", rope(1), &[7], 9),
            ("latent_query", each(7, true), &[3], 10),
            ("append", append, &[8, 9], 14),
            ("latent_heads", attend, &[10, 5], 11),
            ("heads", each(8, false), &[11], 12),
            ("output", projection(10), &[12], 13),
        ];
        if of_latents {
            operations.insert(0, ("query_latent", projection(0), &[0], 1));
            operations.insert(1, ("normed_query_latent", norm(1), &[1], 2));
        }
        list(operations, &[8, 4, 4, 6, 4, 4, 5, 2, 5, 2, 10, 10, 6, 8, 0])
    }

    #[test]
    fn preparation_and_append_become_one_step() {
        let mut list = mixer(false);
        assert!(rewrite(&mut list));
        assert_eq!(
            text(&list),
            "%3 query = linear 2 Rows(%0)\n\
             %4 rope_query = linear 3 Rows(%0)\n\
             %6 latent = linear 4 Rows(%0)\n\
             %7 rope_key = linear 5 Rows(%0)\n\
             %10 latent_query = per_head_linear transposed 7(%3)\n\
             %15 mla_append = mla_append prepare(%4, %6, %7)\n\
             %11 latent_heads = mla_attention(%10, %15)\n\
             %12 heads = per_head_linear 8(%11)\n\
             %13 output = linear 10 Rows(%12)\n"
        );
        assert_eq!(list.widths[15], 4);
        assert!(!rewrite(&mut list));
    }

    #[test]
    fn other_rotations_norms_and_readers_are_not_fused() {
        let changes: [&dyn Fn(&mut Fused); 4] = [
            &|list| {
                if let Kind::Rope { rope, .. } = &mut list.operations[6].kind {
                    rope.magnitude = 2.0;
                }
            },
            &|list| list.operations[5].kind = Kind::Norm { gain: Some(ParamId(6)), parts: 5, epsilon: 1e-6 },
            &|list| list.operations[5].kind = Kind::Norm { gain: None, parts: 1, epsilon: 1e-6 },
            &|list| list.operations[11].inputs = vec![Value(8)],
        ];
        for (index, change) in changes.iter().enumerate() {
            let mut list = mixer(false);
            change(&mut list);
            let before = text(&list);
            assert!(!rewrite(&mut list), "{index}");
            assert_eq!(text(&list), before);
        }
    }
}
