//! Per-head matrix product (block-diagonal): each head's matrix times its part of a row. Scalars: rows.
//! Buffers: weight planes, x, y.
//!
//! The matrices of all heads are stacked. Untransposed, their rows are multiplied by x as in a linear layer.
//! Transposed, each matrix row is added to the sums of its columns, times its element of x. Results are
//! batch-invariant, except that the decode schedule may add in another order.

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::device::scratch::Scratch;
use crate::cpu::format::matrix::{BLOCK, Matrix};
use crate::cpu::format::weight_format::WeightFormat;
use crate::cpu::matmul::epilogue::GRAIN;
use crate::cpu::matmul::linear::whole_rows_to;
use crate::cpu::matmul::shared_weight_rows::{Activations, SharedWeightGemm, TOGETHER};
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
use forge_ops::PerHeadLinear;
use std::marker::PhantomData;

/// Runs this thread's part, with weight format `F`.
pub fn per_head_linear<F: WeightFormat>(call: &KernelArgs<'_>, shape: &PerHeadLinear) {
    F::per_head_linear(call, shape);
}

pub(crate) fn products<M: Matrix>(call: &KernelArgs<'_>, shape: &PerHeadLinear) {
    call.level().run(PerHeadTask::<M> { call, shape, format: PhantomData });
}

struct PerHeadTask<'a, M> {
    call: &'a KernelArgs<'a>,
    shape: &'a PerHeadLinear,
    format: PhantomData<M>,
}

impl<M: Matrix> Task for PerHeadTask<'_, M> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let PerHeadLinear { heads, rows: of_matrix, columns, transposed, pitch, .. } = *self.shape;
        let call = self.call;
        let rows = call.scalar(0);
        let blocks = columns.div_ceil(M::WHOLE * BLOCK) * M::WHOLE;
        let matrix = M::find(call, "weight", heads * of_matrix, blocks);
        let taken = heads * if transposed { of_matrix } else { columns };
        let x = call.input::<f32>("x", (rows - 1) * pitch + taken);
        let y = call.output::<f32>("y", rows * heads * if transposed { columns } else { of_matrix });
        if transposed {
            // The unit of work is some columns of a head: blocks, in whole groups.
            for item in call.claim(heads * blocks / M::WHOLE, 1).flatten() {
                let (head, first) = (item / (blocks / M::WHOLE), item % (blocks / M::WHOLE) * M::WHOLE);
                for block in first..(first + M::WHOLE).min(columns.div_ceil(BLOCK)) {
                    let count = (columns - block * BLOCK).min(BLOCK);
                    for start in (0..rows).step_by(TOGETHER) {
                        let some = (rows - start).min(TOGETHER);
                        // Unused places repeat the last row.
                        let of_row = |i: usize| &x[(start + i.min(some - 1)) * pitch + head * of_matrix..];
                        let x: [&[f32]; TOGETHER] = std::array::from_fn(|i| &of_row(i)[..of_matrix]);
                        let at = head * of_matrix * blocks + block;
                        let mut sums = [[0.0_f32; BLOCK]; TOGETHER];
                        // SAFETY: `find` checked that the matrices are whole.
                        unsafe {
                            match some {
                                1 => add_rows::<S, M, 1>(matrix, (at, blocks), &x, &mut sums),
                                _ => add_rows::<S, M, TOGETHER>(matrix, (at, blocks), &x, &mut sums),
                            }
                        }
                        for (i, sums) in sums[..some].iter().enumerate() {
                            let to = ((start + i) * heads + head) * columns + block * BLOCK;
                            // SAFETY: these columns of this head belong to this thread.
                            unsafe { y.part(to..to + count) }.copy_from_slice(&sums[..count]);
                        }
                    }
                }
            }
            return;
        }
        // Contiguous heads of whole blocks are used in place; others are copied.
        let whole = blocks * BLOCK;
        let is_ready = columns == whole && pitch == taken;
        let mut scratch = Scratch::take(if is_ready { 0 } else { rows * heads * whole });
        if !is_ready {
            for (row, to) in scratch.chunks_exact_mut(heads * whole).enumerate() {
                whole_rows_to(&x[row * pitch..][..taken], columns, whole, to);
            }
        }
        let x = if is_ready { x } else { &scratch };
        let x = if call.is_decode() { Activations::Stored(x) } else { Activations::Batch(x) };
        let products = SharedWeightGemm { matrix, is_repacked: false, blocks, x, level: call.level() };
        let chunks = of_matrix.div_ceil(GRAIN);
        let mut values = [0.0_f32; TOGETHER * GRAIN];
        for item in call.claim(heads * chunks, 1).flatten() {
            let (head, first) = (item / chunks, item % chunks * GRAIN);
            let count = (of_matrix - first).min(GRAIN);
            for start in (0..rows).step_by(TOGETHER) {
                let some = (rows - start).min(TOGETHER);
                let own: [usize; TOGETHER] = std::array::from_fn(|i| (start + i) * heads + head);
                let own = &own[..some];
                // SAFETY: `find` checked that the matrices are whole, and x has `blocks * 32` columns a row.
                unsafe { products.of::<S>((head * of_matrix + first, count), own, &mut values, GRAIN) };
                for (of_x, values) in own.iter().zip(values.chunks_exact(GRAIN)) {
                    let to = of_x * of_matrix + first;
                    // SAFETY: these outputs of this head belong to this thread.
                    unsafe { y.part(to..to + count) }.copy_from_slice(&values[..count]);
                }
            }
        }
    }
}

/// Computes the column sums of one block column: each matrix row's block, from `first` on at a stride of
/// `apart`, times its element of each x.
#[inline(always)]
unsafe fn add_rows<S: Simd, M: Matrix, const X: usize>(
    matrix: M,
    (first, apart): (usize, usize),
    x: &[&[f32]; TOGETHER],
    sums: &mut [[f32; BLOCK]; TOGETHER],
) {
    for part in 0..BLOCK / S::LANES {
        // SAFETY: the caller ensures that these blocks exist; sums hold a block.
        unsafe {
            let mut of_part = [S::splat(0.0); X];
            for row in 0..x[0].len() {
                let weight = matrix.load_f32::<S>(first + row * apart, part);
                for (sum, x) in of_part.iter_mut().zip(x) {
                    *sum = S::fma(S::splat(x[row]), weight, *sum);
                }
            }
            for (sums, of_part) in sums.iter_mut().zip(of_part) {
                S::store(sums.as_mut_ptr().add(part * S::LANES), of_part);
            }
        }
    }
}
