//! GEMM with AMX for f32, f16 and bf16 weights. Tiles multiply bf16, so f32 values are split into three bf16
//! terms.
//!
//! f32 has 24 significant bits and bf16 eight. The upper half of a value is the first term, the upper half of
//! the remainder is the second, and what remains is the third. The split is exact. f16 needs two terms and
//! bf16 one. The products that affect the 24 bits of the result are added in f32:
//!
//! ```text
//! w = w1 + w2 + w3, x = x1 + x2 + x3:   w x = w1 x1 + w1 x2 + w1 x3 + w2 x1 + w2 x2 + w3 x1
//! ```
//!
//! In the first phase, threads split x into a shared workspace. In the second phase, each thread computes
//! panels of outputs. Outputs are the rows of an accumulator tile, and rows of x are its columns. Each
//! element is summed separately in column order, so a row's result is batch-invariant. Weights are split when
//! they are read; with few rows, memory latency hides this.

use crate::cpu::device::kernel_args::{KernelArgs, Output, Pod};
use crate::cpu::device::scratch::Scratch;
use crate::cpu::format::matrix::{BLOCK, Matrix};
use crate::cpu::matmul::epilogue::{EpilogueContext, PartialResults, ROWS_AHEAD};
use crate::cpu::simd::amx::{ROW, SIDE, Sums, Tiles};
use crate::cpu::simd::isa::{Task, run_with_tiles};
use crate::cpu::simd::vectors::Simd;
use forge_ops::Linear;
use std::arch::x86_64::*;
use std::marker::PhantomData;

/// Terms of an f32 value.
const PARTS: usize = 3;
/// Outputs of a panel: two tiles.
const PANEL: usize = 2 * SIDE;
/// Blocks per panel slice, chosen to fit in L1.
const DEPTH: usize = 8;
/// Rows of x that share a panel.
const ROWS: usize = 256;

/// A block of 16 rows of x: pairs of adjacent columns, for each term.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct SplitBlock([[[u32; SIDE]; BLOCK / 2]; PARTS]);

// SAFETY: integers without padding.
unsafe impl Pod for SplitBlock {}

/// A block of a panel: rows of 32 columns, for each term.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct SplitWeights([[[u16; BLOCK]; PANEL]; PARTS]);

/// Runs a thread's part of a phase, on a machine with AMX.
pub(crate) fn products<M: Matrix>(call: &KernelArgs<'_>, shape: &Linear) {
    let (rows, inputs) = (call.scalar(0), shape.inputs);
    let blocks = inputs.div_ceil(M::WHOLE * BLOCK) * M::WHOLE;
    let split_x = call.workspace::<SplitBlock>(rows.div_ceil(SIDE) * blocks);
    if call.phase_index() == 0 {
        let x = call.input("x", rows * inputs);
        // SAFETY: the caller has checked that the machine has AMX.
        unsafe { run_with_tiles(SplitRows { call, x, inputs, to: &split_x, blocks }) };
        return call.request_phase();
    }
    // SAFETY: the previous phase wrote all of it, and no thread writes it in this phase.
    let x = unsafe { split_x.whole() };
    // SAFETY: as above.
    unsafe { run_with_tiles(SplitGemm::<M> { call, shape, x, blocks, format: PhantomData }) };
}

/// Splits this thread's rows of x.
struct SplitRows<'a> {
    call: &'a KernelArgs<'a>,
    x: &'a [f32],
    inputs: usize,
    to: &'a Output<'a, SplitBlock>,
    /// Blocks per row.
    blocks: usize,
}

impl Task for SplitRows<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let SplitRows { call, x, inputs, to, blocks } = self;
        for item in call.static_range((x.len() / inputs).div_ceil(SIDE) * blocks, 1) {
            let (rows, column) = (item / blocks * SIDE, item % blocks * BLOCK);
            let mut of_rows = [[[0_u32; BLOCK / 2]; SIDE]; PARTS];
            for (row, x) in x[rows * inputs..].chunks_exact(inputs).take(SIDE).enumerate() {
                let mut block = [0.0; BLOCK];
                let from = &x[column.min(inputs)..];
                match from.first_chunk::<BLOCK>() {
                    Some(whole) => block = *whole,
                    None => block[..from.len()].copy_from_slice(from),
                }
                // SAFETY: this runs on machines with AMX, which have AVX-512.
                unsafe {
                    for (part, pairs) in parts::<PARTS>(&block).into_iter().enumerate() {
                        _mm512_storeu_si512(of_rows[part][row].as_mut_ptr().cast(), pairs);
                    }
                }
            }
            // SAFETY: each item belongs to one thread.
            let [SplitBlock(to)] = (unsafe { to.part(item..item + 1) }) else {
                unreachable!("an item is one block")
            };
            for (to, of_rows) in to.iter_mut().zip(&of_rows) {
                // SAFETY: both are 16×16 tiles of words.
                unsafe {
                    S::transpose(
                        of_rows.each_ref().map(|row| row.as_ptr().cast()),
                        to.as_mut_ptr().cast(),
                        SIDE,
                    )
                };
            }
        }
    }
}

