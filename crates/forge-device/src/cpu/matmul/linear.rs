//! Linear layers: `y = W x` with bias and epilogue, for one row or many.
//!
//! Scalars: rows[, first]. Buffers: the weight's planes[, bias], x[, x_gain][, squares][, factors], y[, gain,
//! gained, squares_out][, candidates].
//!
//! - One or a few rows (GEMV): each weight is read once, and memory bandwidth is the limit.
//! - More rows (GEMM): panels of weights are decoded once into a cache-sized buffer. A group of rows of x
//!   stays in cache for all panels.
//!
//! Rows of a batch are batch-invariant. For quantized weights, activations are quantized to int8
//! ([`crate::cpu::matmul::int8::int8_gemm`], and for a few rows [`crate::cpu::matmul::int8::int8_gemv`]),
//! unless the device is exact. Otherwise f32 products are added column by column ([`gemm`]). The decode
//! schedule may add in another order ([`RowMajor`]). Repacked weights use
//! [`crate::cpu::matmul::int8::repacked_gemv`].

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::device::scratch::Scratch;
use crate::cpu::format::matrix::{BLOCK, Matrix, Scaling};
use crate::cpu::format::weight_format::WeightFormat;
use crate::cpu::matmul::epilogue::EpilogueContext;
#[cfg(target_arch = "x86_64")]
use crate::cpu::matmul::f32::bf16_split_amx;
use crate::cpu::matmul::f32::gemm;
use crate::cpu::matmul::f32::gemm::PANEL;
use crate::cpu::matmul::gemv::{Blocks, GEMV_MAX_ROWS, PerOutput, RowMajor, Sequential, Transposed};
use crate::cpu::matmul::int8::int8_gemm;
use crate::cpu::matmul::int8::quantized_rows::{encoded_rows, keep};
use crate::cpu::matmul::int8::repacked_gemv;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
use forge_ops::{Epilogue, Linear, Quantize};
use std::marker::PhantomData;

/// Rows of x that share a panel; a quarter of it if there are too few panels for all threads.
const ROWS: usize = 512;
/// Panels per thread that suffice for load balance.
const ENOUGH_PANELS: usize = 8;

/// Minimum row length in blocks for reading several rows at once. Shorter rows are read one after another as
/// one stream, because several streams would end before hardware prefetch takes effect.
const MIN_LONG_ROW_BLOCKS: usize = 64;

/// Does nothing: [`linear`] quantizes x itself, and the CPU has no decode batches.
pub fn quantize(_call: &KernelArgs<'_>, _shape: &Quantize) {}

/// Runs this thread's part of a linear layer with weight format `F`.
pub fn linear<F: WeightFormat>(call: &KernelArgs<'_>, shape: &Linear) {
    F::linear(call, shape);
}

pub(crate) fn products<M: Matrix>(call: &KernelArgs<'_>, shape: &Linear) {
    let is_repacked = M::BITS > 0 && call.is_repacked("weight_codes");
    let gemv_rows = if is_repacked { call.level().repacked_rows() } else { GEMV_MAX_ROWS };
    if is_encoded::<M>(call, shape) && call.scalar(0) > gemv_rows {
        return int8_gemm::products::<M>(call, shape);
    }
    if is_repacked {
        return call.level().run(repacked_gemv::RepackedGemv::<M>::new(call, shape));
    }
    #[cfg(target_arch = "x86_64")]
    if call.level().has_tiles() && !call.is_decode() && !is_encoded::<M>(call, shape) {
        return bf16_split_amx::gemm::<M>(call, shape);
    }
    call.level().run(LinearTask::<M> { call, shape, format: PhantomData });
}

/// Whether activations are quantized.
#[inline(always)]
fn is_encoded<M: Matrix>(call: &KernelArgs<'_>, shape: &Linear) -> bool {
    M::BITS > 0 && !shape.chooses && !call.exact()
}

struct LinearTask<'a, M> {
    call: &'a KernelArgs<'a>,
    shape: &'a Linear,
    format: PhantomData<M>,
}

