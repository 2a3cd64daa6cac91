//! y = W x for one row or many, with a bias before and an epilogue after.
//!
//! Scalars: rows[, first]. Buffers: the weight's planes, [bias,] x, [x_gain,] [squares,] [factors,] y[, gain, gained, squares_out][, candidates]. One
//! row, or a few, read every weight once, straight from memory, and are as fast as memory is. More rows take panels of
//! weights: decoded once into a cache-sized buffer, then multiplied with a block of rows that stays in the cache while
//! panel after panel goes by.
//!
//! Where there are rows, two or more, each is computed alike to the bit, however many they are. There are three ways:
//! - where weights are codes, rows are encoded ([`super::coded`]), unless the device is exact;
//! - otherwise products in f32 are summed over slices of `DEPTH` blocks, in the same order with panels and without;
//! - one row alone is always multiplied in f32, and may be summed in another order.

use super::call::Call;
use super::coded;
use super::finish::{DeferredNorm, Each, Epilogue, Finish, GRAIN, OfShare, OwnNorm};
use super::formats::{BLOCK, Matrix};
use super::level::Task;
use super::scratch::Scratch;
use super::simd::Simd;
use super::stored::Stored;
use super::tile::{decode, stored_products, tile_products, widened_products};
use std::marker::PhantomData;

/// What the compiler decided.
///
/// v is W x, then deferred norm, then bias, then a function of each result, then the epilogue.
#[derive(Clone, Copy, Debug)]
pub struct Project {
    /// Rows of the weight; with [`Epilogue::Gate`], twice the width of y.
    pub outputs: usize,
    /// Columns of the weight, and the width of x.
    pub inputs: usize,
    /// The deferred norm of x, if there is one.
    pub norm: Option<DeferredNorm>,
    /// The norm of x that is this projection's business, if there is one.
    pub own_norm: Option<OwnNorm>,
    /// Whether a bias is added.
    pub bias: bool,
    /// What v becomes before the epilogue.
    pub each: Option<Each>,
    /// What becomes of the result.
    pub epilogue: Epilogue,
}

/// As many rows are few.
const FEW: usize = 4;
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

/// Runs this thread's share, of a weight stored as `F`.
pub fn project<F: Stored>(call: &Call<'_>, shape: &Project) {
    F::project(call, shape);
}

pub(super) fn products<M: Matrix>(call: &Call<'_>, shape: &Project) {
    if M::LACKING.is_some() && call.scalar(0) > 1 && !call.exact() {
        return coded::products::<M>(call, shape);
    }
    call.level().run(Products::<M> { call, shape, format: PhantomData });
}

struct Products<'a, M> {
    call: &'a Call<'a>,
    shape: &'a Project,
    format: PhantomData<M>,
}

impl<M: Matrix> Task for Products<'_, M> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Project { outputs, inputs, .. } = *self.shape;
        let call = self.call;
        let rows = call.scalar(0);
        let blocks = inputs.div_ceil(M::WHOLE * BLOCK) * M::WHOLE;
        let x = call.input::<f32>("x", rows * inputs);
        let of_one = self.shape.norm.is_some()
            || self.shape.own_norm.is_some()
            || matches!(
                self.shape.epilogue,
                Epilogue::AddSquares(_) | Epilogue::Best { .. } | Epilogue::Multiply { .. }
            );
        assert!(rows == 1 || !of_one, "{:?} is made for one row, and there are {rows}", self.shape);
        let gain = self.shape.own_norm.filter(|norm| norm.gain).map(|_| call.input::<f32>("x_gain", inputs));
        let fits = inputs == blocks * BLOCK && gain.is_none();
        let padded = if fits { 0 } else { rows * blocks * BLOCK };
        let panel = if rows <= FEW { 0 } else { PANEL * STRIDE + ROWS * PANEL };
        let mut scratch = Scratch::take(padded.next_multiple_of(16) + panel);
        let (x_padded, scratch) = scratch.split_at_mut(padded.next_multiple_of(16));
        let x = match gain {
            None => whole_rows(x, inputs, blocks * BLOCK, x_padded),
            Some(gain) => {
                x_padded[inputs..].fill(0.0);
                x_padded.iter_mut().zip(x).zip(gain).for_each(|((to, x), gain)| *to = x * gain);
                x_padded
            }
        };
        let work = Work {
            call,
            matrix: M::find(call, "weight", outputs, blocks),
            outputs,
            blocks,
            x,
            rows,
            finish: Finish::new::<S>(call, self.shape, rows),
        };
        // SAFETY: `find` saw that the matrix is whole, and x has `blocks * 32` columns a row; threads take
        // different outputs.
        unsafe {
            match (rows, S::TILE) {
                (1, _) => work.few_rows::<S, 4, 1>(),
                (2, _) => work.few_rows::<S, 4, 2>(),
                (3, _) => work.few_rows::<S, 2, 3>(),
                (FEW, _) => work.few_rows::<S, 2, FEW>(),
                (_, 6) => work.panels::<S, 6>(scratch),
                (_, 3) => work.panels::<S, 3>(scratch),
                _ => work.panels::<S, 2>(scratch),
            }
        }
    }
}

