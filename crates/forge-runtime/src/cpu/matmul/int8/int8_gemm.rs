//! y = W x for several rows in whole numbers: where weights are codes of bytes, rows of x are made such, too.
//!
//! In a first round the threads encode x into room that they share: of each 32 columns the largest becomes 127 or -127, and the
//! others whole parts of it. In the second each takes panels of outputs ([`crate::cpu::matmul::int8::int8_panel`]). A block's product is a sum of
//! products of codes, which is exact, whatever instructions make it. Blocks are added first to last:
//!
//! ```text
//! y = y + (sum of products * scale + sum of x's codes * offset) * scale of x
//! ```
//!
//! each operation rounded by itself. So a row comes to the same, to the bit, on every machine, however many rows come with it.
//! What is lost is what a code of x loses, 1/254 of the largest of its 32 at most; `--f32-activations` loses nothing ([`crate::cpu::matmul::linear()`]).
//! A few rows never come here: see [`crate::cpu::matmul::int8::int8_gemv`] and [`crate::cpu::matmul::int8::repacked_gemv`].

use crate::cpu::device::kernel_args::{KernelArgs, Output, Pod};
use crate::cpu::device::scratch::Scratch;
use crate::cpu::format::matrix::{AT_ONCE, BLOCK, Matrix};
use crate::cpu::matmul::epilogue::EpilogueContext;
use crate::cpu::matmul::int8::int8_panel::{DEPTH, EMPTY, PANEL, Panels, ROWS};
use crate::cpu::matmul::int8::quantize::encode;
use crate::cpu::matmul::linear::Linear;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
use std::marker::PhantomData;

/// Rows of x that lie together.
pub(crate) const TOGETHER: usize = 16;

/// 32 columns of sixteen rows of x. Sixteen rows lie block after block, then the next sixteen; past the last row is anything.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct BlockScales {
    pub(crate) codes: [[i8; BLOCK]; TOGETHER],
    pub(crate) scales: [f32; TOGETHER],
    pub(crate) totals: [i32; TOGETHER],
}

// SAFETY: numbers without gaps.
unsafe impl Pod for BlockScales {}

/// Rows of x, encoded.
#[derive(Clone, Copy)]
pub(crate) struct QuantizedBatch<'a> {
    pub(crate) x: &'a [BlockScales],
    /// From sixteen rows to the next: their blocks at least.
    pub(crate) pitch: usize,
}

impl<'a> QuantizedBatch<'a> {
    /// So many blocks, from `first` on, of the sixteen rows of which a row is one.
    #[inline(always)]
    pub(crate) fn of(&self, row: usize, first: usize, blocks: usize) -> &'a [BlockScales] {
        &self.x[row / TOGETHER * self.pitch + first..][..blocks]
    }
}

/// Runs this thread's share of a round.
pub(crate) fn products<M: Matrix>(call: &KernelArgs<'_>, shape: &Linear) {
    let (rows, inputs) = (call.scalar(0), shape.inputs);
    let blocks = inputs.div_ceil(M::WHOLE * BLOCK) * M::WHOLE;
    let sixteens = rows.div_ceil(TOGETHER);
    let (coded, pitch) = call.room_of_rows::<BlockScales>(sixteens, blocks);
    if call.round() == 0 {
        encode_rows(call, call.input("x", rows * inputs), inputs, blocks, (&coded, pitch));
        return call.another_round();
    }
    // SAFETY: all that is read of them was written in the round before, and nobody writes them in this one.
    let x = QuantizedBatch { x: unsafe { coded.whole() }, pitch };
    call.level().run(Int8Gemm::<M> { call, shape, x, blocks, format: PhantomData });
}

