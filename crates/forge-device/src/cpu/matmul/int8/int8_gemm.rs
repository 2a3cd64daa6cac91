//! int8 GEMM for prefill: `y = W x` with quantized weights and activations quantized to int8.
//!
//! In the first phase, threads quantize x into a shared workspace. The largest magnitude of each 32 columns
//! becomes 127 or -127. In the second phase, each thread computes panels of outputs
//! ([`crate::cpu::matmul::int8::int8_panel`]). A block's integer dot product is exact with every instruction
//! set. Blocks are added in order, with each operation rounded separately:
//!
//! ```text
//! y = y + (sum of products * scale + sum of x's quants * offset) * scale of x
//! ```
//!
//! Where each half of a block has its own scale, there are two such sums ([`crate::cpu::matmul::int8::scaled_products`]).
//! A row's result is therefore batch-invariant and bitwise identical on all machines with int8 products. Activation quantization
//! is the only loss: an error of at most 1/254 of the largest of 32 activations. `--f32-activations` avoids
//! it ([`crate::cpu::linear()`]). Up to [`GEMV_MAX_ROWS`](crate::cpu::matmul::gemv::GEMV_MAX_ROWS) rows use
//! [`crate::cpu::matmul::int8::int8_gemv`] or [`crate::cpu::matmul::int8::repacked_gemv`] instead.

use crate::cpu::device::kernel_args::{KernelArgs, Output, Pod};
use crate::cpu::device::scratch::Scratch;
use crate::cpu::format::matrix::{AT_ONCE, BLOCK, Matrix};
use crate::cpu::matmul::epilogue::EpilogueContext;
use crate::cpu::matmul::int8::int8_panel::{Panels, ROWS};
use crate::cpu::matmul::int8::packed_panel::{DEPTH, EMPTY, PANEL};
use crate::cpu::matmul::int8::quantize::encode;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::{Simd, no_int8};
use forge_ops::Linear;
use std::marker::PhantomData;

/// Rows of x per group in memory.
pub(crate) const TOGETHER: usize = 16;

/// 32 columns of a group of 16 quantized rows of x. Groups are stored block by block; rows past the last one
/// are unspecified.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct BlockScales {
    pub(crate) codes: [[i8; BLOCK]; TOGETHER],
    pub(crate) scales: [f32; TOGETHER],
    /// Sums of the quants in each half block.
    pub(crate) half_block_sums: [[i16; 2]; TOGETHER],
}

// SAFETY: numbers without padding.
unsafe impl Pod for BlockScales {}

/// Quantized rows of x.
#[derive(Clone, Copy)]
pub(crate) struct QuantizedBatch<'a> {
    pub(crate) x: &'a [BlockScales],
    /// Stride between groups of rows, in blocks.
    pub(crate) pitch: usize,
}

impl<'a> QuantizedBatch<'a> {
    /// The `blocks` blocks from `first` on, of the group that contains `row`.
    #[inline(always)]
    pub(crate) fn of(&self, row: usize, first: usize, blocks: usize) -> &'a [BlockScales] {
        &self.x[row / TOGETHER * self.pitch + first..][..blocks]
    }
}

/// Runs this thread's part of a phase.
pub(crate) fn products<M: Matrix>(call: &KernelArgs<'_>, shape: &Linear) {
    let (rows, inputs) = (call.scalar(0), shape.inputs);
    let blocks = inputs.div_ceil(M::WHOLE * BLOCK) * M::WHOLE;
    let groups = rows.div_ceil(TOGETHER);
    let (coded, pitch) = call.row_workspace::<BlockScales>(groups, blocks);
    if call.phase_index() == 0 {
        encode_rows(call, call.input("x", rows * inputs), inputs, blocks, (&coded, pitch));
        return call.request_phase();
    }
    // SAFETY: the previous phase wrote all that is read, and no thread writes it in this phase.
    let x = QuantizedBatch { x: unsafe { coded.whole() }, pitch };
    call.level().run(Int8Gemm::<M> { call, shape, x, blocks, format: PhantomData });
}

