//! Products of rows of x with weights in f32: panels for many rows, and for a few the same without any.
//!
//! Weights are decoded sixteen outputs at once, and laid column by column: lanes are outputs, and a number of x is the same for all of
//! them. A panel is some sixteens, decoded once and met by row after row while they are in the cache. A few rows meet block after block as
//! it is decoded. Either way an output is a sum over slices of [`DEPTH`] blocks, and a slice is summed from its first column to its last, each
//! product fused with its sum: so a row comes to the same bits among many and among few, and wherever the machine can fuse.

// Indices count lanes and rows of fixed-size arrays: loops over them unroll into registers.
#![allow(clippy::needless_range_loop)]

use super::formats::{BLOCK, Matrix};
use super::level::{Level, Task};
use super::simd::Simd;
use super::strips::OUTPUTS;
use std::ops::Range;

/// Outputs of a panel: a multiple of every level's tile.
pub(super) const PANEL: usize = 64;
/// Blocks of a slice, and of a panel's rows.
pub(super) const DEPTH: usize = 16;
/// Numbers of a panel.
pub(super) const NUMBERS: usize = PANEL * DEPTH * BLOCK;
/// The most rows of x that share a panel: as often as there are so many, weights come from memory and are decoded.
pub(super) const ROWS: usize = 512;
/// The fewest, where there are more.
const FEWEST: usize = 128;
/// From sixteen outputs of a panel to the next.
const SIXTEEN: usize = DEPTH * BLOCK * OUTPUTS;
/// Rows of x in a tile. With four vectors of outputs on machines of 32 registers and with two on those of 16 its sums leave room for a
/// column's weights and a number of x.
const TILE: usize = 6;
/// Blocks of a row that are asked for ahead: sixteen rows side by side are as many streams.
const AHEAD: usize = 8;

/// How many rows of x share each of so many panels: as many as leave every thread several panels.
pub(super) fn rows_at_once(panels: usize, workers: usize) -> usize {
    let mut at_once = ROWS;
    while at_once > FEWEST && ROWS / at_once * panels < 4 * workers {
        at_once /= 2;
    }
    at_once
}

/// Rows of a matrix that lie one after the other.
#[derive(Clone, Copy)]
pub(super) struct MatrixRows<M> {
    pub(super) matrix: M,
    /// Of a row, and of x.
    pub(super) blocks: usize,
    /// The number of the first of them.
    pub(super) first: usize,
    /// How many they are.
    pub(super) count: usize,
}

impl<M: Matrix> MatrixRows<M> {
    /// Their products with many rows of x, in `sums`: `[rows, PANEL]`. There are at most `PANEL` of them, which are decoded into `panel`.
    #[inline(always)]
    pub(super) unsafe fn of_many<S: Simd>(
        self,
        level: Level,
        rows: &[*const f32],
        panel: &mut [f32],
        sums: &mut [f32],
    ) {
        sums[..rows.len() * PANEL].fill(0.0);
        for slice in slices(self.blocks) {
            for output in (0..self.count).step_by(OUTPUTS) {
                let mut decoded = Decoded::from(self, output);
                for (block, to) in
                    slice.clone().zip(panel[output * DEPTH * BLOCK..].chunks_exact_mut(BLOCK * OUTPUTS))
                {
                    // SAFETY: the caller promises these rows of the matrix.
                    unsafe { decoded.block::<S>(block, to) };
                }
            }
            let columns = slice.start * BLOCK..slice.end * BLOCK;
            level.run(AddPanel { panel, outputs: self.count, rows, columns, sums });
        }
    }

    /// Their products with `X` rows of x: those of each `pitch` after those of the one before it.
    #[inline(always)]
    pub(super) unsafe fn of_few<S: Simd, const X: usize>(
        self,
        x: [*const f32; X],
        values: &mut [f32],
        pitch: usize,
    ) {
        for output in (0..self.count).step_by(OUTPUTS) {
            // SAFETY: the caller's promise.
            let products = unsafe { self.sixteen::<S, X>(output, x) };
            let count = (self.count - output).min(OUTPUTS);
            for i in 0..X {
                values[i * pitch + output..][..count].copy_from_slice(&products[i][..count]);
            }
        }
    }