impl<M: Matrix> Task for LinearTask<'_, M> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Linear { outputs, inputs, .. } = *self.shape;
        let call = self.call;
        let rows = call.scalar(0);
        let blocks = inputs.div_ceil(M::WHOLE * BLOCK) * M::WHOLE;
        let single_row_only = self.shape.norm.is_some()
            || self.shape.own_norm.is_some()
            || matches!(
                self.shape.epilogue,
                Epilogue::AddSquares(_) | Epilogue::Best { .. } | Epilogue::Multiply { .. }
            );
        assert!(rows == 1 || !single_row_only, "{:?} supports one row, but there are {rows}", self.shape);
        let gains = self.shape.own_norm.is_some_and(|norm| norm.gain);
        let padded = if inputs == blocks * BLOCK && !gains { 0 } else { rows * blocks * BLOCK };
        let panel = match S::HAS_VARIANTS && rows <= GEMV_MAX_ROWS {
            true => 0,
            false => gemm::scratch_len(rows.min(ROWS)),
        };
        let mut scratch = Scratch::take(padded.next_multiple_of(16) + panel);
        let (x_padded, scratch) = scratch.split_at_mut(padded.next_multiple_of(16));
        let x = prepared_x(call, self.shape, rows, blocks * BLOCK, x_padded);
        let work = LinearCall {
            call,
            matrix: M::find(call, "weight", outputs, blocks),
            outputs,
            blocks,
            x,
            finish: EpilogueContext::new::<S>(call, self.shape, rows),
        };
        let is_short = blocks < MIN_LONG_ROW_BLOCKS;
        // With unquantized weights, several rows at once are slower.
        let is_in_order = is_short || M::SCALING == Scaling::Done && call.level().streams().is_one();
        if S::HAS_INT8 && is_encoded::<M>(call, self.shape) && rows <= GEMV_MAX_ROWS {
            let encoded = encoded_rows::<S>(x, blocks * BLOCK);
            let x = &encoded[..rows];
            // SAFETY: as below.
            unsafe {
                if S::HAS_VARIANTS {
                    match rows {
                        1 if is_short => work.few_rows::<S, 1, 1>(PerOutput(Blocks(x))),
                        1 => work.few_rows::<S, 4, 1>(PerOutput(Blocks(x))),
                        _ => work.few_rows::<S, 2, GEMV_MAX_ROWS>(PerOutput(Blocks(x))),
                    }
                } else {
                    work.few_rows::<S, 1, GEMV_MAX_ROWS>(PerOutput(Blocks(x)));
                }
            }
            return keep(encoded);
        }
        // SAFETY: `find` checked that the matrix is whole, and x has `blocks * 32` columns a row; threads
        // write different outputs.
        unsafe {
            if rows == 1 && call.is_decode() {
                if S::HAS_VARIANTS && !is_in_order {
                    work.few_rows::<S, 4, 1>(PerOutput(RowMajor));
                } else {
                    work.few_rows::<S, 1, 1>(Sequential);
                }
            } else if S::HAS_VARIANTS && M::IS_PLAIN && rows <= 3 {
                match rows {
                    1 => work.few_rows::<S, 1, 1>(Transposed),
                    2 => work.few_rows::<S, 1, 2>(Transposed),
                    _ => work.few_rows::<S, 1, 3>(Transposed),
                }
            } else if S::HAS_VARIANTS && rows <= GEMV_MAX_ROWS {
                work.few_rows::<S, 1, GEMV_MAX_ROWS>(Transposed);
            } else if S::HAS_VARIANTS && rows <= S::TILE.min(8) {
                // Limited by the latency of accumulation: eight rows take as long as five.
                work.few_rows::<S, 1, 8>(Transposed);
            } else {
                work.panels::<S>(scratch);
            }
        }
    }
}

/// A linear layer of one dispatch.
pub(crate) struct LinearCall<'a, M> {
    pub(crate) call: &'a KernelArgs<'a>,
    pub(crate) matrix: M,
    pub(crate) outputs: usize,
    /// Blocks per row of the matrix, and of x.
    pub(crate) blocks: usize,
    /// Rows of x, padded to whole blocks.
    pub(crate) x: &'a [f32],
    pub(crate) finish: EpilogueContext<'a>,
}

impl<M: Matrix> LinearCall<'_, M> {
    /// GEMM for any number of rows.
    #[inline(always)]
    unsafe fn panels<S: Simd>(&self, scratch: &mut [f32]) {
        let LinearCall { call, matrix, outputs, blocks, x, .. } = *self;
        let x: Vec<_> = x.chunks_exact(blocks * BLOCK).map(<[f32]>::as_ptr).collect();
        let numbers: Vec<usize> = (0..x.len()).collect();
        let panels = outputs.div_ceil(PANEL);
        let most = if panels < ENOUGH_PANELS * call.workers() { ROWS / 4 } else { ROWS };
        // Item order: all panels of one group of rows, then the next group. Consecutive items share x.
        // Weights are decoded once per group, so groups are as large as load balance allows.
        let of_item = x.len().clamp(ROWS / 4, most);
        for item in call.claim_rows(x.len().div_ceil(of_item) * panels, 1).flatten() {
            let (first_row, first_output) = (item / panels * of_item, item % panels * PANEL);
            let rows = &x[first_row..x.len().min(first_row + of_item)];
            let of_panel = (first_output, (outputs - first_output).min(PANEL));
            // SAFETY: the caller's contract.
            unsafe {
                let of_matrix = (matrix, blocks);
                let sums = gemm::products::<S, M>(call.level(), of_matrix, of_panel, rows, scratch);
                let rows = &numbers[first_row..first_row + rows.len()];
                self.finish.panel(rows, of_panel, None, (sums, PANEL));
            }
        }
    }
}

/// Rows of x as they are multiplied: padded to `columns`, whole groups, and multiplied by the gain of an
/// inline norm.
#[inline(always)]
pub(crate) fn prepared_x<'a>(
    call: &KernelArgs<'a>,
    shape: &Linear,
    rows: usize,
    columns: usize,
    padded_x: &'a mut [f32],
) -> &'a [f32] {
    let x = call.input::<f32>("x", rows * shape.inputs);
    if !shape.own_norm.is_some_and(|norm| norm.gain) {
        return whole_rows(x, shape.inputs, columns, padded_x);
    }
    let gain = call.input::<f32>("x_gain", shape.inputs);
    padded_x[shape.inputs..].fill(0.0);
    for ((to, x), gain) in padded_x.iter_mut().zip(x).zip(gain) {
        *to = x * gain;
    }
    padded_x
}

/// Rows of x with the length of weight rows: padded with zeros in `padded_x`, or unchanged if no padding is
/// needed.
#[inline(always)]
pub(crate) fn whole_rows<'a>(
    x: &'a [f32],
    inputs: usize,
    columns: usize,
    padded_x: &'a mut [f32],
) -> &'a [f32] {
    if inputs == columns {
        return x;
    }
    whole_rows_to(x, inputs, columns, padded_x);
    padded_x
}

/// Copies rows of `inputs` elements to rows of `columns` elements, padded with zeros.
pub(crate) fn whole_rows_to(x: &[f32], inputs: usize, columns: usize, padded_x: &mut [f32]) {
    for (to, from) in padded_x.chunks_exact_mut(columns).zip(x.chunks_exact(inputs)) {
        to[..inputs].copy_from_slice(from);
        to[inputs..].fill(0.0);
    }
}
