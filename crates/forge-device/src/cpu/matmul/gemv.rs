//! GEMV: matrix products with a few rows of x, and its kernels.

use crate::cpu::format::matrix::{BLOCK, Matrix};
use crate::cpu::matmul::epilogue::{GRAIN, PartialResults};
use crate::cpu::matmul::f32::microkernel::{stored_product, stored_products};
use crate::cpu::matmul::f32::transposed_gemv;
use crate::cpu::matmul::int8::int8_gemv;
use crate::cpu::matmul::int8::quantized_rows::QuantizedRow;
use crate::cpu::matmul::linear::LinearCall;
use crate::cpu::simd::vectors::Simd;
use std::ops::Range;

/// Maximum number of rows for GEMV. Each thread quantizes or normalizes all rows itself, and results are
/// written with non-temporal stores ([`crate::cpu::simd::streaming_store`]).
pub(crate) const GEMV_MAX_ROWS: usize = 4;

/// A GEMV kernel. Kernels are types, so that each is compiled only where it is used.
pub(crate) trait GemvKernel<M: Matrix>: Copy {
    /// Multiplies a range of outputs by `X` rows of x, `W` outputs at a time if they are computed separately.
    unsafe fn of_range<S: Simd, const W: usize, const X: usize>(
        self,
        work: &LinearCall<'_, M>,
        range: Range<usize>,
        x: [*const f32; X],
        values: &mut [[f32; GRAIN]; X],
    );
}

/// Computes each output separately with an [`OutputKernel`].
#[derive(Clone, Copy)]
pub(crate) struct PerOutput<T>(pub(crate) T);

/// A kernel for separate outputs.
pub(crate) trait OutputKernel<M: Matrix>: Copy {
    /// Multiplies `W` outputs, whose rows start at blocks `first`, by `X` rows of x.
    unsafe fn products<S: Simd, const W: usize, const X: usize>(
        self,
        work: &LinearCall<'_, M>,
        first: [usize; W],
        x: [*const f32; X],
    ) -> [[f32; X]; W];
}

impl<M: Matrix, T: OutputKernel<M>> GemvKernel<M> for PerOutput<T> {
    #[inline(always)]
    unsafe fn of_range<S: Simd, const W: usize, const X: usize>(
        self,
        work: &LinearCall<'_, M>,
        range: Range<usize>,
        x: [*const f32; X],
        values: &mut [[f32; GRAIN]; X],
    ) {
        // Rows that are read together are far apart, because the hardware prefetcher does not separate
        // streams on one page. The last row is repeated past the end of the range.
        let apart = range.len().div_ceil(W);
        for i in 0..apart {
            let place = |w: usize| (w * apart + i).min(range.len() - 1);
            let first = std::array::from_fn(|w| (range.start + place(w)) * work.blocks);
            // SAFETY: the caller's contract.
            let products = unsafe { self.0.products::<S, W, X>(work, first, x) };
            for (w, products) in products.iter().enumerate() {
                for (row, product) in products.iter().enumerate() {
                    values[row][place(w)] = *product;
                }
            }
        }
    }
}

/// f32 kernel: one row after another, in the order that is fastest for one row of x.
#[derive(Clone, Copy)]
pub(crate) struct Sequential;

/// f32 kernel: `W` rows at a time.
#[derive(Clone, Copy)]
pub(crate) struct RowMajor;

/// int8 kernel: block by block, with the summation order of the int8 GEMM. The last of fewer rows is repeated.
#[derive(Clone, Copy)]
pub(crate) struct Blocks<'a>(pub(crate) &'a [QuantizedRow]);

/// f32 kernel with the summation order of the f32 GEMM.
#[derive(Clone, Copy)]
pub(crate) struct Transposed;