/// Encodes this thread's share of the rows of x, of so many blocks: sixteen rows are `pitch` of `to` from the next.
pub(crate) fn encode_rows(
    call: &KernelArgs<'_>,
    x: &[f32],
    inputs: usize,
    blocks: usize,
    (to, pitch): (&Output<'_, BlockScales>, usize),
) {
    let parts = blocks.div_ceil(AT_ONCE);
    for item in call.own((x.len() / inputs).div_ceil(TOGETHER) * parts, 1) {
        let (rows, first) = (item / parts, item % parts * AT_ONCE);
        let x = &x[rows * TOGETHER * inputs..];
        let depth = (blocks - first).min(AT_ONCE);
        // SAFETY: every part is one thread's.
        let to = unsafe { to.part(rows * pitch + first..rows * pitch + first + depth) };
        call.level().run(QuantizeRows { x, inputs, first, to });
    }
}

/// Makes codes of a part of up to sixteen rows.
struct QuantizeRows<'a> {
    /// From the first of them.
    x: &'a [f32],
    inputs: usize,
    /// The first block of each.
    first: usize,
    to: &'a mut [BlockScales],
}

impl Task for QuantizeRows<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let QuantizeRows { x, inputs, first, to } = self;
        let rows = (x.len() / inputs).min(TOGETHER);
        let mut padded = [[0.0; BLOCK]; TOGETHER];
        for (index, to) in to.iter_mut().enumerate() {
            let column = (first + index) * BLOCK;
            let mut blocks = [&[0.0; BLOCK]; TOGETHER];
            for (row, padded) in padded.iter_mut().enumerate().take(rows) {
                let from = &x[row * inputs + column.min(inputs)..(row + 1) * inputs];
                blocks[row] = from.first_chunk().unwrap_or_else(|| {
                    let (some, none) = padded.split_at_mut(from.len());
                    some.copy_from_slice(from);
                    none.fill(0.0);
                    padded
                });
            }
            // SAFETY: this runs by its level.
            let of_blocks = unsafe { encode::<S>(&blocks, &mut to.codes) };
            to.scales = of_blocks.scales;
            // Sums of 32 codes are small.
            to.totals = of_blocks.totals.map(|total| unsafe { total.to_int_unchecked() });
        }
    }
}

/// A projection of encoded rows.
struct Int8Gemm<'a, M> {
    call: &'a KernelArgs<'a>,
    shape: &'a Linear,
    x: QuantizedBatch<'a>,
    /// Of a row of the matrix, and of x.
    blocks: usize,
    format: PhantomData<M>,
}

impl<M: Matrix> Task for Int8Gemm<'_, M> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Int8Gemm { call, shape, x, blocks, .. } = self;
        let (all, outputs) = (call.scalar(0), shape.outputs);
        let matrix = M::find(call, "weight", outputs, blocks);
        let in_strips = M::STRIPS && call.in_strips("weight_codes");
        let matrix = Panels { level: call.level(), matrix, in_strips, blocks, x };
        let finish = EpilogueContext::new::<S>(call, shape, all);
        let mut panel = [EMPTY; DEPTH];
        let mut sums = Scratch::take(all.min(ROWS).next_multiple_of(TOGETHER) * PANEL);
        let numbers: Vec<usize> = (0..all).collect();
        let panels = outputs.div_ceil(PANEL);
        // All panels of one part of the rows, then the next part: neighbours in time share their x, and threads have rows of their own.
        let of_item = all.div_ceil(call.workers()).next_multiple_of(TOGETHER).clamp(ROWS / 2, ROWS);
        for item in call.share_rows(all.div_ceil(of_item) * panels, 1).flatten() {
            let (first_row, first_output) = (item / panels * of_item, item % panels * PANEL);
            let rows = &numbers[first_row..all.min(first_row + of_item)];
            let of_panel = (outputs - first_output).min(PANEL);
            // SAFETY: `find` saw that the matrix has all blocks of all outputs.
            unsafe { matrix.products::<S>((first_output, of_panel), rows, &mut panel, &mut sums) };
            // SAFETY: a panel's outputs of these rows are this thread's.
            unsafe { finish.panel(rows, (first_output, of_panel), None, (&mut sums, PANEL)) };
        }
    }
}
