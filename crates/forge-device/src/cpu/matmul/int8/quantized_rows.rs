//! Quantized rows of x for GEMV, in the format of [`crate::cpu::matmul::int8::int8_gemm`]. Each thread
//! quantizes all rows itself, which is cheap compared with its part of the matrix.

use crate::cpu::format::matrix::{AT_ONCE, BLOCK};
use crate::cpu::matmul::int8::quantize::encode;
use crate::cpu::simd::vectors::Simd;
use std::cell::Cell;

/// A quantized row of x, padded with zeros to whole groups of 16 blocks.
#[derive(Default)]
pub(crate) struct QuantizedRow {
    /// Quants.
    pub(crate) codes: Vec<i8>,
    /// Scale of each block.
    pub(crate) scales: Vec<f32>,
    /// Sum of each block's quants.
    pub(crate) totals: Vec<f32>,
    /// Sum of the quants in each block's first half.
    pub(crate) half_totals: Vec<f32>,
}

thread_local! {
    static BUFFERS: Cell<Vec<QuantizedRow>> = Cell::default();
}

/// Quantizes rows of `columns` columns, whole blocks, into memory that the thread keeps.
#[inline(always)]
pub(crate) fn encoded_rows<S: Simd>(x: &[f32], columns: usize) -> Vec<QuantizedRow> {
    let mut rows = BUFFERS.take();
    rows.resize_with(rows.len().max(x.len() / columns), QuantizedRow::default);
    // Not a closure: it would be compiled without the vector instructions.
    for (row, x) in rows.iter_mut().zip(x.chunks_exact(columns)) {
        // SAFETY: the caller dispatched on the instruction set.
        unsafe { row.encode::<S>(x) };
    }
    rows
}

/// Returns the rows' memory for reuse.
pub(crate) fn keep(rows: Vec<QuantizedRow>) {
    BUFFERS.set(rows);
}

impl QuantizedRow {
    /// Quantizes `x`, which is whole blocks.
    #[inline(always)]
    unsafe fn encode<S: Simd>(&mut self, x: &[f32]) {
        let QuantizedRow { codes, scales, totals, half_totals } = self;
        let blocks = (x.len() / BLOCK).next_multiple_of(AT_ONCE);
        for numbers in [&mut *scales, totals, half_totals] {
            numbers.clear();
            numbers.resize(blocks, 0.0);
        }
        codes.clear();
        codes.resize(blocks * BLOCK, 0);
        let x = x.as_chunks::<BLOCK>().0.chunks(AT_ONCE);
        let codes = codes.as_chunks_mut().0.as_chunks_mut().0.iter_mut();
        let totals = totals.as_chunks_mut().0.iter_mut().zip(half_totals.as_chunks_mut().0);
        let of_blocks = scales.as_chunks_mut().0.iter_mut().zip(totals);
        for ((x, codes), (scales, (totals, half_totals))) in x.zip(codes).zip(of_blocks) {
            let mut blocks = [&[0.0; BLOCK]; AT_ONCE];
            for (block, x) in blocks.iter_mut().zip(x) {
                *block = x;
            }
            // SAFETY: the caller's contract.
            let of_blocks = unsafe { encode::<S>(&blocks, codes) };
            (*scales, *totals, *half_totals) = (of_blocks.scales, of_blocks.totals, of_blocks.half_totals);
        }
    }
}
