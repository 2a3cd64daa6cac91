//! Products of many rows with a panel: weights of a few outputs, decoded to singles once and met by row after row while they are
//! in the cache.
//!
//! Panels are decoded by format, slice after slice. What adds their products is a task of its own, compiled once for each set of
//! instructions: a decoded panel has no format.

// Indices count lanes and rows of fixed-size arrays: loops over them unroll into registers.
#![allow(clippy::needless_range_loop)]

use super::formats::{BLOCK, Matrix};
use super::level::{Level, Task};
use super::simd::Simd;
use super::tile::{decode, tile_products};
use std::ops::Range;

/// Outputs of a panel: a multiple of every level's tile.
pub(super) const PANEL: usize = 24;
/// Numbers of a panel of the longest slices, of 64 blocks.
const NUMBERS: usize = PANEL * stride(64);
/// Rows of x in a tile.
const TILE_ROWS: usize = 4;

/// From one row of a panel to the next: off by a cache line, so that rows do not fall into one set of the cache.
const fn stride(slice: usize) -> usize {
    slice * BLOCK + 16
}

/// Numbers that [`products`] has room for, for so many rows of x.
pub(super) fn room(rows: usize) -> usize {
    NUMBERS + rows.next_multiple_of(TILE_ROWS) * PANEL
}

/// The products of some rows of a matrix, the first and how many, with rows of x: [`PANEL`] for each row of x.
#[inline(always)]
pub(super) unsafe fn products<'a, S: Simd, M: Matrix>(
    level: Level,
    (matrix, blocks): (M, usize),
    (first, outputs): (usize, usize),
    rows: &[*const f32],
    room: &'a mut [f32],
) -> &'a mut [f32] {
    let (panel, sums) = room.split_at_mut(NUMBERS);
    let sums = &mut sums[..rows.len().next_multiple_of(TILE_ROWS) * PANEL];
    sums.fill(0.0);
    for first_block in (0..blocks).step_by(S::SLICE) {
        let depth = (blocks - first_block).min(S::SLICE);
        for output in 0..outputs {
            let block = (first + output) * blocks + first_block;
            let row = &mut panel[output * stride(S::SLICE)..][..depth * BLOCK];
            // SAFETY: the caller promises that the matrix has these rows.
            unsafe { decode::<S, M>(matrix, block, depth, blocks, row.as_mut_ptr()) };
        }
        let columns = first_block * BLOCK..(first_block + depth) * BLOCK;
        level.run(AddPanel { panel, outputs, rows, columns, sums });
    }
    for tile in sums.as_chunks_mut::<{ TILE_ROWS * PANEL }>().0 {
        let by_output = *tile;
        for (row, sums) in tile.chunks_exact_mut(PANEL).enumerate() {
            for (output, sum) in sums.iter_mut().enumerate() {
                *sum = by_output[output * TILE_ROWS + row];
            }
        }
    }
    sums
}

/// Adds the products of a panel with rows of x to their sums.
struct AddPanel<'a> {
    /// Rows of [`stride`].
    panel: &'a [f32],
    /// Of these, how many count.
    outputs: usize,
    /// Where rows of x begin; whoever makes the task promises that they have the columns.
    rows: &'a [*const f32],
    /// Those that the panel's weights meet, from the panel's first.
    columns: Range<usize>,
    /// `[rows / TILE_ROWS, PANEL, TILE_ROWS]`: as a tile leaves them.
    sums: &'a mut [f32],
}

impl Task for AddPanel<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        // SAFETY: this runs by its level; the rest is the maker's promise.
        unsafe {
            match S::TILE {
                6 => self.in_tiles::<S, 6>(),
                3 => self.in_tiles::<S, 3>(),
                _ => self.in_tiles::<S, 2>(),
            }
        }
    }
}

impl AddPanel<'_> {
    /// Of `W` outputs.
    #[inline(always)]
    unsafe fn in_tiles<S: Simd, const W: usize>(self) {
        let AddPanel { panel, outputs, rows, columns, sums } = self;
        for (rows, sums) in rows.chunks(TILE_ROWS).zip(sums.chunks_mut(TILE_ROWS * PANEL)) {
            let row = |i: usize| rows[i].wrapping_add(columns.start);
            let panel = (panel, outputs, columns.len());
            // SAFETY: the caller's promise.
            unsafe {
                match rows.len() {
                    1 => add_tiles::<S, W, 1>(panel, [0].map(row), sums),
                    2 => add_tiles::<S, W, 2>(panel, [0, 1].map(row), sums),
                    3 => add_tiles::<S, W, 3>(panel, [0, 1, 2].map(row), sums),
                    _ => add_tiles::<S, W, TILE_ROWS>(panel, [0, 1, 2, 3].map(row), sums),
                }
            }
        }
    }
}

/// Adds the products of a panel with `X` rows of x to their sums.
#[inline(always)]
unsafe fn add_tiles<S: Simd, const W: usize, const X: usize>(
    (panel, outputs, columns): (&[f32], usize, usize),
    x: [*const f32; X],
    sums: &mut [f32],
) {
    for output in (0..outputs).step_by(W) {
        // Past the panel's last output the tile computes what an earlier panel left, and nobody looks at it.
        let weights: [*const f32; W] =
            std::array::from_fn(|w| panel[(output + w) * stride(S::SLICE)..].as_ptr());
        // SAFETY: the caller's promise.
        let products = unsafe { tile_products::<S, W, X>(weights, x, columns) };
        for (sums, products) in
            sums[output * TILE_ROWS..].as_chunks_mut::<TILE_ROWS>().0.iter_mut().zip(products)
        {
            for (sum, product) in sums.iter_mut().zip(products) {
                *sum += product;
            }
        }
    }
}
