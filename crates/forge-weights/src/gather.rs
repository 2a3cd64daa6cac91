//! Which row of a part stands in which row of a packed weight.
//!
//! A part has rows in a packed matrix for each of its blocks of columns, which is one where it is as wide as the matrix.

use forge_ir::{Diagnostic, Graph, Layout, Packed, Weight, WeightId, WeightRows};
use std::ops::Range;

/// Rows that alternate with others before those of the next parts begin.
pub(crate) const PAIR: usize = 2;

/// Fills `out` with rows of a packed matrix, whose planes have so many elements a row each, that `read` gives of a part. Of
/// alternating parts, whole turns have to be asked for.
pub(crate) fn matrix<T: Copy + Default>(
    read: impl Fn(WeightId, Range<usize>, &mut [T]) -> Result<(), Diagnostic>,
    graph: &Graph,
    packed: &Packed,
    rows: Range<usize>,
    (planes, out): ([usize; 2], &mut [T]),
) -> Result<(), Diagnostic> {
    let width: usize = planes.iter().sum();
    let turn = turn(packed.layout);
    let mut first = 0;
    let mut rest = out;
    for pair in packed.parts.chunks(turn) {
        let weight = &graph.weights[pair[0].0];
        let (each, blocks) = (length(weight), blocks(packed, weight));
        for block in 0..blocks {
            let end = first + each * turn;
            let wanted = rows.start.max(first)..rows.end.min(end);
            if wanted.start < wanted.end {
                let (now, later) = rest.split_at_mut(wanted.len() * width);
                let wanted = (wanted.start - first) / turn..(wanted.end - first) / turn;
                if turn * blocks == 1 {
                    read(pair[0], wanted, now)?;
                } else {
                    let mut whole = vec![T::default(); wanted.len() * width * blocks];
                    for (index, part) in pair.iter().enumerate() {
                        read(*part, wanted.clone(), &mut whole)?;
                        let places = now.chunks_exact_mut(width).skip(index).step_by(turn);
                        for (place, row) in places.zip(whole.chunks_exact(width * blocks)) {
                            copy_block(block, blocks, planes, (row, place));
                        }
                    }
                }
                rest = later;
            }
            first = end;
        }
    }
    Ok(())
}

/// A block of a row, of each of its planes.
fn copy_block<T: Copy>(block: usize, blocks: usize, planes: [usize; 2], (row, to): (&[T], &mut [T])) {
    let (mut from, mut place) = (0, 0);
    for plane in planes {
        to[place..place + plane].copy_from_slice(&row[from + block * plane..][..plane]);
        from += blocks * plane;
        place += plane;
    }
}

/// The numbers of a packed vector.
pub(crate) fn vector(
    numbers: &dyn WeightRows,
    graph: &Graph,
    packed: &Packed,
) -> Result<Vec<f32>, Diagnostic> {
    let mut out = vec![0.0; packed.shape.iter().product()];
    for (index, part) in packed.parts.iter().enumerate() {
        let mut one = vec![0.0; graph.weights[part.0].columns()];
        numbers.rows(*part, 0..1, &mut one)?;
        let (from, step) = place(graph, packed, index);
        for (place, x) in out.iter_mut().skip(from).step_by(step).zip(&one) {
            *place = *x;
        }
    }
    Ok(out)
}

/// The part that a row comes from, its row there, and the first of its columns. Of a vector rows are elements.
pub(crate) fn source(graph: &Graph, packed: &Packed, row: usize) -> Option<(WeightId, usize, usize)> {
    packed.parts.iter().enumerate().find_map(|(index, part)| {
        let weight = &graph.weights[part.0];
        let (from, step) = place(graph, packed, index);
        let all = length(weight) * blocks(packed, weight);
        let own = row.checked_sub(from).filter(|own| own.is_multiple_of(step) && own / step < all)? / step;
        let block = own / length(weight);
        Some((*part, own % length(weight), block * packed.shape.last().copied().unwrap_or(0)))
    })
}

/// Where a part's rows stand: its row i is row `from + i * step`. Those of its next block follow when all of them have come.
pub(crate) fn place(graph: &Graph, packed: &Packed, index: usize) -> (usize, usize) {
    let turn = turn(packed.layout);
    let before = &packed.parts[..index - index % turn];
    let rows = |part: &WeightId| {
        let weight = &graph.weights[part.0];
        length(weight) * blocks(packed, weight)
    };
    (before.iter().map(rows).sum::<usize>() + index % turn, turn)
}

/// Parts whose rows alternate.
pub(crate) const fn turn(layout: Layout) -> usize {
    match layout {
        Layout::Rows | Layout::Blocks => 1,
        Layout::Alternate => PAIR,
    }
}

/// Blocks of columns that a part of a matrix is taken in.
pub(crate) fn blocks(packed: &Packed, part: &Weight) -> usize {
    match packed.layout {
        Layout::Rows | Layout::Alternate => 1,
        Layout::Blocks => part.columns() / packed.shape.last().copied().unwrap_or(0).max(1),
    }
}

/// Rows of a matrix, those of a stack's one below the other; elements of a vector.
pub(crate) fn length(part: &Weight) -> usize {
    if part.is_matrix() { part.rows() } else { part.columns() }
}
