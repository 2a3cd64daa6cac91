//! Experts of many rows (prefill): grouping of rows by expert, grouped GEMM, and the weighted sum per row.
//!
//! A pair is `row * chosen + index` of a row and an index among its experts. `pairs` lists the pairs of each
//! expert contiguously, in row order. `tiles` is `[tiles, 3]`: expert, first pair, number of pairs. Adjacent
//! tiles of an expert are computed together, so that each panel of its matrix is decoded or packed once
//! ([`crate::cpu::matmul::int8::int8_gemm`]).
//!
//! Results are batch-invariant, and the same as with a few rows: products are added in the same order, and a
//! row's experts in the order of their indices.

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::device::scratch::Scratch;
use crate::cpu::format::expert_stack::ExpertStack;
use crate::cpu::format::matrix::{BLOCK, Matrix};
use crate::cpu::format::weight_format::WeightFormat;
use crate::cpu::matmul::epilogue::EpilogueContext;
use crate::cpu::matmul::f32::gemm;
use crate::cpu::matmul::int8::int8_gemm;
use crate::cpu::matmul::int8::int8_gemm::{BlockScales, QuantizedBatch, encode_rows};
use crate::cpu::matmul::int8::int8_panel::Panels;
use crate::cpu::matmul::int8::packed_panel;
use crate::cpu::matmul::linear::whole_rows;
use crate::cpu::moe::route::MOST;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
use forge_ops::Linear;
use forge_ops::{Epilogue, ExpertsCombine, ExpertsGroup, ExpertsTiles};
use std::marker::PhantomData;

/// Maximum number of tiles.
fn most_tiles(rows: usize, shape: &ExpertsGroup) -> usize {
    (rows * shape.chosen + shape.experts * (shape.tile_rows - 1)) / shape.tile_rows
}

/// Groups all pairs by expert, on one thread.
pub fn experts_group(call: &KernelArgs<'_>, shape: &ExpertsGroup) {
    let ExpertsGroup { experts, chosen, tile_rows } = *shape;
    let rows = call.scalar(0);
    let routes = call.input::<u32>("routes", rows * 2 * chosen);
    let (pairs, tiles) = (rows * chosen, 3 * most_tiles(rows, shape));
    for _ in call.claim(1, 1).flatten() {
        // SAFETY: the only item belongs to this thread.
        let (pairs, tiles) = unsafe {
            (
                call.output::<u32>("pairs", pairs).part(0..pairs),
                call.output::<u32>("tiles", tiles).part(0..tiles),
            )
        };
        let of = |pair: usize| routes[pair / chosen * 2 * chosen + pair % chosen] as usize;
        // Index of each expert's next pair.
        let mut next = vec![0; experts + 1];
        for pair in 0..pairs.len() {
            assert!(
                of(pair) < experts,
                "a row is routed to expert {}, but there are {experts} experts",
                of(pair)
            );
            next[of(pair) + 1] += 1;
        }
        tiles.fill(0);
        let mut free = tiles.chunks_exact_mut(3);
        for expert in 0..experts {
            let (first, count) = (next[expert], next[expert + 1]);
            for begin in (0..count).step_by(tile_rows) {
                let tile = [expert, first + begin, (count - begin).min(tile_rows)];
                let to = free.next().expect("the buffer holds the maximum number of tiles");
                to.iter_mut().zip(tile).for_each(|(to, number)| *to = number as u32);
            }
            next[expert + 1] += first;
        }
        for pair in 0..pairs.len() {
            pairs[next[of(pair)]] = pair as u32;
            next[of(pair)] += 1;
        }
    }
}

/// Runs this thread's part of the grouped GEMM, with weight format `F`.
pub fn experts_tiles<F: WeightFormat>(call: &KernelArgs<'_>, shape: &ExpertsTiles) {
    F::experts_tiles(call, shape);
}

pub(crate) fn products<M: Matrix>(call: &KernelArgs<'_>, shape: &ExpertsTiles) {
    call.level().run(Products::<M> { call, shape, format: PhantomData });
}

struct Products<'a, M> {
    call: &'a KernelArgs<'a>,
    shape: &'a ExpertsTiles,
    format: PhantomData<M>,
}

/// Rows of x that share a panel.
const ROWS: usize = 128;

/// Merges adjacent tiles of one expert into runs of at most [`ROWS`] pairs: expert, first pair, number of
/// pairs.
fn runs(tiles: &[u32]) -> Vec<[usize; 3]> {
    let mut runs: Vec<[usize; 3]> = Vec::new();
    for tile in tiles.chunks_exact(3) {
        let [expert, first, count] = [0, 1, 2].map(|i| tile[i] as usize);
        match runs.last_mut() {
            _ if count == 0 => break,
            Some(last) if last[0] == expert && last[2] + count <= ROWS => last[2] += count,
            _ => runs.push([expert, first, count]),
        }
    }
    runs
}