/// A projection, its shape worked out.
struct Work<'a, M> {
    call: &'a Call<'a>,
    matrix: M,
    outputs: usize,
    /// Of a row of the matrix, and of x.
    blocks: usize,
    /// Rows of whole blocks.
    x: &'a [f32],
    rows: usize,
    finish: Finish<'a>,
}

impl<M: Matrix> Work<'_, M> {
    /// `X` rows of x, `W` outputs at once.
    #[inline(always)]
    unsafe fn few_rows<S: Simd, const W: usize, const X: usize>(&self) {
        let Work { call, matrix, outputs, blocks, x, .. } = *self;
        let x: [*const f32; X] = std::array::from_fn(|row| x[row * blocks * BLOCK..].as_ptr());
        let (shares, size, at_once) = self.finish.shares(outputs, call.workers());
        let mut values = [[0.0_f32; GRAIN]; X];
        for share in call.share(shares, at_once).flatten() {
            let mut left = OfShare::NOTHING;
            let end = outputs.min((share + 1) * size);
            for start in (share * size..end).step_by(GRAIN) {
                let range = start..end.min(start + GRAIN);
                // Rows that are read at once lie far apart: of neighbours, which share pages, the machine foresees nothing.
                let apart = range.len() / W;
                // SAFETY: the caller's promise.
                unsafe {
                    for i in 0..apart {
                        let first: [usize; W] =
                            std::array::from_fn(|w| (range.start + w * apart + i) * blocks);
                        let products = whole_products::<S, M, W, X>(matrix, first, x, blocks);
                        for (w, products) in products.iter().enumerate() {
                            for (row, product) in products.iter().enumerate() {
                                values[row][w * apart + i] = *product;
                            }
                        }
                    }
                    for output in range.start + W * apart..range.end {
                        let products = whole_products::<S, M, 1, X>(matrix, [output * blocks], x, blocks);
                        for (row, product) in products[0].iter().enumerate() {
                            values[row][output - range.start] = *product;
                        }
                    }
                    for (row, values) in values.iter_mut().enumerate() {
                        self.finish.outputs::<S>(row, range.start, &mut values[..range.len()], &mut left);
                    }
                }
            }
            // SAFETY: the caller's promise.
            unsafe { self.finish.leave(share, left) };
        }
    }

    /// Any number of rows, in tiles of `W` outputs.
    #[inline(always)]
    unsafe fn panels<S: Simd, const W: usize>(&self, scratch: &mut [f32]) {
        let Work { call, matrix, outputs, blocks, x, rows, .. } = *self;
        let (panel, sums) = scratch.split_at_mut(PANEL * STRIDE);
        let count_of_panels = outputs.div_ceil(PANEL);
        // All panels of one block of rows, then the next block: neighbours in time share their x.
        for item in call.share(rows.div_ceil(ROWS) * count_of_panels, 1).flatten() {
            let first_row = item / count_of_panels * ROWS;
            let rows = (rows - first_row).min(ROWS);
            let first_output = item % count_of_panels * PANEL;
            let of_panel = (outputs - first_output).min(PANEL);
            sums[..rows * PANEL].fill(0.0);
            for first_block in (0..blocks).step_by(DEPTH) {
                let depth = (blocks - first_block).min(DEPTH);
                // SAFETY: the caller's promise; panel and sums have room for PANEL outputs.
                unsafe {
                    for output in 0..of_panel {
                        let block = (first_output + output) * blocks + first_block;
                        let to = panel.as_mut_ptr().add(output * STRIDE);
                        decode::<S, M>(matrix, block, depth, blocks, to);
                    }
                    let x = x.as_ptr().add((first_row * blocks + first_block) * BLOCK);
                    let row = |row: usize| x.add(row * blocks * BLOCK);
                    add_panel::<S, W>((panel, of_panel), (rows, row), depth, sums);
                }
            }
            for row in 0..rows {
                let values = &mut sums[row * PANEL..][..of_panel];
                // SAFETY: as above.
                unsafe {
                    self.finish
                        .outputs::<S>(first_row + row, first_output, values, &mut { OfShare::NOTHING });
                }
            }
        }
    }
}

