//! MLA in the expanded form: attention over keys and values computed from a tile of latents, and loading of
//! that tile. The CPU device always uses the absorbed form ([`crate::device::Pass::mla_expand_min_rows`]). These
//! kernels reproduce the GPU computation, in its tile order.

use crate::cpu::attention::kv_format::KvElement;
use crate::cpu::attention::online_softmax::{KvBlock, STEP, SoftmaxUpdate, lane_sums_from, sum_lanes};
use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::device::scratch::Scratch;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
use forge_ops::{Format, MlaAttentionExpanded, MlaLoadLatents};
use half::f16;
use std::slice::{from_mut, from_ref};

/// Runs this thread's part of the tile load.
pub fn load_latents(call: &KernelArgs<'_>, shape: &MlaLoadLatents) {
    match shape.cache {
        Format::F32 => lines::<f32>(call, shape),
        Format::F16 => lines::<f16>(call, shape),
        other => panic!("unsupported MLA cache format on the CPU: {other:?}"),
    }
}

fn lines<C: KvElement + Into<f32>>(call: &KernelArgs<'_>, shape: &MlaLoadLatents) {
    let MlaLoadLatents { width, rope_width, .. } = *shape;
    let (rows, context, begin, kv_stride) =
        (call.scalar(0), call.scalar(1), call.scalar(2), width + rope_width);
    let first = (call.input::<u32>("slots", 1)[0] as usize * context + begin) * kv_stride;
    let latents = &call.input::<C>("latents", first + rows * kv_stride)[first..];
    let (tile, keys) =
        (call.output::<f32>("latent_tile", rows * width), call.output("k_rope", rows * rope_width));
    for row in call.claim_rows(rows, 1).flatten() {
        let (latent, key) = latents[row * kv_stride..][..kv_stride].split_at(width);
        // SAFETY: this position belongs to this thread.
        let (tile, keys) = unsafe {
            (tile.part(row * width..(row + 1) * width), keys.part(row * rope_width..(row + 1) * rope_width))
        };
        tile.iter_mut().zip(latent).for_each(|(to, from)| *to = (*from).into());
        keys.iter_mut().zip(key).for_each(|(to, from): (&mut f32, _)| *to = (*from).into());
    }
}

/// Runs this thread's part of the attention.
pub fn attend_expanded(call: &KernelArgs<'_>, shape: &MlaAttentionExpanded) {
    call.level().run(Heads { call, shape });
}

struct Heads<'a> {
    call: &'a KernelArgs<'a>,
    shape: &'a MlaAttentionExpanded,
}

impl Task for Heads<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Heads {
            call,
            shape: &MlaAttentionExpanded { heads, keys, rope_width, values, queries_pitch, scale },
        } = self;
        let (rows, begin, end) = (call.scalar(0), call.scalar(1), call.scalar(2));
        let of_heads = |name, width| call.input::<f32>(name, (end - begin) * heads * width);
        let (all_keys, all_values) = (of_heads("keys", keys), of_heads("values", values));
        let k_rope = call.input::<f32>("k_rope", (end - begin) * rope_width);
        let (q, r) =
            (call.input::<f32>("q", rows * queries_pitch), call.input("q_rope", rows * heads * rope_width));
        let positions = call.input::<u32>("positions", rows);
        let (out, carried) =
            (call.output("heads", rows * heads * values), call.output("carried", 2 * rows * heads));
        // A step's keys are stored with the RoPE key appended to each head's own, and values at the same
        // stride.
        let width = values.max(keys + rope_width);
        let padded = width.next_multiple_of(16);
        let mut scratch = Scratch::take(2 * padded + STEP + 2 * STEP * width);
        let (query, rest) = scratch.split_at_mut(padded);
        let (sums, rest) = rest.split_at_mut(padded);
        let (weights, rest) = rest.split_at_mut(STEP);
        let (step_keys, step_values) = rest.split_at_mut(STEP * width);
        step_keys.fill(0.0);
        for item in call.claim_rows(rows * heads, 1).flatten() {
            let (row, head) = (item / heads, item % heads);
            let seen = end.min(positions[row] as usize + 1);
            // SAFETY: this head of this row belongs to this thread.
            let (out, carried) = unsafe {
                (out.part(item * values..(item + 1) * values), carried.part(2 * item..2 * item + 2))
            };
            let (mut largest, mut total) = (f32::NEG_INFINITY, lane_sums_from(0.0));
            query.fill(0.0);
            query[..keys].copy_from_slice(&q[row * queries_pitch + head * keys..][..keys]);
            query[keys..keys + rope_width].copy_from_slice(&r[item * rope_width..][..rope_width]);
            query.iter_mut().for_each(|query| *query *= scale);
            sums.fill(0.0);
            if begin > 0 {
                (largest, total) = (carried[0], lane_sums_from(carried[1]));
                sums.iter_mut().zip(out.iter()).for_each(|(sum, mean): (_, &f32)| *sum = mean * carried[1]);
            }
            for start in (begin..seen).step_by(STEP) {
                let count = (seen - start).min(STEP);
                for place in 0..count {
                    let (line, key) = (start - begin + place, &mut step_keys[place * width..][..width]);
                    key[..keys].copy_from_slice(&all_keys[(line * heads + head) * keys..][..keys]);
                    key[keys..keys + rope_width].copy_from_slice(&k_rope[line * rope_width..][..rope_width]);
                    let value = &all_values[(line * heads + head) * values..][..values];
                    step_values[place * width..][..values].copy_from_slice(value);
                }
                let (keys, values_of_step) = (step_keys.as_ptr(), step_values.as_ptr());
                let step = KvBlock {
                    keys,
                    values: values_of_step,
                    positions: count,
                    width,
                    value_width: values,
                    padded,
                };
                // SAFETY: the step has these positions; query and sums are padded to whole vectors.
                unsafe {
                    step.scores::<S>(query, weights);
                    let (largest, totals) = (from_mut(&mut largest), from_mut(&mut total));
                    let mut corrections = [0.0; 16];
                    let of_query =
                        SoftmaxUpdate { scores: weights, largest, totals, corrections: &mut corrections };
                    of_query.update::<S>(from_ref(&(0..count)));
                    sums.iter_mut().for_each(|sum| *sum *= corrections[0]);
                    step.add_values::<S>(weights, sums);
                }
            }
            // SAFETY: this runs compiled for its instruction set.
            let total = unsafe { sum_lanes::<S>(&total) };
            out.iter_mut().zip(sums.iter()).for_each(|(out, sum)| *out = sum / total);
            carried.copy_from_slice(&[largest, total]);
        }
    }
}
