//! Maps rows of graph weights to rows of a packed weight.
//!
//! A part contributes one run of rows per block of its columns: one if it is as wide as the packed matrix.

use forge_ir::{Diagnostic, Graph, Layout, Packed, Weight, WeightId, WeightRows};
use std::ops::Range;

/// Number of parts that are interleaved with [`Layout::Alternate`].
pub(crate) const PAIR: usize = 2;

/// Fills `out` with rows of a packed matrix whose planes have `planes` elements per row. `read` returns rows
/// of a part. With interleaved parts, `rows` must be whole pairs.
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
            let overlap = rows.start.max(first)..rows.end.min(end);
            if overlap.start < overlap.end {
                let (now, later) = rest.split_at_mut(overlap.len() * width);
                let overlap = (overlap.start - first) / turn..(overlap.end - first) / turn;
                if turn * blocks == 1 {
                    read(pair[0], overlap, now)?;
                } else {
                    let mut whole = vec![T::default(); overlap.len() * width * blocks];
                    for (index, part) in pair.iter().enumerate() {
                        read(*part, overlap.clone(), &mut whole)?;
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

/// Copies one column block of a row, for each plane.
fn copy_block<T: Copy>(block: usize, blocks: usize, planes: [usize; 2], (row, to): (&[T], &mut [T])) {
    let (mut from, mut place) = (0, 0);
    for plane in planes {
        to[place..place + plane].copy_from_slice(&row[from + block * plane..][..plane]);
        from += blocks * plane;
        place += plane;
    }
}

/// The values of a packed vector.
pub(crate) fn vector(
    weights: &dyn WeightRows,
    graph: &Graph,
    packed: &Packed,
) -> Result<Vec<f32>, Diagnostic> {
    let mut out = vec![0.0; packed.shape.iter().product()];
    for (index, part) in packed.parts.iter().enumerate() {
        let mut one = vec![0.0; graph.weights[part.0].columns()];
        weights.rows(*part, 0..1, &mut one)?;
        let (from, step) = place(graph, packed, index);
        for (place, x) in out.iter_mut().skip(from).step_by(step).zip(&one) {
            *place = *x;
        }
    }
    Ok(out)
}

/// The part that a packed row comes from, its row there, and its first column. For a vector, rows are
/// elements.
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

/// Where a part's rows are in the packed weight: row i is at `from + i * step`. Its further column blocks
/// follow.
pub(crate) fn place(graph: &Graph, packed: &Packed, index: usize) -> (usize, usize) {
    let turn = turn(packed.layout);
    let before = &packed.parts[..index - index % turn];
    let rows = |part: &WeightId| {
        let weight = &graph.weights[part.0];
        length(weight) * blocks(packed, weight)
    };
    (before.iter().map(rows).sum::<usize>() + index % turn, turn)
}

/// Number of interleaved rows.
pub(crate) const fn turn(layout: Layout) -> usize {
    match layout {
        Layout::Rows | Layout::Blocks => 1,
        Layout::Alternate => PAIR,
    }
}

/// Number of column blocks that a part is split into.
pub(crate) fn blocks(packed: &Packed, part: &Weight) -> usize {
    match packed.layout {
        Layout::Rows | Layout::Alternate => 1,
        Layout::Blocks => part.columns() / packed.shape.last().copied().unwrap_or(0).max(1),
    }
}

/// Rows of a matrix, summed over a stack; elements of a vector.
pub(crate) fn length(part: &Weight) -> usize {
    if part.is_matrix() { part.rows() } else { part.columns() }
}
