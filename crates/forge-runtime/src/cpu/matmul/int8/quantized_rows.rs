//! A few rows of x in whole numbers, as [`crate::cpu::matmul::int8::int8_gemm`] encodes them: each thread does so for itself, which is little beside its
//! share of a matrix.

use crate::cpu::format::matrix::{AT_ONCE, BLOCK};
use crate::cpu::matmul::int8::quantize::encode;
use crate::cpu::simd::vectors::Simd;
use std::cell::Cell;

/// A row of x, encoded.
#[derive(Default)]
pub(crate) struct QuantizedRow {
    /// Of whole sixteens of blocks, as scales and totals are: those past the row are zeros.
    pub(crate) codes: Vec<i8>,
    /// Of blocks.
    pub(crate) scales: Vec<f32>,
    /// Sums of blocks' codes.
    pub(crate) totals: Vec<f32>,
}

thread_local! {
    static KEPT: Cell<Vec<QuantizedRow>> = Cell::default();
}

/// The codes of rows of `columns`, which are whole blocks, in memory that the thread has kept.
#[inline(always)]
pub(crate) fn encoded_rows<S: Simd>(x: &[f32], columns: usize) -> Vec<QuantizedRow> {
    let mut rows = KEPT.take();
    rows.resize_with(rows.len().max(x.len() / columns), QuantizedRow::default);
    // No closure: it would be compiled without the level's instructions.
    for (row, x) in rows.iter_mut().zip(x.chunks_exact(columns)) {
        // SAFETY: the caller runs by its level.
        unsafe { row.encode::<S>(x) };
    }
    rows
}

/// Keeps their memory for the next.
pub(crate) fn keep(rows: Vec<QuantizedRow>) {
    KEPT.set(rows);
}

impl QuantizedRow {
    /// The codes of `x`, which is whole blocks.
    #[inline(always)]
    unsafe fn encode<S: Simd>(&mut self, x: &[f32]) {
        let QuantizedRow { codes, scales, totals } = self;
        let blocks = (x.len() / BLOCK).next_multiple_of(AT_ONCE);
        for numbers in [&mut *scales, totals] {
            numbers.clear();
            numbers.resize(blocks, 0.0);
        }
        codes.clear();
        codes.resize(blocks * BLOCK, 0);
        let x = x.as_chunks::<BLOCK>().0.chunks(AT_ONCE);
        let codes = codes.as_chunks_mut().0.as_chunks_mut().0.iter_mut();
        let of_blocks = scales.as_chunks_mut().0.iter_mut().zip(totals.as_chunks_mut().0);
        for ((x, codes), (scales, totals)) in x.zip(codes).zip(of_blocks) {
            let mut blocks = [&[0.0; BLOCK]; AT_ONCE];
            for (block, x) in blocks.iter_mut().zip(x) {
                *block = x;
            }
            // SAFETY: the caller's promise.
            let of_blocks = unsafe { encode::<S>(&blocks, codes) };
            (*scales, *totals) = (of_blocks.scales, of_blocks.totals);
        }
    }
}
