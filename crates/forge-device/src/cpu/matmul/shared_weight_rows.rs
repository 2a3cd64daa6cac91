//! Matrix products of some rows of x that share weights: rows that chose an expert, or one head's part of all
//! rows.

use crate::cpu::format::matrix::{BLOCK, Matrix};
use crate::cpu::format::repacked::OUTPUTS;
use crate::cpu::matmul::f32::microkernel::stored_product;
use crate::cpu::matmul::f32::transposed_gemv;
use crate::cpu::matmul::int8::int8_gemv;
use crate::cpu::matmul::int8::quantized_rows::QuantizedRow;
use crate::cpu::matmul::int8::repacked_gemv::RepackedRows;
use crate::cpu::simd::isa::Isa;
use crate::cpu::simd::vectors::{Simd, no_int8};

/// Rows of x that are multiplied together.
pub(crate) const TOGETHER: usize = 4;

/// A stack of matrices, and the rows to multiply.
pub(crate) struct SharedWeightGemm<'a, M> {
    pub(crate) matrix: M,
    /// Whether the matrices are repacked; x is then quantized.
    pub(crate) is_repacked: bool,
    /// Blocks per row of the matrices, and of x.
    pub(crate) blocks: usize,
    pub(crate) x: Activations<'a>,
    /// The instruction set, which selects the read pattern.
    pub(crate) level: Isa,
}

/// Rows of x in whole blocks, by kernel.
#[derive(Clone, Copy)]
pub(crate) enum Activations<'a> {
    /// f32, in the summation order that is fastest for decode.
    Stored(&'a [f32]),
    /// f32, in the summation order of the GEMM.
    Batch(&'a [f32]),
    /// Quantized to int8.
    Codes(&'a [QuantizedRow]),
}

impl<M: Matrix> SharedWeightGemm<'_, M> {
    /// Multiplies adjacent rows of the matrices (first, count) by one to [`TOGETHER`] rows of x. Results of
    /// rows have a stride of `pitch`. Rows of a repacked matrix are whole strips.
    #[inline(always)]
    pub(crate) unsafe fn of<S: Simd>(
        &self,
        (first, count): (usize, usize),
        rows: &[usize],
        values: &mut [f32],
        pitch: usize,
    ) {
        if rows.len() > 1 && S::HAS_VARIANTS && !matches!(self.x, Activations::Stored(_)) {
            // SAFETY: the caller's contract.
            return unsafe { self.several::<S>((first, count), rows, values, pitch) };
        }
        for (row, values) in rows.iter().zip(values.chunks_mut(pitch)) {
            // SAFETY: the caller's contract.
            unsafe { self.one::<S>((first, count), *row, values) };
        }
    }

    /// Multiplies by one row of x.
    #[inline(always)]
    unsafe fn one<S: Simd>(&self, (first, count): (usize, usize), row: usize, values: &mut [f32]) {
        let SharedWeightGemm { matrix, blocks, level, .. } = *self;
        let pitch = values.len();
        // SAFETY: the caller's contract.
        unsafe {
            match self.x {
                Activations::Codes(_) if !S::HAS_INT8 => no_int8(),
                Activations::Codes(x) if self.is_repacked => {
                    self.strips((first, count)).multiply_row::<S>(&x[row], values, pitch);
                }
                // Matrix rows are read in order, as one memory stream.
                Activations::Codes(x) => {
                    self.row_by_row::<S, 1, 1>((first, count), [&x[row]], values, pitch);
                }
                Activations::Batch(x) => {
                    let x = [x[row * blocks * BLOCK..].as_ptr()];
                    transposed_gemv::products::<S, M, 1>((matrix, blocks), (first, count), x, values, pitch);
                }
                Activations::Stored(x) => {
                    let x = x[row * blocks * BLOCK..].as_ptr();
                    for (output, value) in values[..count].iter_mut().enumerate() {
                        let first = (first + output) * blocks;
                        *value = stored_product::<S, M>(matrix, first, x, blocks, level.prefetch_distance());
                    }
                }
            }
        }
    }

    /// Multiplies by two to [`TOGETHER`] rows of x.
    #[inline(always)]
    unsafe fn several<S: Simd>(
        &self,
        (first, count): (usize, usize),
        rows: &[usize],
        values: &mut [f32],
        pitch: usize,
    ) {
        let SharedWeightGemm { matrix, blocks, .. } = *self;
        // Unused places repeat the last row.
        let mut some = [rows[rows.len() - 1]; TOGETHER];
        some[..rows.len()].copy_from_slice(rows);
        // SAFETY: the caller's contract.
        unsafe {
            match self.x {
                Activations::Codes(x) if self.is_repacked => {
                    let strips = self.strips((first, count));
                    strips.products::<S, TOGETHER, 1>(some.map(|row| &x[row]), values, pitch);
                }
                Activations::Codes(x) => {
                    let x = some.map(|row| &x[row]);
                    self.row_by_row::<S, 2, TOGETHER>((first, count), x, values, pitch);
                }
                Activations::Batch(x) => {
                    let x = some.map(|row| x[row * blocks * BLOCK..].as_ptr());
                    let (of_matrix, outputs) = ((matrix, blocks), (first, count));
                    transposed_gemv::products::<S, M, TOGETHER>(of_matrix, outputs, x, values, pitch);
                }
                Activations::Stored(_) => unreachable!("computed row by row"),
            }
        }
    }

    /// The strips of adjacent rows.
    #[inline(always)]
    fn strips(&self, (first, count): (usize, usize)) -> RepackedRows<M> {
        let SharedWeightGemm { matrix, blocks, level, .. } = *self;
        let (first, strips) = (first / OUTPUTS * blocks, count / OUTPUTS);
        RepackedRows { matrix, first, strips, blocks, streams: level.streams() }
    }

    /// int8 products of `X` rows of x with `W` matrix rows at a time. Matrix rows past the last one repeat
    /// it.
    #[inline(always)]
    unsafe fn row_by_row<S: Simd, const W: usize, const X: usize>(
        &self,
        (first, count): (usize, usize),
        x: [&QuantizedRow; X],
        values: &mut [f32],
        pitch: usize,
    ) {
        let SharedWeightGemm { matrix, blocks, .. } = *self;
        for output in (0..count).step_by(W) {
            let place = |w: usize| (output + w).min(count - 1);
            let first = std::array::from_fn(|w| (first + place(w)) * blocks);
            // SAFETY: the caller's contract.
            let products = unsafe { int8_gemv::products::<S, M, W, X>(matrix, first, x, blocks) };
            for (w, products) in products.iter().enumerate() {
                for (row, product) in products.iter().enumerate() {
                    values[row * pitch + place(w)] = *product;
                }
            }
        }
    }
}
