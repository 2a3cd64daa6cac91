//! y = W x for several rows in whole numbers: where weights are codes of bytes, rows of x are made such, too.
//!
//! In a first round the threads encode x into room that they share: of each 32 columns the largest becomes 127 or -127, and the
//! others whole parts of it. In the second each takes panels of outputs, in which a weight's codes lie as products want them,
//! four columns of every output side by side; a panel is filled once for many rows. A block's product is a sum of products of
//! codes, which is exact, whatever instructions make it. Blocks are added first to last:
//!
//! ```text
//! y = y + (sum of products * scale + sum of x's codes * offset) * scale of x
//! ```
//!
//! each operation rounded by itself. So a row comes to the same, to the bit, on every machine, however many rows come with it.
//! What is lost is what a code of x loses, 1/254 of the largest of its 32 at most; `--exact` loses nothing ([`super::project`]).
//! A few rows never come here: see [`super::coded_few`] and [`super::strip_products`].

// Indices count lanes and rows of fixed-size arrays: loops over them unroll into registers.
#![allow(clippy::needless_range_loop)]

use super::call::{Call, Number};
use super::finish::{Finish, OfShare};
use super::formats::{AT_ONCE, BLOCK, Matrix, Scaling};
use super::level::Task;
use super::project::Project;
use super::scratch::Scratch;
use super::simd::Simd;
use super::strips::OUTPUTS;
use std::marker::PhantomData;

/// Outputs of a panel: two vectors, or four.
const PANEL: usize = 32;
/// Blocks of a panel, which with them fits into the nearest cache.
const DEPTH: usize = AT_ONCE;
/// Rows of x that share a panel.
const ROWS: usize = 256;
/// Rows of x in a tile of products.
const TILE: usize = 4;
/// Vectors of outputs in it.
const VECTORS: usize = 2;

/// 32 columns of a row of x.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Coded {
    pub(super) codes: [i8; BLOCK],
    pub(super) scale: f32,
    /// The sum of its codes.
    pub(super) total: i32,
}

// SAFETY: numbers without gaps.
unsafe impl Number for Coded {}

/// 32 columns of a panel's outputs.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Filled {
    codes: [[[i8; 4]; PANEL]; BLOCK / 4],
    scales: [f32; PANEL],
    offsets: [f32; PANEL],
}

const EMPTY: Filled =
    Filled { codes: [[[0; 4]; PANEL]; BLOCK / 4], scales: [0.0; PANEL], offsets: [0.0; PANEL] };

/// Runs this thread's share of a round.
pub(super) fn products<M: Matrix>(call: &Call<'_>, shape: &Project) {
    let (rows, inputs) = (call.scalar(0), shape.inputs);
    let blocks = inputs.div_ceil(M::WHOLE * BLOCK) * M::WHOLE;
    let coded = call.room::<Coded>(rows * blocks);
    if call.round() == 0 {
        let x = call.input::<f32>("x", rows * inputs);
        for row in call.share(rows, 1).flatten() {
            // SAFETY: every row is one thread's.
            let to = unsafe { coded.part(row * blocks..(row + 1) * blocks) };
            call.level().run(Encode { x: &x[row * inputs..][..inputs], to });
        }
        return call.another_round();
    }
    // SAFETY: all of them were written in the round before, and nobody writes them in this one.
    let x = unsafe { std::slice::from_raw_parts(coded.start(), rows * blocks) };
    call.level().run(Products::<M> { call, shape, x, blocks, format: PhantomData });
}

/// Makes codes of a row.
struct Encode<'a> {
    x: &'a [f32],
    to: &'a mut [Coded],
}

impl Task for Encode<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        for (index, to) in self.to.iter_mut().enumerate() {
            let mut x = [0.0; BLOCK];
            let from = &self.x[(index * BLOCK).min(self.x.len())..];
            match from.first_chunk::<BLOCK>() {
                Some(whole) => x = *whole,
                None => x[..from.len()].copy_from_slice(from),
            }
            *to = encoded(&x);
        }
    }
}

