//! Some rows of x that share rows of a matrix: those that chose an expert, or what a head has of each.

use crate::cpu::format::matrix::{BLOCK, Matrix};
use crate::cpu::format::repacked::OUTPUTS;
use crate::cpu::matmul::f32::microkernel::stored_product;
use crate::cpu::matmul::f32::transposed_gemv;
use crate::cpu::matmul::int8::int8_gemv;
use crate::cpu::matmul::int8::quantized_rows::QuantizedRow;
use crate::cpu::matmul::int8::repacked_gemv::RepackedRows;
use crate::cpu::simd::isa::Isa;
use crate::cpu::simd::vectors::Simd;

/// Rows of x that are multiplied at once.
pub(crate) const TOGETHER: usize = 4;

/// Matrices, one below the other, and rows that they are multiplied with.
pub(crate) struct SharedWeightGemm<'a, M> {
    pub(crate) matrix: M,
    /// Whether they lie so, and x is codes.
    pub(crate) in_strips: bool,
    /// Of a row of the matrices, and of x.
    pub(crate) blocks: usize,
    pub(crate) x: Activations<'a>,
    /// Which says how they are read.
    pub(crate) level: Isa,
}

/// Rows of x, of whole blocks, and how they are multiplied.
#[derive(Clone, Copy)]
pub(crate) enum Activations<'a> {
    /// In f32, of a pass of one row, which is summed as it is fastest.
    Stored(&'a [f32]),
    /// In f32, in the order of panels.
    Turned(&'a [f32]),
    /// Of codes.
    Codes(&'a [QuantizedRow]),
}

impl<M: Matrix> SharedWeightGemm<'_, M> {
    /// The products of neighbouring rows of the matrices, the first and how many, with some rows of x, one to [`TOGETHER`]: those
    /// of each `pitch` after those of the one before it. Of a matrix in strips they are whole strips.
    #[inline(always)]
    pub(crate) unsafe fn of<S: Simd>(
        &self,
        (first, count): (usize, usize),
        rows: &[usize],
        values: &mut [f32],
        pitch: usize,
    ) {
        // Fewer than are taken together repeat the last.
        let mut some = [rows[rows.len() - 1]; TOGETHER];
        some[..rows.len()].copy_from_slice(rows);
        let is_one = rows.len() == 1;
        // SAFETY: the caller's promise.
        unsafe {
            match self.x {
                Activations::Codes(x) if self.in_strips => {
                    let (first, strips) = (first / OUTPUTS * self.blocks, count / OUTPUTS);
                    let (matrix, blocks, streams) = (self.matrix, self.blocks, self.level.streams());
                    let of = RepackedRows { matrix, first, strips, blocks, streams };
                    let [a, b, c, d] = some.map(|row| &x[row]);
                    match is_one {
                        true => of.of_one::<S>(a, values, pitch),
                        false => of.products::<S, TOGETHER, 1>([a, b, c, d], values, pitch),
                    }
                }
                Activations::Turned(x) => {
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
                // One row meets those of the matrix one after the other, which is one stream from memory.
                Activations::Codes(x) if is_one => {
                    self.row_by_row::<S, 1, 1>((first, count), [&x[some[0]]], values, pitch)
                }
                Activations::Codes(x) => {
                    let x = some.map(|row| &x[row]);
                    self.row_by_row::<S, 2, TOGETHER>((first, count), x, values, pitch)
                }
                Activations::Stored(x) => {
                    let (matrix, blocks, asking) = (self.matrix, self.blocks, self.level.asking());
                    for (row, values) in rows.iter().zip(values.chunks_mut(pitch)) {
                        let x = x[row * blocks * BLOCK..].as_ptr();
                        for (output, value) in values[..count].iter_mut().enumerate() {
                            let first = (first + output) * blocks;
                            *value = stored_product::<S, M>(matrix, first, x, blocks, asking);
                        }
                    }
                }
            }
        }
    }

    /// Of `X` rows of codes, `W` rows of the matrices at once; past the last that one is computed again.
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
            // SAFETY: the caller's promise.
            let products = unsafe { int8_gemv::products::<S, M, W, X>(matrix, first, x, blocks) };
            for (w, products) in products.iter().enumerate() {
                for (row, product) in products.iter().enumerate() {
                    values[row * pitch + place(w)] = *product;
                }
            }
        }
    }
}
