//! A few rows of x in whole numbers, as [`super::coded`] encodes them: each thread does so for itself, which is little beside its
//! share of a matrix.

use super::coded::{Coded, encoded};
use super::formats::{AT_ONCE, BLOCK};
use std::cell::Cell;

/// A row of x, encoded.
#[derive(Default)]
pub(super) struct Row {
    /// Of whole sixteens of blocks, as scales and totals are: those past the row are zeros.
    pub(super) codes: Vec<i8>,
    /// Of blocks.
    pub(super) scales: Vec<f32>,
    /// Sums of blocks' codes.
    pub(super) totals: Vec<f32>,
}

thread_local! {
    static KEPT: Cell<Vec<Row>> = Cell::default();
}

/// The codes of rows of `columns`, which are whole blocks, in memory that the thread has kept.
#[inline(always)]
pub(super) fn encoded_rows(x: &[f32], columns: usize) -> Vec<Row> {
    let mut rows = KEPT.take();
    rows.resize_with(rows.len().max(x.len() / columns), Row::default);
    // No closure: it would be compiled without the level's instructions.
    for (row, x) in rows.iter_mut().zip(x.chunks_exact(columns)) {
        row.encode(x);
    }
    rows
}

/// Keeps their memory for the next.
pub(super) fn keep(rows: Vec<Row>) {
    KEPT.set(rows);
}

impl Row {
    /// The codes of `x`, which is whole blocks.
    #[inline(always)]
    fn encode(&mut self, x: &[f32]) {
        let Row { codes, scales, totals } = self;
        codes.clear();
        scales.clear();
        totals.clear();
        for block in x.as_chunks::<BLOCK>().0 {
            let Coded { codes: some, scale, total } = encoded(block);
            codes.extend(some);
            scales.push(scale);
            totals.push(total as f32);
        }
        scales.resize(scales.len().next_multiple_of(AT_ONCE), 0.0);
        totals.resize(scales.len(), 0.0);
        codes.resize(scales.len() * BLOCK, 0);
    }
}