impl<M: Matrix> Task for Products<'_, M> {
    /// Computes panel by panel of each expert's matrix.
    #[inline(always)]
    fn run<S: Simd>(self) {
        let ExpertsTiles {
            experts, chosen, outputs, inputs, record, bias, gating, tile_rows, format, ..
        } = *self.shape;
        let epilogue = gating.map_or(Epilogue::Store, Epilogue::Gate);
        let call = self.call;
        let rows = call.scalar(0);
        let most = most_tiles(rows, &ExpertsGroup { experts, chosen, tile_rows });
        let pairs = call.input::<u32>("pairs", rows * chosen);
        let mut runs = runs(call.input::<u32>("tiles", 3 * most));
        let mut numbers: Vec<usize> = runs.iter().map(|[expert, ..]| *expert).collect();
        numbers.dedup();
        let ready: Vec<usize> =
            call.ready_experts(&numbers).places.into_iter().map(|place| numbers[place]).collect();
        runs.retain(|[expert, ..]| ready.binary_search(expert).is_ok());
        // Number of pairs that share a row of x.
        let pairs_per_x = if gating.is_none() { 1 } else { chosen };
        let of_x = rows * chosen / pairs_per_x;
        let blocks = inputs.div_ceil(M::WHOLE * BLOCK) * M::WHOLE;
        let x = call.input::<f32>("x", of_x * inputs);
        let is_encoded = S::HAS_INT8 && M::BITS > 0 && !call.exact();
        let coded =
            is_encoded.then(|| call.workspace::<BlockScales>(of_x.div_ceil(int8_gemm::TOGETHER) * blocks));
        if let Some(coded) = coded.filter(|_| call.phase_index() == 0) {
            encode_rows(call, x, inputs, blocks, (&coded, blocks));
            return call.request_phase();
        }
        if runs.is_empty() {
            return;
        }
        let padded = if inputs == blocks * BLOCK || is_encoded { 0 } else { of_x * blocks * BLOCK };
        // Outputs per panel.
        let width = if is_encoded { packed_panel::PANEL } else { gemm::PANEL };
        let of_panels = if is_encoded { ROWS * width } else { gemm::scratch_len(ROWS) };
        let mut scratch = Scratch::take(padded.next_multiple_of(16) + of_panels);
        let (padded_x, of_panels) = scratch.split_at_mut(padded.next_multiple_of(16));
        let mut filled = [packed_panel::EMPTY; packed_panel::DEPTH];
        let bias = if bias { call.input::<f32>("bias", experts * outputs) } else { &[] };
        let stack = ExpertStack::<M>::find(call, (experts, record), outputs, blocks);
        // SAFETY: rows were quantized in the first phase, and no thread writes them in this one.
        let coded = coded.map(|coded| QuantizedBatch { x: unsafe { coded.whole() }, pitch: blocks });
        let x = if is_encoded { x } else { whole_rows(x, inputs, blocks * BLOCK, &mut padded_x[..padded]) };
        let linear = Linear {
            format,
            outputs,
            inputs,
            norm: None,
            own_norm: None,
            bias: false,
            unary: None,
            epilogue,
            chooses: false,
        };
        let finish = EpilogueContext::new::<S>(call, &linear, rows * chosen);
        let count_of_panels = outputs.div_ceil(width);
        for item in call.claim(runs.len() * count_of_panels, 1).flatten() {
            let [expert, first, count] = runs[item / count_of_panels];
            let own = &pairs[first..first + count];
            let first_output = item % count_of_panels * width;
            let of_panel = (outputs - first_output).min(width);
            let matrix = stack.of(call.matrix_of(expert));
            let (mut pairs, mut numbers) = ([0; ROWS], [0; ROWS]);
            for ((pair, number), own) in pairs.iter_mut().zip(&mut numbers).zip(own) {
                (*pair, *number) = (*own as usize, *own as usize / pairs_per_x);
            }
            let (rows, of_panel_rows) = (&numbers[..count], (first_output, of_panel));
            // SAFETY: `find` checked that the matrices are whole, and x has `blocks` blocks a row; panels and
            // sums hold `width` outputs.
            let sums = unsafe {
                match coded {
                    Some(x) => {
                        let is_repacked = call.is_expert_repacked("weight_codes", expert);
                        let panels = Panels { level: call.level(), matrix, is_repacked, blocks, x };
                        panels.products::<S>(of_panel_rows, rows, &mut filled, of_panels);
                        &mut *of_panels
                    }
                    None => {
                        let rows: Vec<_> =
                            rows.iter().map(|row| x[row * blocks * BLOCK..].as_ptr()).collect();
                        gemm::products::<S, M>(
                            call.level(),
                            (matrix, blocks),
                            of_panel_rows,
                            &rows,
                            of_panels,
                        )
                    }
                }
            };
            let bias = bias.get(expert * outputs + first_output..).unwrap_or_default();
            // SAFETY: these outputs of these pairs belong to this thread.
            unsafe { finish.panel(&pairs[..count], of_panel_rows, Some(bias), (sums, width)) };
        }
    }
}

/// Runs this thread's part of the weighted sum.
pub fn experts_combine(call: &KernelArgs<'_>, shape: &ExpertsCombine) {
    call.level().run(Join { call, shape });
}

struct Join<'a> {
    call: &'a KernelArgs<'a>,
    shape: &'a ExpertsCombine,
}

impl Task for Join<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let ExpertsCombine { chosen, width, adds } = *self.shape;
        let call = self.call;
        let rows = call.scalar(0);
        let routes = call.input::<u32>("routes", rows * 2 * chosen);
        let each = call.input::<f32>("each", rows * chosen * width);
        let y = call.output::<f32>("y", rows * width);
        let mut sums = Scratch::take(width);
        for row in call.static_range(rows, 1) {
            let (experts, weights) = routes[row * 2 * chosen..(row + 1) * 2 * chosen].split_at(chosen);
            let mut places: [usize; MOST.1] = std::array::from_fn(|place| place);
            places[..chosen].sort_unstable_by_key(|place| experts[*place]);
            sums.fill(0.0);
            for place in &places[..chosen] {
                let weight = f32::from_bits(weights[*place]);
                let each = &each[(row * chosen + place) * width..][..width];
                sums.iter_mut().zip(each).for_each(|(sum, each)| *sum += weight * each);
            }
            // SAFETY: this row belongs to this thread.
            let y = unsafe { y.part(row * width..(row + 1) * width) };
            if adds {
                y.iter_mut().zip(&*sums).for_each(|(y, sum)| *y += sum);
            } else {
                y.copy_from_slice(&sums);
            }
        }
    }
}
