//! f32 GEMV for a few rows of x: weights are multiplied as they are dequantized, without a panel. Results are
//! bitwise identical to [`crate::cpu::matmul::f32::gemm`].
//!
//! As many weight rows are read at once as a vector has lanes, one block of each. If rows are as long as
//! pages, the hardware prefetcher does not help. The next rows are therefore prefetched sequentially to L2.

use crate::cpu::format::matrix::{BLOCK, Matrix};
use crate::cpu::format::transpose::{Columns, of_lanes};
use crate::cpu::simd::vectors::Simd;

/// Multiplies matrix rows (first, count) by `X` rows of x. Results of a row of x have a stride of `stride`.
#[inline(always)]
pub(crate) unsafe fn products<S: Simd, M: Matrix, const X: usize>(
    (matrix, blocks): (M, usize),
    (first, outputs): (usize, usize),
    x: [*const f32; X],
    values: &mut [f32],
    stride: usize,
) {
    for start in (0..outputs).step_by(S::LANES) {
        let count = (outputs - start).min(S::LANES);
        let lanes = of_lanes(count, blocks);
        let row = first + start;
        // SAFETY: the caller ensures that the matrix and x have these rows.
        unsafe {
            let mut sums = [S::splat(0.0); X];
            for block in 0..blocks {
                let next = (row + S::LANES) * blocks + block * S::LANES;
                let mut dot = TransposedDot { matrix, next, x: x.map(|x| x.add(block * BLOCK)), sums };
                matrix.load_transposed::<S>(row * blocks + block, &lanes, &mut dot);
                sums = dot.sums;
            }
            for (i, sum) in sums.into_iter().enumerate() {
                let mut of_row = [0.0; 16];
                S::store(of_row.as_mut_ptr(), sum);
                values[i * stride + start..][..count].copy_from_slice(&of_row[..count]);
            }
        }
    }
}

/// Multiplies the columns of a block by a few rows of x.
struct TransposedDot<S: Simd, M, const X: usize> {
    matrix: M,
    /// First block to prefetch; the blocks need not exist.
    next: usize,
    /// Pointers to the block's columns in each row of x.
    x: [*const f32; X],
    sums: [S::V; X],
}

impl<S: Simd, M: Matrix, const X: usize> Columns<S> for TransposedDot<S, M, X> {
    #[inline(always)]
    unsafe fn take(&mut self, column: usize, numbers: S::V) {
        let stride = BLOCK / S::LANES;
        // SAFETY: the creator's contract.
        unsafe {
            if column.is_multiple_of(stride) {
                self.matrix.prefetch_far::<S>(self.next + column / stride);
            }
            for (sum, x) in self.sums.iter_mut().zip(self.x) {
                *sum = S::fma(numbers, S::splat(*x.add(column)), *sum);
            }
        }
    }
}
