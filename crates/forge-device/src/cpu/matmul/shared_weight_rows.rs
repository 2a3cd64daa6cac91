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
use crate::cpu::simd::vectors::Simd;

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
        // Unused places repeat the last row.
        let mut some = [rows[rows.len() - 1]; TOGETHER];
        some[..rows.len()].copy_from_slice(rows);
        let is_one = rows.len() == 1;
        // SAFETY: the caller's contract.
        unsafe {
            match self.x {
                Activations::Codes(x) if self.is_repacked => {
                    let (first, strips) = (first / OUTPUTS * self.blocks, count / OUTPUTS);
                    let (matrix, blocks, streams) = (self.matrix, self.blocks, self.level.streams());
                    let of = RepackedRows { matrix, first, strips, blocks, streams };
                    let [a, b, c, d] = some.map(|row| &x[row]);
                    match is_one {
                        true => of.multiply_row::<S>(a, values, pitch),
                        false => of.products::<S, TOGETHER, 1>([a, b, c, d], values, pitch),
                    }
                }
                Activations::Batch(x) => {
                    let (of_matrix, outputs) = ((self.matrix, self.blocks), (first, count));
                    let x = some.map(|row| x[row * self.blocks * BLOCK..].as_ptr());
                    match is_one {
                        true => {
                            transposed_gemv::products::<S, M, 1>(of_matrix, outputs, [x[0]], values, pitch)
                        }
                        false => {
                            transposed_gemv::products::<S, M, TOGETHER>(of_matrix, outputs, x, values, pitch)
                        }
                    }
                }
                // One row of x reads the matrix rows in order, as one memory stream.
                Activations::Codes(x) if is_one => {
                    self.row_by_row::<S, 1, 1>((first, count), [&x[some[0]]], values, pitch)
                }
                Activations::Codes(x) => {
                    let x = some.map(|row| &x[row]);
                    self.row_by_row::<S, 2, TOGETHER>((first, count), x, values, pitch)
                }
                Activations::Stored(x) => {
                    let (matrix, blocks, prefetch_distance) =
                        (self.matrix, self.blocks, self.level.prefetch_distance());
                    for (row, values) in rows.iter().zip(values.chunks_mut(pitch)) {
                        let x = x[row * blocks * BLOCK..].as_ptr();
                        for (output, value) in values[..count].iter_mut().enumerate() {
                            let first = (first + output) * blocks;
                            *value = stored_product::<S, M>(matrix, first, x, blocks, prefetch_distance);
                        }
                    }
                }
            }
        }
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
