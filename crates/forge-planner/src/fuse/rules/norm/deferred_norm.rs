//! `W (g · x / rms(x)) = (W (g · x)) / rms(x)`: RMSNorm divides a row by a scalar, which commutes with the
//! matrix.
//!
//! The producer of x also writes g · x and a partial sum of squares. The projections that read the norm read
//! g · x and divide their results. This removes the norm's dispatch and barrier. Preconditions:
//!
//! * one row per pass, since the cost of a norm is negligible next to a GEMM
//! * only projections, including those of experts, read the norm, and all before anything is added to x
//! * x is written by a projection or experts that add to it, or is an embedding
//!
//! The norm of a body's input is deferred in all bodies or in none, since producer and reader must agree.

use crate::fuse::list::{Fused, Gain, Kind, Operation, Value};

/// `lists` contains all bodies; `prologue` and `epilogue` are applied first and last.
pub(crate) fn rewrite(lists: &mut [Fused], prologue: usize, epilogue: usize) -> bool {
    let mut changed = false;
    for list in lists.iter_mut() {
        while inside(list) {
            changed = true;
        }
    }
    let ends = |body: usize| body == epilogue || last_can_write_squares(&lists[body]);
    let begins = |body: usize| body == prologue || first_norm(&lists[body]).is_some();
    if !(0..lists.len()).all(|body| ends(body) && begins(body)) {
        return changed;
    }
    let mut folded = false;
    for (body, list) in lists.iter_mut().enumerate() {
        if body != prologue
            && let Some(norm) = first_norm(list)
        {
            folded = defer(list, norm).is_none();
        }
    }
    for (body, list) in lists.iter_mut().enumerate() {
        let left = if folded { Gain::Folded } else { Gain::Next };
        if let Some(place) = flows_out(list).filter(|_| body != epilogue) {
            list.operations[place].kind.write_squares(left);
        }
    }
    true
}

/// Defers a norm inside a body to the producer of its input, which this body contains.
pub(crate) fn inside(list: &mut Fused) -> bool {
    let Some((norm, producer)) = (0..list.operations.len()).find_map(|place| inner(list, place)) else {
        return false;
    };
    let gain = defer(list, norm);
    list.operations[producer].kind.write_squares(gain.map_or(Gain::Folded, Gain::Own));
    true
}

/// Index of the operation that computes the body's output, also if per-layer inputs are stored after it.
fn flows_out(list: &Fused) -> Option<usize> {
    match list.operations.last()? {
        Operation { kind: Kind::StorePerLayerInputs, inputs, .. } => list.definition(inputs[0]),
        last => list.definition(last.output),
    }
}

/// Whether the operation at `place` is a norm that only projections read, before its input is overwritten.
fn is_deferrable(list: &Fused, place: usize) -> bool {
    let operation = &list.operations[place];
    let Kind::Norm { parts: 1, .. } = operation.kind else { return false };
    let (normed, x) = (operation.output, operation.inputs[0]);
    let reads = |operation: &Operation| operation.inputs.contains(&normed);
    let last = list.operations.iter().rposition(reads).unwrap_or(place);
    let added = |operation: &Operation| operation.kind.adds() && operation.inputs.last() == Some(&x);
    list.uses(normed) == list.readers(normed).count()
        && !list.operations[..last].iter().any(added)
        && list.readers(normed).all(|reader| {
            reader.reads_first(normed) && reader.kind.matrices().is_some() && !reader.kind.divides()
        })
}

/// A norm, and the projection whose sum it normalizes.
fn inner(list: &Fused, norm: usize) -> Option<(usize, usize)> {
    if !is_deferrable(list, norm) {
        return None;
    }
    let producer = list.definition(list.operations[norm].inputs[0])?;
    let adds = adds_alone(list, producer);
    let alone = list
        .readers(list.operations[norm].inputs[0])
        .filter(|reader| matches!(reader.kind, Kind::Norm { .. }))
        .count();
    (adds && alone == 1).then_some((norm, producer))
}

/// The norm of the body's input, if it is the only one and can be deferred.
fn first_norm(list: &Fused) -> Option<usize> {
    let of_input = |place: &usize| {
        list.operations[*place].inputs == [Value::INPUT]
            && matches!(list.operations[*place].kind, Kind::Norm { .. })
    };
    let norms: Vec<usize> = (0..list.operations.len()).filter(of_input).collect();
    match norms[..] {
        [norm] if is_deferrable(list, norm) => Some(norm),
        _ => None,
    }
}

/// Whether the last operation can write what a deferred norm needs.
fn last_can_write_squares(list: &Fused) -> bool {
    flows_out(list).is_some_and(|place| match list.operations[place].kind {
        Kind::Embed { .. } => true,
        _ => adds_alone(list, place),
    })
}

/// Whether the operation adds a product to a value and does not read a norm itself; its outputs for the
/// deferred norm would overwrite that input.
fn adds_alone(list: &Fused, place: usize) -> bool {
    let operation = &list.operations[place];
    let reads_norm = operation
        .inputs
        .first()
        .and_then(|input| list.definition(*input))
        .is_some_and(|place| matches!(list.operations[place].kind, Kind::Norm { .. }));
    operation.kind.adds() && !operation.kind.divides() && !reads_norm
}

/// Removes a norm: its readers read its input and divide. Returns its gain.
fn defer(list: &mut Fused, place: usize) -> Option<forge_ir::ParamId> {
    let norm = list.operations.remove(place);
    let Kind::Norm { gain, epsilon, .. } = norm.kind else { return None };
    for operation in &mut list.operations {
        if operation.reads_first(norm.output) {
            operation.inputs[0] = norm.inputs[0];
            operation.kind.divide(epsilon);
        }
    }
    gain
}

#[cfg(test)]
mod tests {
    use crate::Quant;
    use crate::fuse::rules::Fusion;
    use crate::fuse::rules::tests::{decode, graph};
    use forge_ir::Format;

    #[test]
    fn all_norms_are_deferred_to_producers() {
        let text = decode(&graph(true, Format::F32), Quant::Keep, &[Fusion::HeadArgmax]);
        assert_eq!(
            text,
            "%1 stream = embed 0 squares next(%0)\n\
             %2 in_a = linear 1 Rows / rms(%0)\n\
             %4 out_a = linear 2 Rows add squares 3(%2, %0)\n\
             %6 in_b = linear 4 Rows / rms(%4)\n\
             %8 out_b = linear 5 Rows add squares next(%6, %4)\n\
             %2 logits = linear 1 Rows / rms(%0)\n"
        );
    }

    #[test]
    fn folded_gains_remove_the_norm() {
        let text = decode(&graph(false, Format::F32), Quant::Keep, &[Fusion::HeadArgmax]);
        assert_eq!(
            text,
            "%1 stream = embed 0 squares folded(%0)\n\
             %2 in_a = linear 1 Rows folded 0 / rms(%0)\n\
             %4 out_a = linear 2 Rows add squares folded(%2, %0)\n\
             %6 in_b = linear 4 Rows folded 3 / rms(%4)\n\
             %8 out_b = linear 5 Rows add squares folded(%6, %4)\n\
             %2 logits = linear 1 Rows folded 0 / rms(%0)\n"
        );
    }

    #[test]
    fn residual_fusion_alone_writes_no_partial_squares() {
        let text = decode(&graph(true, Format::F32), Quant::Keep, &[Fusion::Residual]);
        assert!(!text.contains("squares") && text.matches("= norm").count() == 3, "{text}");
    }
}