/// The first terms of 32 f32 values, as bf16 in the same order.
#[inline(always)]
unsafe fn parts<const COUNT: usize>(block: &[f32; BLOCK]) -> [__m512i; COUNT] {
    // SAFETY: the caller's instruction set includes these instructions.
    unsafe {
        let upper_halves = _mm512_loadu_si512(UPPER_HALVES.as_ptr().cast());
        let upper = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
        let mut left = [_mm512_loadu_ps(block.as_ptr()), _mm512_loadu_ps(block[16..].as_ptr())];
        let mut parts = [_mm512_setzero_si512(); COUNT];
        for part in &mut parts {
            let bits = [_mm512_castps_si512(left[0]), _mm512_castps_si512(left[1])];
            *part = _mm512_permutex2var_epi16(bits[0], upper_halves, bits[1]);
            for (left, bits) in left.iter_mut().zip(bits) {
                *left = _mm512_sub_ps(*left, _mm512_castsi512_ps(_mm512_and_si512(bits, upper)));
            }
        }
        parts
    }
}

/// Indices of the upper halves of 16 words, and of 16 more.
const UPPER_HALVES: [u16; BLOCK] = {
    let mut halves = [0; BLOCK];
    let mut i = 0;
    while i < BLOCK {
        halves[i] = 2 * i as u16 + 1;
        i += 1;
    }
    halves
};

/// GEMM over split rows of x.
struct SplitGemm<'a, M> {
    call: &'a KernelArgs<'a>,
    shape: &'a Linear,
    x: &'a [SplitBlock],
    /// Blocks per row of the matrix, and of x.
    blocks: usize,
    format: PhantomData<M>,
}

impl<M: Matrix> Task for SplitGemm<'_, M> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let SplitGemm { call, shape, x, blocks, .. } = self;
        let (all, outputs) = (call.scalar(0), shape.outputs);
        let matrix = M::find(call, "weight", outputs, blocks);
        let finish = EpilogueContext::new::<S>(call, shape, all);
        let mut panel = [SplitWeights([[[0; BLOCK]; PANEL]; PARTS]); DEPTH];
        let mut sums = vec![[Sums([[0.0; SIDE]; SIDE]); 2]; all.min(ROWS).div_ceil(SIDE)];
        let mut decoded = Scratch::take(DEPTH * BLOCK);
        let panels = outputs.div_ceil(PANEL);
        // Item order: all panels of one group of rows, then the next group. Consecutive items share x.
        for item in call.claim_rows(all.div_ceil(ROWS) * panels, 1).flatten() {
            let (first_row, first_output) = (item / panels * ROWS, item % panels * PANEL);
            let (rows, of_panel) = ((all - first_row).min(ROWS), (outputs - first_output).min(PANEL));
            let x = &x[first_row / SIDE * blocks..];
            let sums = &mut sums[..rows.div_ceil(SIDE)];
            sums.fill([Sums([[0.0; SIDE]; SIDE]); 2]);
            for first_block in (0..blocks).step_by(DEPTH) {
                let panel = &mut panel[..(blocks - first_block).min(DEPTH)];
                // SAFETY: `find` checked that the matrix has all blocks of all outputs, and the machine has
                // AMX.
                unsafe {
                    for output in 0..of_panel {
                        let block = (first_output + output) * blocks + first_block;
                        decode::<S, M>(matrix, block, panel.len(), blocks, decoded.as_mut_ptr());
                        split_blocks(M::PARTS, &decoded, output, panel);
                    }
                }
                let task = AddPanel { parts: M::PARTS, panel, x: &x[first_block..], blocks, sums };
                // SAFETY: as above.
                unsafe { run_with_tiles(task) };
            }
            for row in 0..rows {
                let mut values = [0.0; PANEL];
                for (values, Sums(sums)) in values.chunks_exact_mut(SIDE).zip(&sums[row / SIDE]) {
                    for (value, of_output) in values.iter_mut().zip(sums) {
                        *value = of_output[row % SIDE];
                    }
                }
                let (values, no_side_output) = (&mut values[..of_panel], &mut { PartialResults::NOTHING });
                // SAFETY: the panel's outputs of these rows belong to this thread.
                unsafe {
                    if row + ROWS_AHEAD < rows {
                        finish.prefetch_outputs::<S>(first_row + row + ROWS_AHEAD, first_output, of_panel);
                    }
                    finish.outputs(first_row + row, first_output, values, no_side_output);
                }
            }
        }
    }
}

