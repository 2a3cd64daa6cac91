//! A few rows of a projection, share by share, and the ways in which their products come about.

use crate::cpu::format::matrix::{BLOCK, Matrix};
use crate::cpu::matmul::epilogue::{GRAIN, PartialResults};
use crate::cpu::matmul::f32::microkernel::{stored_product, stored_products};
use crate::cpu::matmul::f32::transposed_gemv;
use crate::cpu::matmul::int8::int8_gemv;
use crate::cpu::matmul::int8::quantized_rows::QuantizedRow;
use crate::cpu::matmul::linear::LinearCall;
use crate::cpu::simd::vectors::Simd;
use std::ops::Range;

/// As many rows are few: each thread prepares all of them for itself, and what comes of them is written past the caches ([`crate::cpu::simd::streaming_store`]).
pub(crate) const FEW: usize = 4;

/// How outputs are computed of rows that are few. Ways are types, so that each is compiled where it is taken, and nowhere else.
pub(crate) trait GemvKernel<M: Matrix>: Copy {
    /// The products of a range of outputs with `X` rows of x. `W` of them are computed at once if each is by itself.
    unsafe fn of_range<S: Simd, const W: usize, const X: usize>(
        self,
        work: &LinearCall<'_, M>,
        range: Range<usize>,
        x: [*const f32; X],
        values: &mut [[f32; GRAIN]; X],
    );
}

/// Outputs are computed each by itself, as the way that it holds does.
#[derive(Clone, Copy)]
pub(crate) struct PerOutput<T>(pub(crate) T);

/// How an output is computed by itself.
pub(crate) trait OutputKernel<M: Matrix>: Copy {
    /// The products of `W` outputs, whose rows begin with blocks `first`, with `X` rows of x.
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
        // Rows that are read at once lie far apart: of neighbours, which share pages, the machine foresees nothing. Past the range the
        // last is computed again.
        let apart = range.len().div_ceil(W);
        for i in 0..apart {
            let place = |w: usize| (w * apart + i).min(range.len() - 1);
            let first = std::array::from_fn(|w| (range.start + place(w)) * work.blocks);
            // SAFETY: the caller's promise.
            let products = unsafe { self.0.products::<S, W, X>(work, first, x) };
            for (w, products) in products.iter().enumerate() {
                for (row, product) in products.iter().enumerate() {
                    values[row][place(w)] = *product;
                }
            }
        }
    }
}

/// In f32, rows of the matrix one after the other, in the order that is fastest for one row of x.
#[derive(Clone, Copy)]
pub(crate) struct Sequential;

/// In f32, in the order that is fastest where several rows of the matrix are read at once.
#[derive(Clone, Copy)]
pub(crate) struct RowMajor;

/// Of codes, block after block, as panels are.
#[derive(Clone, Copy)]
pub(crate) struct Blocks<'a>(pub(crate) &'a [QuantizedRow]);

/// In f32, in the order of panels.
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
        let ahead = work.call.level().asking().far;
        let mut all = [[0.0; X]; W];
        for (row, x) in x.into_iter().enumerate() {
            // SAFETY: the caller's promise.
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
        let rows: [&QuantizedRow; X] = std::array::from_fn(|row| &self.0[row]);
        // SAFETY: the caller's promise.
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
        let asking = call.level().asking();
        for (place, output) in range.enumerate() {
            for (x, values) in x.iter().zip(&mut *values) {
                // SAFETY: the caller's promise.
                values[place] =
                    unsafe { stored_product::<S, M>(matrix, output * blocks, *x, blocks, asking) };
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
        // SAFETY: the caller's promise.
        unsafe {
            transposed_gemv::products::<S, M, X>(of_matrix, outputs, x, values.as_flattened_mut(), GRAIN)
        };
    }
}

impl<M: Matrix> LinearCall<'_, M> {
    /// `X` rows of x, `W` outputs at once.
    #[inline(always)]
    pub(crate) unsafe fn few_rows<S: Simd, const W: usize, const X: usize>(&self, way: impl GemvKernel<M>) {
        let LinearCall { call, outputs, blocks, x, .. } = *self;
        let rows = x.len() / (blocks * BLOCK);
        let x: [*const f32; X] = std::array::from_fn(|row| x[row.min(rows - 1) * blocks * BLOCK..].as_ptr());
        let (shares, size, at_once) = self.finish.shares(outputs, call.workers());
        let mut values = [[0.0_f32; GRAIN]; X];
        for share in call.share(shares, at_once).flatten() {
            let mut left = PartialResults::NOTHING;
            let end = outputs.min((share + 1) * size);
            for start in (share * size..end).step_by(GRAIN) {
                let range = start..end.min(start + GRAIN);
                // SAFETY: the caller's promise.
                unsafe {
                    way.of_range::<S, W, X>(self, range.clone(), x, &mut values);
                    for (row, values) in values.iter_mut().enumerate().take(rows) {
                        self.finish.outputs(row, range.start, &mut values[..range.len()], &mut left);
                    }
                }
            }
            // SAFETY: the caller's promise.
            unsafe { self.finish.leave(share, left) };
        }
    }
}
