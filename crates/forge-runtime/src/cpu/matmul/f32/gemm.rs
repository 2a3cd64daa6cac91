//! Products of rows with a panel: weights of a few outputs, decoded to singles once and met by row after row while they are in the cache.
//!
//! A panel is decoded slice after slice, turned: lanes are outputs then, and x is the same for all of them, which asks least of the
//! caches for each product. What adds a slice's products is a task of its own, compiled once for each set of instructions: a decoded
//! panel has no format.
//!
//! ```text
//! slice  [tile of outputs][column][output]
//! sums   [row][output]
//! ```
//!
//! Every sum goes through its columns one after the other, from zero. So a row comes to the same bits however many come with it, be they
//! few ([`crate::cpu::matmul::f32::transposed_gemv`]), and wherever slices end.

use crate::cpu::format::matrix::{BLOCK, Matrix};
use crate::cpu::format::transpose::{Columns, of_lanes};
use crate::cpu::matmul::f32::microkernel::{Prefetch, add_tile};
use crate::cpu::simd::isa::{Isa, Task};
use crate::cpu::simd::vectors::Simd;
use std::ops::Range;

/// Outputs of a panel: whole tiles at every level.
pub(crate) const PANEL: usize = 48;
/// Vectors of outputs of a tile.
const WIDE: usize = 3;
/// Blocks of a slice: so many columns that a tile's sums cost next to nothing, and no more than has room in the second cache beside x.
const DEPTH: usize = 32;
/// Numbers of a slice.
const SLICE: usize = PANEL * DEPTH * BLOCK;

/// Numbers that [`products`] has room for, for so many rows of x.
pub(crate) fn room(rows: usize) -> usize {
    SLICE + rows * PANEL
}

/// The products of some rows of a matrix, the first and how many, with rows of x: [`PANEL`] for each row of x.
#[inline(always)]
pub(crate) unsafe fn products<'a, S: Simd, M: Matrix>(
    level: Isa,
    (matrix, blocks): (M, usize),
    (first, outputs): (usize, usize),
    rows: &[*const f32],
    room: &'a mut [f32],
) -> &'a mut [f32] {
    let (slice, sums) = room.split_at_mut(SLICE);
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
                // SAFETY: the caller promises that the matrix has these rows.
                unsafe {
                    matrix.turned::<S>((first + own) * blocks + block, &lanes, &mut IntoSlice { to, wide })
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

/// Where columns of a vector of outputs lie in a slice.
struct IntoSlice {
    to: *mut f32,
    /// Numbers from one column to the next.
    wide: usize,
}

impl<S: Simd> Columns<S> for IntoSlice {
    #[inline(always)]
    unsafe fn take(&mut self, column: usize, numbers: S::V) {
        // SAFETY: whoever made this has room for a block.
        unsafe { S::store(self.to.add(column * self.wide), numbers) };
    }
}

/// Adds the products of a slice with rows of x to their sums.
struct AddSlice<'a> {
    slice: &'a [f32],
    /// Of outputs.
    vectors: usize,
    /// Where rows of x begin; whoever makes the task promises that they have the columns.
    rows: &'a [*const f32],
    /// Those that the slice is of.
    columns: Range<usize>,
    sums: &'a mut [f32],
    /// As much of the next panel, which is read from memory meanwhile.
    ahead: Prefetch,
}

impl Task for AddSlice<'_> {
    #[inline(always)]
    fn run<S: Simd>(mut self) {
        for vector in (0..self.vectors).step_by(WIDE) {
            // SAFETY: this runs by its level; the rest is the maker's promise.
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
    /// Those of `W` vectors of outputs.
    #[inline(always)]
    unsafe fn of_tile<S: Simd, const W: usize>(&mut self, vector: usize) {
        let mut row = 0;
        while row < self.rows.len() {
            // SAFETY: the caller's promise.
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

    /// With `X` rows, which is returned.
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
        // SAFETY: the caller's promise.
        unsafe { add_tile::<S, W, X>(weights, x, count, sums.add(vector * S::LANES), PANEL, self.ahead) };
        X
    }
}