/// Dequantizes `blocks` blocks to f32, and prefetches the blocks `ahead` blocks later.
#[inline(always)]
unsafe fn decode<S: Simd, M: Matrix>(matrix: M, first: usize, blocks: usize, ahead: usize, to: *mut f32) {
    // SAFETY: the caller ensures that the matrix has these blocks, and that `to` holds them.
    unsafe {
        for block in 0..blocks {
            matrix.prefetch::<S>(first + block + ahead);
            for part in 0..BLOCK / S::LANES {
                let v = matrix.load_f32::<S>(first + block, part);
                S::store(to.add(block * BLOCK + part * S::LANES), v);
            }
        }
    }
}

/// Splits some blocks of an output into `count` terms.
#[inline(always)]
unsafe fn split_blocks(count: usize, decoded: &[f32], output: usize, panel: &mut [SplitWeights]) {
    for (SplitWeights(to), block) in panel.iter_mut().zip(decoded.as_chunks::<BLOCK>().0) {
        // SAFETY: the caller's instruction set includes these instructions.
        unsafe {
            for (part, columns) in parts::<PARTS>(block).into_iter().enumerate().take(count) {
                _mm512_storeu_si512(to[part][output].as_mut_ptr().cast(), columns);
            }
        }
    }
}

/// Adds the products of a panel slice and rows of x. It does not depend on the weight format.
struct AddPanel<'a> {
    /// Terms per weight.
    parts: usize,
    panel: &'a [SplitWeights],
    /// The blocks of x, from the panel's first block of the first rows on.
    x: &'a [SplitBlock],
    /// Blocks per row of x.
    blocks: usize,
    /// Accumulators of each 16 rows, for both tiles of outputs.
    sums: &'a mut [[Sums<f32>; 2]],
}

impl Task for AddPanel<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        // SAFETY: the caller has checked that the machine has AMX.
        unsafe {
            match self.parts {
                1 => self.in_tiles::<1>(),
                2 => self.in_tiles::<2>(),
                _ => self.in_tiles::<3>(),
            }
        }
    }
}

impl AddPanel<'_> {
    /// For weights of `OF_WEIGHT` terms.
    #[inline(always)]
    unsafe fn in_tiles<const OF_WEIGHT: usize>(self) {
        let AddPanel { panel, x, blocks, sums, .. } = self;
        // SAFETY: the machine has AMX; x has all blocks of its rows.
        unsafe {
            let tiles = Tiles::set_up([(SIDE, ROW); 8]);
            for (pair, sums) in sums.chunks_mut(2).enumerate() {
                let of = |rows: usize| x[(2 * pair + rows) * blocks..].as_ptr();
                match sums {
                    [near, far] => add::<OF_WEIGHT, true>(&tiles, panel, [of(0), of(1)], near, far),
                    [last] => add::<OF_WEIGHT, false>(
                        &tiles,
                        panel,
                        [of(0); 2],
                        last,
                        &mut [Sums([[0.0; SIDE]; SIDE]); 2],
                    ),
                    _ => {}
                }
            }
            drop(tiles);
        }
    }
}

/// Adds the products with 16 rows of x, or 32 if `BOTH`. Tiles 0 to 3 are accumulators, 4 and 5 weights, 6
/// and 7 x.
#[inline(always)]
unsafe fn add<const OF_WEIGHT: usize, const BOTH: bool>(
    tiles: &Tiles,
    panel: &[SplitWeights],
    x: [*const SplitBlock; 2],
    near: &mut [Sums<f32>; 2],
    far: &mut [Sums<f32>; 2],
) {
    unsafe {
        tiles.load::<0, _>(&near[0], ROW);
        tiles.load::<1, _>(&near[1], ROW);
        if BOTH {
            tiles.load::<2, _>(&far[0], ROW);
            tiles.load::<3, _>(&far[1], ROW);
        }
        for (index, SplitWeights(weights)) in panel.iter().enumerate() {
            let of_near = &(*x[0].add(index)).0;
            let of_far = &(*x[1].add(index)).0;
            for (part, weights) in weights.iter().enumerate().take(OF_WEIGHT) {
                tiles.load::<4, _>(&raw const weights[0], ROW);
                tiles.load::<5, _>(&raw const weights[SIDE], ROW);
                for of_x in 0..PARTS - part {
                    tiles.load::<6, _>(&raw const of_near[of_x], ROW);
                    tiles.add_bf16::<0, 4, 6>();
                    tiles.add_bf16::<1, 5, 6>();
                    if BOTH {
                        tiles.load::<7, _>(&raw const of_far[of_x], ROW);
                        tiles.add_bf16::<2, 4, 7>();
                        tiles.add_bf16::<3, 5, 7>();
                    }
                }
            }
        }
        tiles.store::<0, _>(&mut near[0]);
        tiles.store::<1, _>(&mut near[1]);
        if BOTH {
            tiles.store::<2, _>(&mut far[0]);
            tiles.store::<3, _>(&mut far[1]);
        }
    }
}