/// Quantizes this thread's part of the rows of x, which have `blocks` blocks. Groups of rows have a stride of
/// `pitch` in `to`.
pub(crate) fn encode_rows(
    call: &KernelArgs<'_>,
    x: &[f32],
    inputs: usize,
    blocks: usize,
    (to, pitch): (&Output<'_, BlockScales>, usize),
) {
    let parts = blocks.div_ceil(AT_ONCE);
    for item in call.static_range((x.len() / inputs).div_ceil(TOGETHER) * parts, 1) {
        let (rows, first) = (item / parts, item % parts * AT_ONCE);
        let x = &x[rows * TOGETHER * inputs..];
        let depth = (blocks - first).min(AT_ONCE);
        // SAFETY: each part belongs to one thread.
        let to = unsafe { to.part(rows * pitch + first..rows * pitch + first + depth) };
        call.level().run(QuantizeRows { x, inputs, first, to });
    }
}

/// Quantizes some blocks of up to 16 rows.
struct QuantizeRows<'a> {
    /// From the first row on.
    x: &'a [f32],
    inputs: usize,
    /// The first block in each row.
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
                    let (filled, padding) = padded.split_at_mut(from.len());
                    filled.copy_from_slice(from);
                    padding.fill(0.0);
                    padded
                });
            }
            // SAFETY: this runs compiled for its instruction set.
            let of_blocks = unsafe { encode::<S>(&blocks, &mut to.codes) };
            to.scales = of_blocks.scales;
            for (row, to) in to.half_block_sums.iter_mut().enumerate() {
                let of_first = of_blocks.half_totals[row];
                // A sum of 16 quants fits in i16.
                *to = [of_first, of_blocks.totals[row] - of_first]
                    .map(|total| unsafe { total.to_int_unchecked() });
            }
        }
    }
}

/// int8 GEMM over quantized rows.
struct Int8Gemm<'a, M> {
    call: &'a KernelArgs<'a>,
    shape: &'a Linear,
    x: QuantizedBatch<'a>,
    /// Blocks per row of the matrix, and of x.
    blocks: usize,
    format: PhantomData<M>,
}

impl<M: Matrix> Task for Int8Gemm<'_, M> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        if !S::HAS_INT8 {
            no_int8();
        }
        let Int8Gemm { call, shape, x, blocks, .. } = self;
        let (all, outputs) = (call.scalar(0), shape.outputs);
        let matrix = M::find(call, "weight", outputs, blocks);
        let is_repacked = M::BITS > 0 && call.is_repacked("weight_codes");
        let matrix = Panels { level: call.level(), matrix, is_repacked, blocks, x };
        let finish = EpilogueContext::new::<S>(call, shape, all);
        let mut panel = [EMPTY; DEPTH];
        let mut sums = Scratch::take(all.min(ROWS).next_multiple_of(TOGETHER) * PANEL);
        let numbers: Vec<usize> = (0..all).collect();
        let panels = outputs.div_ceil(PANEL);
        // Item order: all panels of one group of rows, then the next group. Consecutive items share x, and
        // threads own rows.
        let of_item = all.div_ceil(call.workers()).next_multiple_of(TOGETHER).clamp(ROWS / 2, ROWS);
        for item in call.claim_rows(all.div_ceil(of_item) * panels, 1).flatten() {
            let (first_row, first_output) = (item / panels * of_item, item % panels * PANEL);
            let rows = &numbers[first_row..all.min(first_row + of_item)];
            let of_panel = (outputs - first_output).min(PANEL);
            // SAFETY: `find` checked that the matrix has all blocks of all outputs.
            unsafe { matrix.products::<S>((first_output, of_panel), rows, &mut panel, &mut sums) };
            // SAFETY: the panel's outputs of these rows belong to this thread.
            unsafe { finish.panel(rows, (first_output, of_panel), None, (&mut sums, PANEL)) };
        }
    }
}