impl<M: Matrix> OutputKernel<M> for RowMajor {
    #[inline(always)]
    unsafe fn products<S: Simd, const W: usize, const X: usize>(
        self,
        work: &LinearCall<'_, M>,
        first: [usize; W],
        x: [*const f32; X],
    ) -> [[f32; X]; W] {
        let ahead = work.call.level().prefetch_distance().far;
        let mut all = [[0.0; X]; W];
        for (row, x) in x.into_iter().enumerate() {
            // SAFETY: the caller's contract.
            let products = unsafe { stored_products::<S, M, W>(work.matrix, first, x, work.blocks, ahead) };
            for (all, product) in all.iter_mut().zip(products) {
                all[row] = product;
            }
        }
        all
    }
}

impl<M: Matrix> OutputKernel<M> for Blocks<'_> {
    #[inline(always)]
    unsafe fn products<S: Simd, const W: usize, const X: usize>(
        self,
        work: &LinearCall<'_, M>,
        first: [usize; W],
        _x: [*const f32; X],
    ) -> [[f32; X]; W] {
        let rows: [&QuantizedRow; X] = std::array::from_fn(|row| &self.0[row.min(self.0.len() - 1)]);
        // SAFETY: the caller's contract.
        unsafe { int8_gemv::products::<S, M, W, X>(work.matrix, first, rows, work.blocks) }
    }
}

impl<M: Matrix> GemvKernel<M> for Sequential {
    #[inline(always)]
    unsafe fn of_range<S: Simd, const W: usize, const X: usize>(
        self,
        work: &LinearCall<'_, M>,
        range: Range<usize>,
        x: [*const f32; X],
        values: &mut [[f32; GRAIN]; X],
    ) {
        let LinearCall { call, matrix, blocks, .. } = *work;
        let prefetch_distance = call.level().prefetch_distance();
        for (place, output) in range.enumerate() {
            for (x, values) in x.iter().zip(&mut *values) {
                // SAFETY: the caller's contract.
                values[place] =
                    unsafe { stored_product::<S, M>(matrix, output * blocks, *x, blocks, prefetch_distance) };
            }
        }
    }
}

impl<M: Matrix> GemvKernel<M> for Transposed {
    #[inline(always)]
    unsafe fn of_range<S: Simd, const W: usize, const X: usize>(
        self,
        work: &LinearCall<'_, M>,
        range: Range<usize>,
        x: [*const f32; X],
        values: &mut [[f32; GRAIN]; X],
    ) {
        let LinearCall { matrix, blocks, .. } = *work;
        let (of_matrix, outputs) = ((matrix, blocks), (range.start, range.len()));
        // SAFETY: the caller's contract.
        unsafe {
            transposed_gemv::products::<S, M, X>(of_matrix, outputs, x, values.as_flattened_mut(), GRAIN)
        };
    }
}

impl<M: Matrix> LinearCall<'_, M> {
    /// GEMV with `X` rows of x and `W` outputs at a time.
    #[inline(always)]
    pub(crate) unsafe fn few_rows<S: Simd, const W: usize, const X: usize>(
        &self,
        kernel: impl GemvKernel<M>,
    ) {
        let LinearCall { call, outputs, blocks, x, .. } = *self;
        let rows = x.len() / (blocks * BLOCK);
        let x: [*const f32; X] = std::array::from_fn(|row| x[row.min(rows - 1) * blocks * BLOCK..].as_ptr());
        let (partitions, size, at_once) = self.finish.partitions(outputs, call.workers());
        let mut values = [[0.0_f32; GRAIN]; X];
        for partition in call.claim(partitions, at_once).flatten() {
            let mut partials = PartialResults::NOTHING;
            let end = outputs.min((partition + 1) * size);
            for start in (partition * size..end).step_by(GRAIN) {
                let range = start..end.min(start + GRAIN);
                // SAFETY: the caller's contract.
                unsafe {
                    kernel.of_range::<S, W, X>(self, range.clone(), x, &mut values);
                    for (row, values) in values.iter_mut().enumerate().take(rows) {
                        self.finish.outputs(row, range.start, &mut values[..range.len()], &mut partials);
                    }
                }
            }
            // SAFETY: the caller's contract.
            unsafe { self.finish.write_partials(partition, partials) };
        }
    }
}
