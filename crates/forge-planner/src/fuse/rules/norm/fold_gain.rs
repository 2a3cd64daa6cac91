//! `W (g · n) = (W diag(g)) n`: the gain of a norm is folded into the columns of the weights that read it.
//!
//! This removes the gain vector and its multiplications. Preconditions:
//!
//! * only projections, including those of experts, read the norm
//! * none of their weights is used elsewhere (a tied head is also the embedding table)
//! * folding does not round the weights again: they are stored as f32, or are quantized by forge and not by
//!   the checkpoint
//!
//! All norms before projections are folded, or none: layers share one body, whether or not the head's norm
//! can be folded.

use crate::fuse::list::{Fused, Kind, Value};
use forge_ir::{Graph, ParamId, WeightId};
use forge_ops::Format;

pub(crate) fn rewrite(lists: &mut [Fused], graph: &Graph) -> bool {
    let norms: Vec<(usize, usize)> = lists
        .iter()
        .enumerate()
        .flat_map(|(body, list)| {
            (0..list.operations.len())
                .filter(|place| is_unsplit_norm(list, *place))
                .map(move |place| (body, place))
        })
        .collect();
    if norms.is_empty() || !norms.iter().all(|(body, place)| folds(&lists[*body], *place, graph)) {
        return false;
    }
    for (body, place) in norms {
        fold(&mut lists[body], place);
    }
    true
}

/// A norm of a whole value, with a gain.
fn is_unsplit_norm(list: &Fused, place: usize) -> bool {
    matches!(list.operations[place].kind, Kind::Norm { gain: Some(_), parts: 1, .. })
}

fn folds(list: &Fused, place: usize, graph: &Graph) -> bool {
    let normed = list.operations[place].output;
    list.uses(normed) == list.readers(normed).count()
        && list.readers(normed).all(|reader| {
            let matrices = reader.kind.matrices();
            reader.reads_first(normed) && matrices.is_some_and(|params| weights_fold(list, &params, graph))
        })
}

/// Whether the weights bound to these parameters are used nowhere else, and have a format that a factor can
/// be folded into.
fn weights_fold(list: &Fused, params: &[ParamId], graph: &Graph) -> bool {
    let body = &graph.bodies[list.body.0];
    let bound: Vec<WeightId> = graph.applications().flat_map(|apply| apply.weights.iter().copied()).collect();
    let mut applications = graph.applications().filter(|apply| apply.body == list.body);
    let takes_a_factor = |format: Format| format == Format::F32 || format.is_quantized();
    params.iter().all(|param| takes_a_factor(list.format(*param)))
        && applications.all(|apply| {
            let mut weights = params.iter().filter_map(|param| Some((param, apply.weight(body, *param)?)));
            weights.all(|(param, weight)| {
                let stored = graph.weights[weight.0].format;
                let is_kept = stored.is_quantized() && stored == list.format(*param);
                !is_kept && bound.iter().filter(|other| **other == weight).count() == 1
            })
        })
}

fn fold(list: &mut Fused, place: usize) {
    let normed: Value = list.operations[place].output;
    let Kind::Norm { gain, .. } = &mut list.operations[place].kind else { return };
    let folded = gain.take();
    for operation in list.operations.iter_mut().filter(|operation| operation.inputs.contains(&normed)) {
        operation.kind.fold(folded);
    }
}

#[cfg(test)]
mod tests {
    use crate::Quant;
    use crate::fuse::rules::Fusion;
    use crate::fuse::rules::tests::{decode, graph};
    use forge_ir::Format;

    const OTHERS: [Fusion; 3] = [Fusion::DeferredNorm, Fusion::HeadArgmax, Fusion::Residual];

    #[test]
    fn gains_are_folded_into_the_next_weights() {
        let text = decode(&graph(false, Format::F32), Quant::Keep, &OTHERS);
        assert_eq!(
            text,
            "%1 stream = embed 0(%0)\n\
             %1 norm_a = norm 1(%0)\n\
             %2 in_a = linear 1 Rows folded 0(%1)\n\
             %3 out_a = linear 2 Rows(%2)\n\
             %4 stream = add(%0, %3)\n\
             %5 norm_b = norm 1(%4)\n\
             %6 in_b = linear 4 Rows folded 3(%5)\n\
             %7 out_b = linear 5 Rows(%6)\n\
             %8 stream = add(%4, %7)\n\
             %1 norm = norm 1(%0)\n\
             %2 logits = linear 1 Rows folded 0(%1)\n"
        );
    }

    #[test]
    fn gains_fold_unless_formats_or_tied_heads_prevent_it() {
        let folds =
            |tied, format, quant| decode(&graph(tied, format), quant, &OTHERS).matches("folded").count();
        assert_eq!(folds(false, Format::Bf16, Quant::To(Format::Q4_0)), 3);
        assert_eq!(folds(false, Format::Bf16, Quant::Keep), 0, "bits are kept");
        let affine = |name| Format::from_name(name).unwrap_or(Format::F32);
        assert_eq!(folds(false, affine("affine4_bf16"), Quant::Keep), 0, "and codes are");
        assert_eq!(folds(false, affine("affine4_bf16"), Quant::To(affine("affine4"))), 3);
        assert_eq!(folds(false, Format::F32, Quant::To(Format::F16)), 0, "f16 would round twice");
        assert_eq!(folds(true, Format::F32, Quant::Keep), 0, "the table is looked up in, too");
    }
}
