//! A few rows of x in f32: they meet columns of weights as soon as these are decoded, to the bit what [`crate::cpu::matmul::f32::gemm`] makes of them
//! among many.
//!
//! As many rows of weights are read at once as a vector has lanes, a block of each. Where rows are pages, the machine foresees nothing of
//! that, so that meanwhile as many rows after these are asked for from front to back, and lie in the second cache when it is their turn.

use crate::cpu::format::matrix::{BLOCK, Matrix};
use crate::cpu::format::transpose::{Columns, of_lanes};
use crate::cpu::simd::vectors::Simd;

/// The products of some rows of a matrix, the first and how many, with `X` rows of x: those of each row of x, so far apart.
#[inline(always)]
pub(crate) unsafe fn products<S: Simd, M: Matrix, const X: usize>(
    (matrix, blocks): (M, usize),
    (first, outputs): (usize, usize),
    x: [*const f32; X],
    values: &mut [f32],
    apart: usize,
) {
    for start in (0..outputs).step_by(S::LANES) {
        let count = (outputs - start).min(S::LANES);
        let lanes = of_lanes(count, blocks);
        let row = first + start;
        // SAFETY: the caller promises that matrix and x have these rows.
        unsafe {
            let mut sums = [S::splat(0.0); X];
            for block in 0..blocks {
                let next = (row + S::LANES) * blocks + block * S::LANES;
                let mut meeting = TransposedDot { matrix, next, x: x.map(|x| x.add(block * BLOCK)), sums };
                matrix.turned::<S>(row * blocks + block, &lanes, &mut meeting);
                sums = meeting.sums;
            }
            for (i, sum) in sums.into_iter().enumerate() {
                let mut of_row = [0.0; 16];
                S::store(of_row.as_mut_ptr(), sum);
                values[i * apart + start..][..count].copy_from_slice(&of_row[..count]);
            }
        }
    }
}

/// A block of weights that meets a few rows of x as it is decoded.
struct TransposedDot<S: Simd, M, const X: usize> {
    matrix: M,
    /// The first of as many blocks as are asked for meanwhile, which need not exist.
    next: usize,
    /// Where the block's columns are.
    x: [*const f32; X],
    sums: [S::V; X],
}

impl<S: Simd, M: Matrix, const X: usize> Columns<S> for TransposedDot<S, M, X> {
    #[inline(always)]
    unsafe fn take(&mut self, column: usize, numbers: S::V) {
        let apart = BLOCK / S::LANES;
        // SAFETY: the promise of whoever made this.
        unsafe {
            if column.is_multiple_of(apart) {
                self.matrix.prefetch_far::<S>(self.next + column / apart);
            }
            for (sum, x) in self.sums.iter_mut().zip(self.x) {
                *sum = S::fma(numbers, S::splat(*x.add(column)), *sum);
            }
        }
    }
}
