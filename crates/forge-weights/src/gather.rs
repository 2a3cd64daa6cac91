//! Which row of a part stands in which row of a packed weight.

use forge_ir::{Diagnostic, Graph, Layout, Numbers, Packed, WeightId};
use std::ops::Range;

/// Fills `out` with rows of a packed matrix, each of `columns` elements, that `read` gives of a part. Of alternating parts,
/// whole turns have to be asked for.
pub(crate) fn matrix<T: Copy + Default>(
    read: impl Fn(WeightId, Range<usize>, &mut [T]) -> Result<(), Diagnostic>,
    graph: &Graph,
    packed: &Packed,
    rows: Range<usize>,
    (columns, out): (usize, &mut [T]),
) -> Result<(), Diagnostic> {
    match packed.layout {
        Layout::Rows => {
            let mut first = 0;
            let mut rest = out;
            for part in &packed.parts {
                let end = first + graph.weights[part.0].rows();
                let wanted = rows.start.max(first)..rows.end.min(end);
                if wanted.start < wanted.end {
                    let (now, later) = rest.split_at_mut(wanted.len() * columns);
                    read(*part, wanted.start - first..wanted.end - first, now)?;
                    rest = later;
                }
                first = end;
            }
        }
        Layout::Alternate => {
            let turn = packed.parts.len();
            let wanted = rows.start / turn..rows.end / turn;
            let mut one = vec![T::default(); wanted.len() * columns];
            for (index, part) in packed.parts.iter().enumerate() {
                read(*part, wanted.clone(), &mut one)?;
                let places = out.chunks_exact_mut(columns).skip(index).step_by(turn);
                for (place, row) in places.zip(one.chunks_exact(columns)) {
                    place.copy_from_slice(row);
                }
            }
        }
    }
    Ok(())
}

/// The numbers of a packed vector.
pub(crate) fn vector(numbers: &dyn Numbers, graph: &Graph, packed: &Packed) -> Result<Vec<f32>, Diagnostic> {
    let mut out = vec![0.0; packed.shape.iter().product()];
    let mut first = 0;
    for (index, part) in packed.parts.iter().enumerate() {
        let mut one = vec![0.0; graph.weights[part.0].columns()];
        numbers.rows(*part, 0..1, &mut one)?;
        let (from, step) = place(packed, index, first);
        for (place, x) in out.iter_mut().skip(from).step_by(step).zip(&one) {
            *place = *x;
        }
        first += one.len();
    }
    Ok(out)
}

/// Where a part's rows stand: its row i is row `from + i * step`, `before` rows being in the parts before it.
pub(crate) fn place(packed: &Packed, index: usize, before: usize) -> (usize, usize) {
    match packed.layout {
        Layout::Rows => (before, 1),
        Layout::Alternate => (index, packed.parts.len()),
    }
}
