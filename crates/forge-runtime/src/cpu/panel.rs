//! Products of many rows with a panel: weights of a few outputs, decoded to singles once and met by row after row while they are
//! in the cache.
//!
//! It is a task of its own, compiled once for each set of instructions: a decoded panel has no format.

// Indices count lanes and rows of fixed-size arrays: loops over them unroll into registers.
#![allow(clippy::needless_range_loop)]

use super::formats::BLOCK;
use super::level::Task;
use super::simd::Simd;
use super::tile::tile_products;
use std::ops::Range;

/// Outputs of a panel: a multiple of every level's tile.
pub(super) const PANEL: usize = 24;
/// Blocks of a panel's rows.
pub(super) const DEPTH: usize = 64;
/// From one row of a panel to the next: off by a cache line, so that rows do not fall into one set of the cache.
pub(super) const STRIDE: usize = DEPTH * BLOCK + 16;
/// Rows of x that share a decoded panel.
pub(super) const ROWS: usize = 128;
/// Rows of x in a tile.
const TILE_ROWS: usize = 4;

/// Adds the products of a panel with rows of x to their sums.
pub(super) struct AddPanel<'a> {
    /// Rows of [`STRIDE`].
    pub(super) panel: &'a [f32],
    /// Of these, how many count.
    pub(super) outputs: usize,
    /// Where rows of x begin; whoever makes the task promises that they have the columns.
    pub(super) rows: &'a [*const f32],
    /// Those that the panel's weights meet, from the panel's first.
    pub(super) columns: Range<usize>,
    /// `[rows, PANEL]`
    pub(super) sums: &'a mut [f32],
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
        let weights: [*const f32; W] = std::array::from_fn(|w| panel[(output + w) * STRIDE..].as_ptr());
        // SAFETY: the caller's promise.
        let products = unsafe { tile_products::<S, W, X>(weights, x, columns) };
        for (w, products) in products.iter().enumerate() {
            for (i, product) in products.iter().enumerate() {
                sums[i * PANEL + output + w] += product;
            }
        }
    }
}
