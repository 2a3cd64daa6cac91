//! One row of x in whole numbers, straight from the stored codes: how a token meets its weights.
//!
//! Each thread encodes the row for itself, as [`super::coded`] does, which is little beside its share of the matrix. Codes of a
//! block and of x are multiplied eight lanes a block, four columns a lane; lanes are scaled by block and added up in f32. What
//! all codes of a block have too little, and its offset, meet the sum of its x, once for many blocks.

// Indices count lanes and rows of fixed-size arrays: loops over them unroll into registers.
#![allow(clippy::needless_range_loop)]

use super::coded::{Coded, encoded};
use super::formats::{AT_ONCE, BLOCK, Matrix, Scaling};
use super::simd::Simd;
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

/// The products of `W` rows of a matrix, which begin with blocks `first`, with a row of as many blocks, an even number.
#[inline(always)]
pub(super) unsafe fn products<S: Simd, M: Matrix, const W: usize>(
    matrix: M,
    first: [usize; W],
    row: &Row,
    blocks: usize,
) -> [f32; W] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [S::splat(0.0); W];
        let mut of_totals = [S::splat(0.0); W];
        let lacking = S::splat((M::LACKING.unwrap_or(0) - M::raised::<S>()) as f32);
        for start in (0..blocks).step_by(AT_ONCE) {
            let count = (blocks - start).min(AT_ONCE);
            let mut factors = [[0.0; AT_ONCE]; W];
            for w in 0..W {
                let [scales, offsets] = scales_by_block::<S, M>(matrix, first[w] + start, count);
                for i in (0..AT_ONCE).step_by(S::LANES) {
                    let scale = S::load(&scales[i]);
                    let mut of_total = S::mul(scale, lacking);
                    if M::SCALING == Scaling::Offset {
                        of_total = S::add(of_total, S::load(&offsets[i]));
                    }
                    let of_x = S::load(&row.scales[start + i]);
                    let total = S::mul(S::load(&row.totals[start + i]), of_x);
                    of_totals[w] = S::fma(of_total, total, of_totals[w]);
                    S::store(&mut factors[w][i], S::mul(scale, of_x));
                }
            }
            for i in (0..count).step_by(S::LANES / 8) {
                let x = row.codes.as_ptr().add((start + i) * BLOCK);
                for w in 0..W {
                    let block = first[w] + start + i;
                    let codes = matrix.row_codes::<S>(block);
                    let products = S::sums_to_singles(S::add_codes(S::splat_sums(0), codes, x));
                    sums[w] = S::fma(products, S::each_in_eight(&factors[w][i]), sums[w]);
                }
            }
        }
        let mut all = [0.0; W];
        for w in 0..W {
            all[w] = S::sum(S::add(sums[w], of_totals[w]));
        }
        all
    }
}

/// The scales of `count <= AT_ONCE` blocks, the first of which begins a group, and their offsets; zeros past them.
#[inline(always)]
pub(super) unsafe fn scales_by_block<S: Simd, M: Matrix>(
    matrix: M,
    block: usize,
    count: usize,
) -> [[f32; AT_ONCE]; 2] {
    let mut scales = [0.0; 2 * AT_ONCE];
    // SAFETY: the caller promises as many blocks.
    unsafe { matrix.scales::<S>(block / M::GROUP, count.div_ceil(M::GROUP), &mut scales) };
    let mut by_block = [[0.0; AT_ONCE]; 2];
    for i in 0..AT_ONCE {
        match M::SCALING {
            Scaling::Offset => {
                by_block[0][i] = scales[i / M::GROUP * 2];
                by_block[1][i] = scales[i / M::GROUP * 2 + 1];
            }
            _ => by_block[0][i] = scales[i],
        }
    }
    by_block
}