/// The codes of 32 numbers. If one of them is no number or infinite, the scale is no number, and so is what becomes of it.
#[inline(always)]
pub(super) fn encoded(x: &[f32; BLOCK]) -> Coded {
    // As words, sizes are in order, infinity after the numbers and what is no number after that.
    let largest = f32::from_bits(x.iter().fold(0, |largest, x| largest.max(x.to_bits() & 0x7fff_ffff)));
    // What is smaller than that is nothing beside any weight, and has no inverse.
    let factor = if largest > 1e-30 { 127.0 / largest } else { 0.0 };
    let mut coded = Coded { codes: [0; BLOCK], scale: largest / 127.0, total: 0 };
    if !largest.is_finite() {
        coded.scale = f32::NAN;
        return coded;
    }
    for (code, x) in coded.codes.iter_mut().zip(x) {
        // 3 * 2^22 has no room for fractions: what is added to it is rounded, ties to even, and lies in its lowest bits.
        *code = (x * factor + 12_582_912.0).to_bits() as i8;
    }
    coded.total = coded.codes.iter().map(|code| i32::from(*code)).sum();
    coded
}

/// A projection of encoded rows.
struct Products<'a, M> {
    call: &'a Call<'a>,
    shape: &'a Project,
    x: &'a [Coded],
    /// Of a row of the matrix, and of x.
    blocks: usize,
    format: PhantomData<M>,
}

impl<M: Matrix> Task for Products<'_, M> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Products { call, shape, x, blocks, .. } = self;
        let (all, outputs) = (call.scalar(0), shape.outputs);
        let matrix = M::find(call, "weight", outputs, blocks);
        let in_strips = M::STRIPS && call.in_strips("weight_codes");
        let finish = Finish::new::<S>(call, shape, all);
        let mut panel = [EMPTY; DEPTH];
        let mut sums = Scratch::take(all.min(ROWS).next_multiple_of(TILE) * PANEL);
        let panels = outputs.div_ceil(PANEL);
        // All panels of one part of the rows, then the next part: neighbours in time share their x.
        for item in call.share(all.div_ceil(ROWS) * panels, 1).flatten() {
            let (first_row, first_output) = (item / panels * ROWS, item % panels * PANEL);
            let (rows, of_panel) = ((all - first_row).min(ROWS), (outputs - first_output).min(PANEL));
            sums.fill(0.0);
            for first_block in (0..blocks).step_by(DEPTH) {
                let panel = &mut panel[..(blocks - first_block).min(DEPTH)];
                for output in (0..of_panel).step_by(if in_strips { OUTPUTS } else { 1 }) {
                    let first = (first_output + output) * blocks;
                    // SAFETY: `find` saw that the matrix has all blocks of all outputs.
                    unsafe {
                        match in_strips {
                            true => fill_strip::<S, M>(matrix, first / OUTPUTS + first_block, output, panel),
                            false => fill::<S, M>(matrix, first + first_block, output, panel),
                        }
                    }
                }
                let x = &x[first_row * blocks..][..rows * blocks];
                call.level().run(AddPanel {
                    panel,
                    lacking: M::LACKING.unwrap_or(0),
                    offset: M::SCALING == Scaling::Offset,
                    x,
                    blocks,
                    first_block,
                    sums: &mut sums,
                });
            }
            for row in 0..rows {
                let values = &mut sums[row * PANEL..][..of_panel];
                // SAFETY: a panel's outputs of these rows are this thread's.
                unsafe { finish.outputs(first_row + row, first_output, values, &mut { OfShare::NOTHING }) };
            }
        }
    }
}

/// Fills in an output's blocks from `first`.
#[inline(always)]
unsafe fn fill<S: Simd, M: Matrix>(matrix: M, first: usize, output: usize, panel: &mut [Filled]) {
    let mut scales = [0.0; 2 * AT_ONCE];
    // SAFETY: the caller promises as many blocks as the panel has.
    unsafe {
        matrix.scales::<S>(first / M::GROUP, panel.len() / M::GROUP, &mut scales);
        let depth = panel.len();
        for (index, block) in panel.iter_mut().enumerate() {
            matrix.prefetch::<S>(first + index + depth);
            let codes = matrix.codes(first + index).map(|code| code ^ S::RAISED as i8);
            for (to, four) in block.codes.iter_mut().zip(codes.as_chunks::<4>().0) {
                to[output] = *four;
            }
            let group = index / M::GROUP;
            match M::SCALING {
                Scaling::Offset => {
                    block.scales[output] = scales[2 * group];
                    block.offsets[output] = scales[2 * group + 1];
                }
                _ => block.scales[output] = scales[group],
            }
        }
    }
}