/// Rows of x as long as rows of weights are: padded with zeros in `room`, or where they are if they are whole groups already.
#[inline(always)]
pub(super) fn whole_rows<'a>(x: &'a [f32], inputs: usize, columns: usize, room: &'a mut [f32]) -> &'a [f32] {
    if inputs == columns {
        return x;
    }
    for (to, from) in room.chunks_exact_mut(columns).zip(x.chunks_exact(inputs)) {
        to[..inputs].copy_from_slice(from);
        to[inputs..].fill(0.0);
    }
    room
}

/// The products of `W` whole rows of a matrix with `X` rows of x, in the order that is fastest for one row.
#[inline(always)]
pub(super) unsafe fn whole_products<S: Simd, M: Matrix, const W: usize, const X: usize>(
    matrix: M,
    first: [usize; W],
    x: [*const f32; X],
    blocks: usize,
) -> [[f32; X]; W] {
    // SAFETY: the caller's promise.
    unsafe {
        match X {
            1 => stored_products::<S, M, W, X>(matrix, first, x, blocks),
            _ => sliced_products::<S, M, W, X>(matrix, first, x, blocks),
        }
    }
}

/// The same, summed over slices as panels are.
#[inline(always)]
pub(super) unsafe fn sliced_products<S: Simd, M: Matrix, const W: usize, const X: usize>(
    matrix: M,
    first: [usize; W],
    x: [*const f32; X],
    blocks: usize,
) -> [[f32; X]; W] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[0.0; X]; W];
        for from in (0..blocks).step_by(DEPTH) {
            let slice = (from, (blocks - from).min(DEPTH));
            let products = widened_products::<S, M, W, X>(matrix, first, x, slice);
            for (sums, products) in sums.iter_mut().zip(products) {
                for (sum, product) in sums.iter_mut().zip(products) {
                    *sum += product;
                }
            }
        }
        sums
    }
}

/// Adds the products of a panel with so many rows of x to their sums.
#[inline(always)]
pub(super) unsafe fn add_panel<S: Simd, const W: usize>(
    (panel, of_panel): (&[f32], usize),
    (rows, row): (usize, impl Fn(usize) -> *const f32),
    depth: usize,
    sums: &mut [f32],
) {
    for first in (0..rows).step_by(TILE_ROWS) {
        let sums = &mut sums[first * PANEL..];
        // SAFETY: the caller promises rows of `depth` blocks, and a panel decoded to as many.
        unsafe {
            match rows - first {
                1 => add_tiles::<S, W, 1>(panel, of_panel, [row(first)], depth, sums),
                2 => add_tiles::<S, W, 2>(panel, of_panel, [0, 1].map(|i| row(first + i)), depth, sums),
                3 => add_tiles::<S, W, 3>(panel, of_panel, [0, 1, 2].map(|i| row(first + i)), depth, sums),
                _ => {
                    let x: [_; TILE_ROWS] = std::array::from_fn(|i| row(first + i));
                    add_tiles::<S, W, TILE_ROWS>(panel, of_panel, x, depth, sums);
                }
            }
        }
    }
}

/// Adds the products of a panel with `X` rows of x to their sums.
#[inline(always)]
unsafe fn add_tiles<S: Simd, const W: usize, const X: usize>(
    panel: &[f32],
    of_panel: usize,
    x: [*const f32; X],
    depth: usize,
    sums: &mut [f32],
) {
    // SAFETY: the caller's promise.
    unsafe {
        for output in (0..of_panel).step_by(W) {
            // Past the panel's last output the tile computes what an earlier panel left, and nobody looks at it.
            let weights: [*const f32; W] = std::array::from_fn(|w| panel.as_ptr().add((output + w) * STRIDE));
            let products = tile_products::<S, W, X>(weights, x, depth * BLOCK);
            for (w, products) in products.iter().enumerate() {
                for (i, product) in products.iter().enumerate() {
                    sums[i * PANEL + output + w] += product;
                }
            }
        }
    }
}