    /// The products of those from number `first`, sixteen or what there is, with `X` rows of x.
    #[inline(always)]
    unsafe fn sixteen<S: Simd, const X: usize>(
        self,
        first: usize,
        x: [*const f32; X],
    ) -> [[f32; OUTPUTS]; X] {
        let mut totals = [[0.0; OUTPUTS]; X];
        let mut decoded = Decoded::from(self, first);
        let mut columns = [0.0; BLOCK * OUTPUTS];
        let vectors = OUTPUTS / S::LANES;
        // SAFETY: the caller promises these rows of the matrix, and rows of x as long.
        unsafe {
            for slice in slices(self.blocks) {
                let mut sums = [[S::splat(0.0); 2]; X];
                for block in slice {
                    decoded.block::<S>(block, &mut columns);
                    let x = x.map(|x| x.wrapping_add(block * BLOCK));
                    add_columns::<S, 2, X>(columns.as_ptr(), x, BLOCK, vectors, &mut sums);
                }
                for i in 0..X {
                    for v in 0..vectors {
                        let total = &raw mut totals[i][v * S::LANES];
                        S::store(total, S::add(S::load(total), sums[i][v]));
                    }
                }
            }
        }
        totals
    }
}

/// The slices of so many blocks.
#[inline(always)]
fn slices(blocks: usize) -> impl Iterator<Item = Range<usize>> {
    (0..blocks).step_by(DEPTH).map(move |from| from..blocks.min(from + DEPTH))
}

/// Up to sixteen rows of a matrix, one block of which is decoded at a time.
struct Decoded<M> {
    rows: MatrixRows<M>,
    /// As they lie in the matrix. Past the last row nothing is decoded, and nobody looks at what becomes of it.
    block: [[f32; BLOCK]; OUTPUTS],
}

impl<M: Matrix> Decoded<M> {
    /// Those from number `first`.
    #[inline(always)]
    fn from(rows: MatrixRows<M>, first: usize) -> Decoded<M> {
        let count = (rows.count - first).min(OUTPUTS);
        let rows = MatrixRows { first: rows.first + first, count, ..rows };
        Decoded { rows, block: [[0.0; BLOCK]; OUTPUTS] }
    }

    /// Decodes a block of each, column by column: `[BLOCK, OUTPUTS]`.
    #[inline(always)]
    unsafe fn block<S: Simd>(&mut self, block: usize, to: &mut [f32]) {
        let MatrixRows { matrix, blocks, first, count } = self.rows;
        let to = to[..BLOCK * OUTPUTS].as_mut_ptr();
        // SAFETY: the caller's promise; there is room for squares of every level's lanes.
        unsafe {
            for row in 0..count {
                let block = (first + row) * blocks + block;
                matrix.prefetch::<S>(block + AHEAD);
                for part in 0..BLOCK / S::LANES {
                    let to = &raw mut self.block[row][part * S::LANES];
                    S::store(to, matrix.widened::<S>(block, part));
                }
            }
            for output in (0..OUTPUTS).step_by(S::LANES) {
                for column in (0..BLOCK).step_by(S::LANES) {
                    let (from, to) =
                        (&raw const self.block[output][column], to.add(column * OUTPUTS + output));
                    S::transpose(from, BLOCK, to, OUTPUTS);
                }
            }
        }
    }
}

/// Adds the products of a panel with rows of x to their sums.
///
/// It is a task of its own, compiled once for each set of instructions: a decoded panel has no format.
struct AddPanel<'a> {
    /// Sixteens of outputs, [`SIXTEEN`] numbers each.
    panel: &'a [f32],
    /// Of these, how many count.
    outputs: usize,
    /// Where rows of x begin; whoever makes the task promises that they have the columns.
    rows: &'a [*const f32],
    /// Those that the panel's weights meet, from the panel's first.
    columns: Range<usize>,
    /// `[rows, PANEL]`
    sums: &'a mut [f32],
}

