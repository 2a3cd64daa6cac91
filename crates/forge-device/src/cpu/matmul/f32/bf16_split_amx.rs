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
const TERMS: usize = 3;
/// Outputs of a panel: two tiles.
const PANEL: usize = 2 * SIDE;
/// Blocks per panel slice, chosen to fit in L1.
const DEPTH: usize = 8;
/// Rows of x that share a panel.
const ROWS: usize = 256;

/// A block of 16 rows of x: pairs of adjacent columns, for each term.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct SplitBlock([[[u32; SIDE]; BLOCK / 2]; TERMS]);

// SAFETY: integers without padding.
unsafe impl Pod for SplitBlock {}

/// A block of a panel: rows of 32 columns, for each term.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct SplitWeights([[[u16; BLOCK]; PANEL]; TERMS]);

/// Runs a thread's part of a phase, on a machine with AMX.
pub(crate) fn gemm<M: Matrix>(call: &KernelArgs<'_>, shape: &Linear) {
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
            let mut row_terms = [[[0_u32; BLOCK / 2]; SIDE]; TERMS];
            for (row, x) in x[rows * inputs..].chunks_exact(inputs).take(SIDE).enumerate() {
                let mut block = [0.0; BLOCK];
                let from = &x[column.min(inputs)..];
                match from.first_chunk::<BLOCK>() {
                    Some(whole) => block = *whole,
                    None => block[..from.len()].copy_from_slice(from),
                }
                // SAFETY: this runs on machines with AMX, which have AVX-512.
                unsafe {
                    for (term, pairs) in split_terms::<TERMS>(&block).into_iter().enumerate() {
                        _mm512_storeu_si512(row_terms[term][row].as_mut_ptr().cast(), pairs);
                    }
                }
            }
            // SAFETY: each item belongs to one thread.
            let [SplitBlock(to)] = (unsafe { to.part(item..item + 1) }) else {
                unreachable!("an item is one block")
            };
            for (to, row_terms) in to.iter_mut().zip(&row_terms) {
                // SAFETY: both are 16×16 tiles of words.
                unsafe {
                    S::transpose(
                        row_terms.each_ref().map(|row| row.as_ptr().cast()),
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
unsafe fn split_terms<const COUNT: usize>(block: &[f32; BLOCK]) -> [__m512i; COUNT] {
    // SAFETY: the caller's instruction set includes these instructions.
    unsafe {
        let upper_halves = _mm512_loadu_si512(UPPER_HALVES.as_ptr().cast());
        let upper = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
        let mut rest = [_mm512_loadu_ps(block.as_ptr()), _mm512_loadu_ps(block[16..].as_ptr())];
        let mut terms = [_mm512_setzero_si512(); COUNT];
        for term in &mut terms {
            let bits = [_mm512_castps_si512(rest[0]), _mm512_castps_si512(rest[1])];
            *term = _mm512_permutex2var_epi16(bits[0], upper_halves, bits[1]);
            for (rest, bits) in rest.iter_mut().zip(bits) {
                *rest = _mm512_sub_ps(*rest, _mm512_castsi512_ps(_mm512_and_si512(bits, upper)));
            }
        }
        terms
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
        let epilogue = EpilogueContext::new::<S>(call, shape, all);
        let mut panel = [SplitWeights([[[0; BLOCK]; PANEL]; TERMS]); DEPTH];
        let mut sums = vec![[Sums([[0.0; SIDE]; SIDE]); 2]; all.min(ROWS).div_ceil(SIDE)];
        let mut dequantized = Scratch::take(DEPTH * BLOCK);
        let panels = outputs.div_ceil(PANEL);
        // Item order: all panels of one group of rows, then the next group. Consecutive items share x.
        for item in call.claim_rows(all.div_ceil(ROWS) * panels, 1).flatten() {
            let (first_row, first_output) = (item / panels * ROWS, item % panels * PANEL);
            let (rows, panel_outputs) = ((all - first_row).min(ROWS), (outputs - first_output).min(PANEL));
            let x = &x[first_row / SIDE * blocks..];
            let sums = &mut sums[..rows.div_ceil(SIDE)];
            sums.fill([Sums([[0.0; SIDE]; SIDE]); 2]);
            for first_block in (0..blocks).step_by(DEPTH) {
                let panel = &mut panel[..(blocks - first_block).min(DEPTH)];
                // SAFETY: `find` checked that the matrix has all blocks of all outputs, and the machine has
                // AMX.
                unsafe {
                    for output in 0..panel_outputs {
                        let block = (first_output + output) * blocks + first_block;
                        dequantize::<S, M>(matrix, block, panel.len(), blocks, dequantized.as_mut_ptr());
                        split_blocks(M::BF16_TERMS, &dequantized, output, panel);
                    }
                }
                let task = AddPanel { terms: M::BF16_TERMS, panel, x: &x[first_block..], blocks, sums };
                // SAFETY: as above.
                unsafe { run_with_tiles(task) };
            }
            for row in 0..rows {
                let mut values = [0.0; PANEL];
                for (values, Sums(sums)) in values.chunks_exact_mut(SIDE).zip(&sums[row / SIDE]) {
                    for (value, output_sums) in values.iter_mut().zip(sums) {
                        *value = output_sums[row % SIDE];
                    }
                }
                let (values, no_partials) = (&mut values[..panel_outputs], &mut { PartialResults::NOTHING });
                // SAFETY: the panel's outputs of these rows belong to this thread.
                unsafe {
                    if row + ROWS_AHEAD < rows {
                        epilogue.prefetch_outputs::<S>(
                            first_row + row + ROWS_AHEAD,
                            first_output,
                            panel_outputs,
                        );
                    }
                    epilogue.outputs(first_row + row, first_output, values, no_partials);
                }
            }
        }
    }
}

/// Dequantizes `blocks` blocks to f32, and prefetches the blocks `ahead` blocks later.
#[inline(always)]
unsafe fn dequantize<S: Simd, M: Matrix>(matrix: M, first: usize, blocks: usize, ahead: usize, to: *mut f32) {
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
unsafe fn split_blocks(count: usize, dequantized: &[f32], output: usize, panel: &mut [SplitWeights]) {
    for (SplitWeights(to), block) in panel.iter_mut().zip(dequantized.as_chunks::<BLOCK>().0) {
        // SAFETY: the caller's instruction set includes these instructions.
        unsafe {
            for (term, columns) in split_terms::<TERMS>(block).into_iter().enumerate().take(count) {
                _mm512_storeu_si512(to[term][output].as_mut_ptr().cast(), columns);
            }
        }
    }
}

/// Adds the products of a panel slice and rows of x. It does not depend on the weight format.
struct AddPanel<'a> {
    /// Terms per weight.
    terms: usize,
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
            match self.terms {
                1 => self.in_tiles::<1>(),
                2 => self.in_tiles::<2>(),
                _ => self.in_tiles::<3>(),
            }
        }
    }
}

impl AddPanel<'_> {
    /// Adds the products with AMX tiles. `WEIGHT_TERMS` is the number of terms per weight.
    #[inline(always)]
    unsafe fn in_tiles<const WEIGHT_TERMS: usize>(self) {
        let AddPanel { panel, x, blocks, sums, .. } = self;
        // SAFETY: the machine has AMX; x has all blocks of its rows.
        unsafe {
            let tiles = Tiles::set_up([(SIDE, ROW); 8]);
            for (pair, sums) in sums.chunks_mut(2).enumerate() {
                let x_block = |rows: usize| x[(2 * pair + rows) * blocks..].as_ptr();
                match sums {
                    [first, second] => {
                        add::<WEIGHT_TERMS, true>(&tiles, panel, [x_block(0), x_block(1)], first, second)
                    }
                    [last] => add::<WEIGHT_TERMS, false>(
                        &tiles,
                        panel,
                        [x_block(0); 2],
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
unsafe fn add<const WEIGHT_TERMS: usize, const BOTH: bool>(
    tiles: &Tiles,
    panel: &[SplitWeights],
    x: [*const SplitBlock; 2],
    first: &mut [Sums<f32>; 2],
    second: &mut [Sums<f32>; 2],
) {
    unsafe {
        tiles.load::<0, _>(&first[0], ROW);
        tiles.load::<1, _>(&first[1], ROW);
        if BOTH {
            tiles.load::<2, _>(&second[0], ROW);
            tiles.load::<3, _>(&second[1], ROW);
        }
        for (index, SplitWeights(weights)) in panel.iter().enumerate() {
            let first_terms = &(*x[0].add(index)).0;
            let second_terms = &(*x[1].add(index)).0;
            for (term, weights) in weights.iter().enumerate().take(WEIGHT_TERMS) {
                tiles.load::<4, _>(&raw const weights[0], ROW);
                tiles.load::<5, _>(&raw const weights[SIDE], ROW);
                for x_term in 0..TERMS - term {
                    tiles.load::<6, _>(&raw const first_terms[x_term], ROW);
                    tiles.add_bf16::<0, 4, 6>();
                    tiles.add_bf16::<1, 5, 6>();
                    if BOTH {
                        tiles.load::<7, _>(&raw const second_terms[x_term], ROW);
                        tiles.add_bf16::<2, 4, 7>();
                        tiles.add_bf16::<3, 5, 7>();
                    }
                }
            }
        }
        tiles.store::<0, _>(&mut first[0]);
        tiles.store::<1, _>(&mut first[1]);
        if BOTH {
            tiles.store::<2, _>(&mut second[0]);
            tiles.store::<3, _>(&mut second[1]);
        }
    }
}
