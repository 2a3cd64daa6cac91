//! f32 GEMM: a panel of a few outputs is dequantized once and multiplied by all rows of x while it is in
//! cache.
//!
//! A panel is dequantized and transposed slice by slice. Lanes are outputs, and all lanes share x, which
//! minimizes cache traffic. The inner task is compiled once per instruction set, because a dequantized panel
//! has no format.
//!
//! ```text
//! slice  [tile of outputs][column][output]
//! sums   [row][output]
//! ```
//!
//! Each sum starts at zero and adds its columns in order. A row's result is therefore batch-invariant, also
//! for few rows ([`crate::cpu::matmul::f32::transposed_gemv`]), and independent of slice boundaries.

use crate::cpu::format::matrix::{BLOCK, Matrix};
use crate::cpu::format::transpose::{Columns, of_lanes};
use crate::cpu::matmul::f32::microkernel::{Prefetch, add_tile};
use crate::cpu::simd::isa::{Isa, Task};
use crate::cpu::simd::vectors::Simd;
use std::ops::Range;

/// Outputs of a panel, whole tiles in every instruction set.
pub(crate) const PANEL: usize = 48;
/// Vectors of outputs per register tile.
const WIDE: usize = 3;
/// Blocks per slice. It amortizes loading a tile's sums, and fits in L2 next to x.
const DEPTH: usize = 32;
/// Elements of a slice.
const SLICE: usize = PANEL * DEPTH * BLOCK;

/// Workspace elements of [`products`] for `rows` rows of x.
pub(crate) fn scratch_len(rows: usize) -> usize {
    SLICE + rows * PANEL
}

/// Multiplies matrix rows (first, count) by rows of x. Returns [`PANEL`] results for each row of x.
#[inline(always)]
pub(crate) unsafe fn products<'a, S: Simd, M: Matrix>(
    level: Isa,
    (matrix, blocks): (M, usize),
    (first, outputs): (usize, usize),
    rows: &[*const f32],
    scratch: &'a mut [f32],
) -> &'a mut [f32] {
    let (slice, sums) = scratch.split_at_mut(SLICE);
    let sums = &mut sums[..rows.len() * PANEL];
    sums.fill(0.0);
    let vectors = outputs.div_ceil(S::LANES);
    for from in (0..blocks).step_by(DEPTH) {
        let to = blocks.min(from + DEPTH);
        for vector in 0..vectors {
            let tile = vector / WIDE * WIDE;
            let wide = (vectors - tile).min(WIDE) * S::LANES;
            let place = tile * S::LANES * (to - from) * BLOCK + (vector - tile) * S::LANES;
            let own = vector * S::LANES;
            let lanes = of_lanes(outputs - own, blocks);
            for block in from..to {
                let to = slice[place + (block - from) * BLOCK * wide..].as_mut_ptr();
                // SAFETY: the caller ensures that the matrix has these rows.
                unsafe {
                    matrix.load_transposed::<S>(
                        (first + own) * blocks + block,
                        &lanes,
                        &mut IntoSlice { to, wide },
                    )
                };
            }
        }
        let of_panel = vectors * S::LANES;
        let next = matrix.place((first + outputs) * blocks + from * of_panel);
        let ahead = Prefetch { next, of_column: of_panel * M::OF_BLOCK / BLOCK };
        level.run(AddSlice { slice, vectors, rows, columns: from * BLOCK..to * BLOCK, sums, ahead });
    }
    sums
}

/// Writes the columns of a vector of outputs into a slice.
struct IntoSlice {
    to: *mut f32,
    /// Stride between columns, in elements.
    wide: usize,
}

impl<S: Simd> Columns<S> for IntoSlice {
    #[inline(always)]
    unsafe fn take(&mut self, column: usize, numbers: S::V) {
        // SAFETY: the creator provides space for a block.
        unsafe { S::store(self.to.add(column * self.wide), numbers) };
    }
}

/// Adds the products of a slice and rows of x.
struct AddSlice<'a> {
    slice: &'a [f32],
    /// Vectors of outputs.
    vectors: usize,
    /// Pointers to rows of x, which must have these columns.
    rows: &'a [*const f32],
    /// Columns of the slice.
    columns: Range<usize>,
    sums: &'a mut [f32],
    /// Prefetch of the corresponding part of the next panel.
    ahead: Prefetch,
}

impl Task for AddSlice<'_> {
    #[inline(always)]
    fn run<S: Simd>(mut self) {
        for vector in (0..self.vectors).step_by(WIDE) {
            // SAFETY: this runs compiled for its instruction set; the rest is the creator's contract.
            unsafe {
                match self.vectors - vector {
                    1 => self.of_tile::<S, 1>(vector),
                    2 => self.of_tile::<S, 2>(vector),
                    _ => self.of_tile::<S, WIDE>(vector),
                }
            }
        }
    }
}

impl AddSlice<'_> {
    /// For a tile of `W` vectors of outputs.
    #[inline(always)]
    unsafe fn of_tile<S: Simd, const W: usize>(&mut self, vector: usize) {
        let mut row = 0;
        while row < self.rows.len() {
            // SAFETY: the caller's contract.
            unsafe {
                row += match (self.rows.len() - row).min(S::TILE) {
                    8 => self.of_rows::<S, W, 8>(vector, row),
                    4.. => self.of_rows::<S, W, 4>(vector, row),
                    2.. => self.of_rows::<S, W, 2>(vector, row),
                    _ => self.of_rows::<S, W, 1>(vector, row),
                };
            }
        }
    }

    /// For `X` rows of x; returns `X`.
    #[inline(always)]
    unsafe fn of_rows<S: Simd, const W: usize, const X: usize>(
        &mut self,
        vector: usize,
        row: usize,
    ) -> usize {
        let (start, count) = (self.columns.start, self.columns.len());
        let weights = self.slice[vector * S::LANES * count..][..W * S::LANES * count].as_ptr();
        let x: [_; X] = std::array::from_fn(|i| self.rows[row + i].wrapping_add(start));
        let sums = self.sums[row * PANEL..][..X * PANEL].as_mut_ptr();
        // SAFETY: the caller's contract.
        unsafe { add_tile::<S, W, X>(weights, x, count, sums.add(vector * S::LANES), PANEL, self.ahead) };
        X
    }
}