impl Task for AddPanel<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let AddPanel { panel, outputs, rows, columns, sums } = self;
        for (rows, sums) in rows.chunks(TILE).zip(sums.chunks_mut(TILE * PANEL)) {
            let row = |i: usize| rows[i].wrapping_add(columns.start);
            let panel = (panel, outputs, columns.len());
            // SAFETY: this runs by its level; the rest is the maker's promise.
            unsafe {
                match rows.len() {
                    1 => add_rows::<S, 1>(panel, [0].map(row), sums),
                    2 => add_rows::<S, 2>(panel, [0, 1].map(row), sums),
                    3 => add_rows::<S, 3>(panel, [0, 1, 2].map(row), sums),
                    4 => add_rows::<S, 4>(panel, [0, 1, 2, 3].map(row), sums),
                    5 => add_rows::<S, 5>(panel, [0, 1, 2, 3, 4].map(row), sums),
                    _ => add_rows::<S, TILE>(panel, [0, 1, 2, 3, 4, 5].map(row), sums),
                }
            }
        }
    }
}

/// Adds the products of a panel with `X` rows of x to their sums.
#[inline(always)]
unsafe fn add_rows<S: Simd, const X: usize>(
    (panel, outputs, columns): (&[f32], usize, usize),
    x: [*const f32; X],
    sums: &mut [f32],
) {
    let mut output = 0;
    // Past the panel's last output a tile computes what an earlier panel left, and nobody looks at it.
    // SAFETY: the caller's promise.
    unsafe {
        while output < outputs {
            let weights = panel[output * DEPTH * BLOCK..].as_ptr();
            let sums = &mut sums[output..];
            output += match S::LANES {
                OUTPUTS if outputs - output > OUTPUTS => add_tile::<S, 4, X>(weights, x, columns, sums),
                OUTPUTS => add_tile::<S, 1, X>(weights, x, columns, sums),
                _ => add_tile::<S, 2, X>(weights, x, columns, sums),
            };
        }
    }
}

/// Adds the products of `V` vectors of outputs with `X` rows of x to their sums; how many outputs these are.
#[inline(always)]
unsafe fn add_tile<S: Simd, const V: usize, const X: usize>(
    weights: *const f32,
    x: [*const f32; X],
    columns: usize,
    to: &mut [f32],
) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[S::splat(0.0); V]; X];
        add_columns::<S, V, X>(weights, x, columns, V, &mut sums);
        for i in 0..X {
            for v in 0..V {
                let to = to[i * PANEL + v * S::LANES..][..S::LANES].as_mut_ptr();
                S::store(to, S::add(S::load(to), sums[i][v]));
            }
        }
    }
    V * S::LANES
}

/// Adds the products of some columns of so many vectors of outputs, at most `V`, with `X` rows of x to their sums.
#[inline(always)]
unsafe fn add_columns<S: Simd, const V: usize, const X: usize>(
    weights: *const f32,
    x: [*const f32; X],
    columns: usize,
    vectors: usize,
    sums: &mut [[S::V; V]; X],
) {
    // SAFETY: the caller's promise.
    unsafe {
        for column in 0..columns {
            let mut of_column = [S::splat(0.0); V];
            for v in 0..vectors {
                let (sixteen, lane) = (v * S::LANES / OUTPUTS, v * S::LANES % OUTPUTS);
                of_column[v] = S::load(weights.add(sixteen * SIXTEEN + column * OUTPUTS + lane));
            }
            for i in 0..X {
                let x = S::splat(*x[i].add(column));
                for v in 0..vectors {
                    sums[i][v] = S::fma(of_column[v], x, sums[i][v]);
                }
            }
        }
    }
}