/// Fills in a strip's blocks from `first`.
#[inline(always)]
unsafe fn fill_strip<S: Simd, M: Matrix>(matrix: M, first: usize, output: usize, panel: &mut [Filled]) {
    let raised = u32::from_ne_bytes([S::RAISED as u8; 4]);
    for (index, block) in panel.iter_mut().enumerate() {
        for word in 0..BLOCK / 8 {
            // SAFETY: the caller promises as many blocks as the panel has.
            let [near, far] = unsafe { matrix.strip_words(first + index, word) };
            for i in 0..OUTPUTS {
                block.codes[word][output + i] = (near[i] ^ raised).to_ne_bytes().map(u8::cast_signed);
                block.codes[word + 4][output + i] = (far[i] ^ raised).to_ne_bytes().map(u8::cast_signed);
            }
        }
        for part in 0..OUTPUTS / S::LANES {
            let to = block.scales[output + part * S::LANES..].as_mut_ptr();
            // SAFETY: as above; a panel has whole strips.
            unsafe { S::store(to, matrix.strip_scales::<S>(first + index, part)) };
        }
    }
}

/// Adds the products of a filled panel to the sums of each row. It is the same for all formats.
struct AddPanel<'a> {
    panel: &'a [Filled],
    /// What the panel's codes lack ([`Matrix::LACKING`]).
    lacking: i32,
    /// Whether there are offsets.
    offset: bool,
    /// Rows of `blocks` blocks.
    x: &'a [Coded],
    blocks: usize,
    /// The block of x that meets the panel's first.
    first_block: usize,
    /// `[rows, PANEL]`, of whole tiles.
    sums: &'a mut [f32],
}

impl Task for AddPanel<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        if self.offset { self.tiles::<S, true>() } else { self.tiles::<S, false>() }
    }
}

impl AddPanel<'_> {
    #[inline(always)]
    fn tiles<S: Simd, const OFFSET: bool>(self) {
        let rows = self.x.len() / self.blocks;
        let depth = self.panel.len();
        for (tile, sums) in self.sums.chunks_exact_mut(TILE * PANEL).enumerate().take(rows.div_ceil(TILE)) {
            // Past the last row the tile computes that row again, and nobody looks at it.
            let x: [&[Coded]; TILE] = std::array::from_fn(|i| {
                let row = (tile * TILE + i).min(rows - 1);
                &self.x[row * self.blocks + self.first_block..][..depth]
            });
            for output in (0..PANEL).step_by(VECTORS * S::LANES) {
                // SAFETY: this runs by its level, and panels have whole vectors.
                unsafe { add_tile::<S, OFFSET>(self.panel, self.lacking, output, x, sums) };
            }
        }
    }
}

/// A tile's products, added to sums.
#[inline(always)]
unsafe fn add_tile<S: Simd, const OFFSET: bool>(
    panel: &[Filled],
    lacking: i32,
    output: usize,
    x: [&[Coded]; TILE],
    sums: &mut [f32],
) {
    // SAFETY: the caller's promise; x has as many blocks as the panel.
    unsafe {
        let place = |i: usize, v: usize| i * PANEL + output + v * S::LANES;
        let mut all = [[S::splat(0.0); VECTORS]; TILE];
        for i in 0..TILE {
            for v in 0..VECTORS {
                all[i][v] = S::load(&sums[place(i, v)]);
            }
        }
        for (index, block) in panel.iter().enumerate() {
            let x: [&Coded; TILE] = std::array::from_fn(|i| x[i].get_unchecked(index));
            let mut products = [[S::splat_sums(0); VECTORS]; TILE];
            for i in 0..TILE {
                products[i] = [S::splat_sums(x[i].total * (lacking - S::RAISED)); VECTORS];
            }
            for four in 0..BLOCK / 4 {
                for v in 0..VECTORS {
                    let weights = block.codes[four][output + v * S::LANES].as_ptr();
                    for i in 0..TILE {
                        products[i][v] = S::add_products(products[i][v], weights, &x[i].codes[4 * four]);
                    }
                }
            }
            for v in 0..VECTORS {
                let scales = S::load(&block.scales[output + v * S::LANES]);
                let offsets = S::load(&block.offsets[output + v * S::LANES]);
                for i in 0..TILE {
                    let mut of_block = S::mul(S::sums_to_singles(products[i][v]), scales);
                    if OFFSET {
                        of_block = S::add(of_block, S::mul(S::splat(x[i].total as f32), offsets));
                    }
                    all[i][v] = S::add(all[i][v], S::mul(of_block, S::splat(x[i].scale)));
                }
            }
        }
        for i in 0..TILE {
            for v in 0..VECTORS {
                S::store(&mut sums[place(i, v)], all[i][v]);
            }
        }
    }
}
