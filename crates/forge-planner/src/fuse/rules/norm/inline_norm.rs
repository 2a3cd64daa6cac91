//! `W (g · x / rms(x)) = (W (g · x)) / rms(x)` for an x whose producer does not write g · x and the squares:
//! the projection multiplies by g as it loads x, and sums the squares itself.
//!
//! This removes the norm of a projection's result. Preconditions:
//!
//! * one row per pass (with more, each threadgroup would repeat the norms of all rows)
//! * only projections read the norm, before anything is added to its input
//! * the input is the result of a projection or its first columns, or a sum with several norms; for additions
//!   to the residual stream, `deferred_norm` handles one norm

use crate::fuse::list::{Epilogue, Fused, InlineNorm, Kind, Operation};

pub(crate) fn rewrite(list: &mut Fused) -> bool {
    let Some(place) = (0..list.operations.len()).find(|place| fits(list, *place)) else { return false };
    let norm = list.operations.remove(place);
    let Kind::Norm { gain, epsilon, .. } = norm.kind else { return false };
    for operation in &mut list.operations {
        if operation.reads_first(norm.output)
            && let Kind::Linear(linear) = &mut operation.kind
        {
            operation.inputs[0] = norm.inputs[0];
            linear.own_norm = Some(InlineNorm { gain, epsilon });
        }
    }
    true
}

fn fits(list: &Fused, place: usize) -> bool {
    let norm = &list.operations[place];
    let Kind::Norm { parts: 1, .. } = norm.kind else { return false };
    let made = |value| match list.definition(value).map(|place| &list.operations[place]) {
        Some(operation) => match &operation.kind {
            // The first columns only: a projection reads x from column 0.
            Kind::Slice { first: 0 } => true,
            Kind::Linear(linear) => linear.ending == Epilogue::Store,
            Kind::NormAdd(sum) => sum.next_norm.is_none(),
            _ => false,
        },
        None => false,
    };
    let takes = |kind: &Kind| match kind {
        Kind::Linear(linear) => linear.norm.is_none() && linear.own_norm.is_none(),
        _ => false,
    };
    let reads = |operation: &Operation| operation.inputs.contains(&norm.output);
    let last = list.operations.iter().rposition(reads).unwrap_or(place);
    let added =
        |operation: &Operation| operation.kind.adds() && operation.inputs.last() == Some(&norm.inputs[0]);
    made(norm.inputs[0])
        && !list.operations[..=last].iter().any(added)
        && list.uses(norm.output) == list.readers(norm.output).count()
        && list.readers(norm.output).all(|reader| reader.reads_first(norm.output) && takes(&reader.kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::list::{Linear, NormAdd};
    use crate::fuse::rules::tests::{list, projection, text};
    use forge_ir::ParamId;

    fn normed(reader: Kind) -> Fused {
        let norm = Kind::Norm { gain: Some(ParamId(1)), parts: 1, epsilon: 1e-6 };
        let operations: Vec<(&str, Kind, &[usize], usize)> = vec![
            ("latent", projection(0), &[0], 1),
            ("normed", norm, &[1], 2),
            ("query", projection(2), &[2], 3),
            ("rope_query", reader, &[2], 4),
        ];
        list(operations, &[8; 5])
    }

    #[test]
    fn projections_inline_norms() {
        let mut list = normed(projection(3));
        assert!(rewrite(&mut list) && !rewrite(&mut list));
        assert_eq!(
            text(&list),
            "%1 latent = linear 0 Rows(%0)\n\
             %3 query = linear 2 Rows / own rms 1(%1)\n\
             %4 rope_query = linear 3 Rows / own rms 1(%1)\n"
        );
    }

    /// A branch that is normalized and added to the stream, whose sum has several norms: two for projections
    /// and experts.
    fn of_a_sum(ending: Epilogue) -> Fused {
        let sum = NormAdd { gain: Some(ParamId(1)), epsilon: 1e-6, factor: None, next_norm: None };
        let norm = |gain| Kind::Norm { gain: Some(ParamId(gain)), parts: 1, epsilon: 1e-6 };
        let mut router = Linear::plain(ParamId(4), None);
        router.ending = ending;
        let inputs: &[usize] = if ending == Epilogue::Add { &[5, 2] } else { &[5] };
        let operations: Vec<(&str, Kind, &[usize], usize)> = vec![
            ("output", projection(0), &[0], 1),
            ("stream", Kind::NormAdd(sum), &[1, 0], 2),
            ("mlp_norm", norm(2), &[2], 3),
            ("gate_up", projection(3), &[3], 4),
            ("router_norm", norm(5), &[2], 5),
            ("router", Kind::Linear(router), inputs, 6),
        ];
        list(operations, &[8; 7])
    }

    #[test]
    fn projections_inline_norms_until_the_stream_changes() {
        let mut list = of_a_sum(Epilogue::Store);
        while rewrite(&mut list) {}
        assert_eq!(
            text(&list),
            "%1 output = linear 0 Rows(%0)\n\
             %2 stream = norm add gain 1(%1, %0)\n\
             %4 gate_up = linear 3 Rows / own rms 2(%2)\n\
             %6 router = linear 4 Rows / own rms 5(%2)\n"
        );
        let mut added = of_a_sum(Epilogue::Add);
        while rewrite(&mut added) {}
        assert!(text(&added).contains("router_norm = norm 1 gain 5(%2)"), "{}", text(&added));
    }

    #[test]
    fn other_readers_and_stream_norms_are_not_fused() {
        let mut rotated = normed(Kind::Slice { first: 0 });
        assert!(!rewrite(&mut rotated));
        let mut of_stream = normed(projection(3));
        of_stream.operations[1].inputs = vec![crate::fuse::list::Value::INPUT];
        assert!(!rewrite(&mut of_stream));
    }
}
