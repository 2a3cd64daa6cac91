//! `W (g · x / rms(x)) = (W (g · x)) / rms(x)`: a norm divides a row by one number, and a matrix does not mind when.
//!
//! Whoever writes x writes g · x too, and the sum of squares of the part that it has at hand; the projections that read
//! the norm read g · x and divide at the end. The norm itself is gone, and with it a dispatch and a barrier. Precondition:
//! one row a pass (a norm of many rows is nothing beside their products); only projections read the norm, those of experts
//! among them, and all before anything is added to x; and x is written by a projection or experts that add to it, or is an
//! embedding. What flows from one body to the next is deferred by all bodies or by none, since each has to know what it is
//! given.

use crate::fuse::list::{Fused, Gain, Kind, Operation, Value};

/// `lists` are of all bodies; those of prologue and epilogue come first and last in the order of application.
pub(crate) fn rewrite(lists: &mut [Fused], prologue: usize, epilogue: usize) -> bool {
    let mut changed = false;
    for list in lists.iter_mut() {
        while inside(list) {
            changed = true;
        }
    }
    let ends = |body: usize| body == epilogue || last_can_leave(&lists[body]);
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
            list.operations[place].kind.leave(left);
        }
    }
    true
}

/// A norm inside a body, of what this writes, is left to whoever writes it.
pub(crate) fn inside(list: &mut Fused) -> bool {
    let Some((norm, producer)) = (0..list.operations.len()).find_map(|place| inner(list, place)) else {
        return false;
    };
    let gain = defer(list, norm);
    list.operations[producer].kind.leave(gain.map_or(Gain::Folded, Gain::Own));
    true
}

/// The place of what makes the value that flows out, though the aside may be left after it.
fn flows_out(list: &Fused) -> Option<usize> {
    match list.operations.last()? {
        Operation { kind: Kind::Leave, inputs, .. } => list.definition(inputs[0]),
        last => list.definition(last.output),
    }
}

/// Whether the operation at `place` is a norm that only projections read, before what it norms is written over.
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

/// A norm and the projection before it whose sum it norms.
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

/// The norm of what flows in, if it is the only one and can be deferred.
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

/// Whether the last operation can leave what a deferred norm needs.
fn last_can_leave(list: &Fused) -> bool {
    flows_out(list).is_some_and(|place| match list.operations[place].kind {
        Kind::Embed { .. } => true,
        _ => adds_alone(list, place),
    })
}

/// Whether the operation adds a product to a value, and does not itself read a norm: what it would leave goes where what it
/// reads is.
fn adds_alone(list: &Fused, place: usize) -> bool {
    let operation = &list.operations[place];
    let reads_norm = operation
        .inputs
        .first()
        .and_then(|input| list.definition(*input))
        .is_some_and(|place| matches!(list.operations[place].kind, Kind::Norm { .. }));
    operation.kind.adds() && !operation.kind.divides() && !reads_norm
}

/// Takes a norm out of the list: its readers read what it read, and divide. Gives its gain.
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
    fn no_norm_is_left_and_producers_leave_what_their_readers_need() {
        let text = decode(&graph(true, Format::F32), Quant::Keep, &[Fusion::HeadArgmax]);
        assert_eq!(
            text,
            "%1 stream = embed 0 squares next(%0)\n\
             %2 in_a = project 1 Rows / rms(%0)\n\
             %4 out_a = project 2 Rows add squares 3(%2, %0)\n\
             %6 in_b = project 4 Rows / rms(%4)\n\
             %8 out_b = project 5 Rows add squares next(%6, %4)\n\
             %2 logits = project 1 Rows / rms(%0)\n"
        );
    }

    #[test]
    fn with_folded_gains_readers_take_the_stream() {
        let text = decode(&graph(false, Format::F32), Quant::Keep, &[Fusion::HeadArgmax]);
        assert_eq!(
            text,
            "%1 stream = embed 0 squares folded(%0)\n\
             %2 in_a = project 1 Rows folded 0 / rms(%0)\n\
             %4 out_a = project 2 Rows add squares folded(%2, %0)\n\
             %6 in_b = project 4 Rows folded 3 / rms(%4)\n\
             %8 out_b = project 5 Rows add squares folded(%6, %4)\n\
             %2 logits = project 1 Rows folded 0 / rms(%0)\n"
        );
    }

    #[test]
    fn sums_by_themselves_leave_nothing() {
        let text = decode(&graph(true, Format::F32), Quant::Keep, &[Fusion::Residual]);
        assert!(!text.contains("squares") && text.matches("= norm").count() == 3, "{text}");
    }
}
