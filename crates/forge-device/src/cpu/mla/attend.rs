//! MLA in the absorbed form: attention over the latent cache, which all heads share. It computes
//! softmax(scale · (q·c + r·k)) c over the lines of a row's slot, where a line is a latent c and a RoPE key
//! k.
//!
//! Scalars: rows, context, splits. Buffers: q, q_rope, latents, slots, positions, heads[, partials]. With a
//! prologue: queries, latent, key, gain instead of q_rope; latents are written. It is multi-query attention
//! with one KV head, whose values are the first channels of its keys. A thread takes some heads of a row and
//! steps through the cache, so that each line is loaded once for all of them.

use crate::cpu::attention::kv_format::KvElement;
use crate::cpu::attention::online_softmax::{
    KvBlock, LaneSums, STEP, SoftmaxUpdate, lane_sums_from, sum_lanes,
};
use crate::cpu::attention::rope_tables::RopeTables;
use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::device::scratch::Scratch;
use crate::cpu::mla::cache_append::{Lines, Raw, store};
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
use forge_ops::{Format, MlaAttention};
use half::f16;
use std::marker::PhantomData;
use std::slice::from_ref;

/// Maximum number of heads per thread at a time.
const HEADS: usize = 16;

/// Runs this thread's part.
pub fn mla_attention(call: &KernelArgs<'_>, shape: &MlaAttention) {
    match shape.cache {
        Format::F32 => call.level().run(Heads::<f32> { call, shape, cache: PhantomData }),
        Format::F16 => call.level().run(Heads::<f16> { call, shape, cache: PhantomData }),
        other => panic!("unsupported MLA cache format on the CPU: {other:?}"),
    }
}

struct Heads<'a, C> {
    call: &'a KernelArgs<'a>,
    shape: &'a MlaAttention,
    cache: PhantomData<C>,
}

impl<C: KvElement> Task for Heads<'_, C> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let MlaAttention { heads, width, rope_width, scale, ref prologue, .. } = *self.shape;
        let call = self.call;
        let (rows, kv_stride) = (call.scalar(0), width + rope_width);
        let lines = Lines::find(call, rows, kv_stride);
        let q = call.input::<f32>("q", rows * heads * width);
        let out = call.output::<f32>("heads", rows * heads * width);
        let raw = prologue.as_ref().map(|prepare| Raw::find(call, prepare, rows, [width, rope_width]));
        let ready = raw.is_none().then(|| call.input::<f32>("q_rope", rows * heads * rope_width));
        let written = raw.as_ref().map(|_| {
            assert!(!lines.share_slots(), "fused MLA append supports one row per slot");
            call.output::<C>("latents", lines.count())
        });
        let latents = match &written {
            Some(latents) => latents.start(),
            None => call.input::<C>("latents", lines.count()).as_ptr(),
        };

        let padded = kv_stride.next_multiple_of(16);
        // Each thread computes the row's own line itself, because the cached copy may not yet be written by
        // its thread.
        let table_len = prologue.as_ref().map_or(0, |prepare| prepare.rope.table_len());
        let at_once = heads.div_ceil(call.workers() * 2).clamp(1, HEADS);
        let mut scratch = Scratch::take(at_once * (2 * padded + STEP + 1) + 2 * padded + table_len);
        let (queries, scratch) = scratch.split_at_mut(at_once * padded);
        let (sums, scratch) = scratch.split_at_mut(at_once * padded);
        let (weights, scratch) = scratch.split_at_mut(at_once * STEP);
        let (largest, scratch) = scratch.split_at_mut(at_once);
        let totals = &mut [lane_sums_from(0.0); HEADS];
        let (made, scratch) = scratch.split_at_mut(padded);
        let (kept, cos_sin) = scratch.split_at_mut(padded);
        let head_groups = heads.div_ceil(at_once);
        for item in call.claim(rows * head_groups, 1).flatten() {
            let (row, first) = (item / head_groups, item % head_groups * at_once);
            let count = (heads - first).min(at_once);
            let (queries, sums) = (&mut queries[..count * padded], &mut sums[..count * padded]);
            queries.fill(0.0);
            sums.fill(0.0);
            largest.fill(f32::NEG_INFINITY);
            totals.fill(lane_sums_from(0.0));
            let position = lines.position(row);
            if let Some(prepare) = prologue {
                prepare.rope.cos_sin(position, call.scalar(1), cos_sin);
            }
            for (head, query) in (first..).zip(queries.chunks_exact_mut(padded)) {
                query[..width].copy_from_slice(&q[(row * heads + head) * width..][..width]);
                let q_rope = &mut query[width..kv_stride];
                // SAFETY: this runs compiled for its instruction set.
                match (&raw, ready) {
                    (Some(raw), _) => unsafe { raw.query::<S>(row, head, cos_sin, q_rope) },
                    (None, Some(ready)) => {
                        q_rope.copy_from_slice(&ready[(row * heads + head) * rope_width..][..rope_width]);
                    }
                    (None, None) => {}
                }
                query.iter_mut().for_each(|query| *query *= scale);
            }
            let (largest, totals) = (&mut largest[..count], &mut totals[..count]);
            let mut softmax = Softmax { queries, sums, weights, largest, totals, kv_stride, width, padded };
            // Threads with other heads of the row do not read its own line from the cache, because one of
            // them writes it.
            let cached = if raw.is_some() { position } else { position + 1 };
            for start in (0..cached).step_by(STEP) {
                let positions = (cached - start).min(STEP);
                // SAFETY: the cache has these positions, by the checks of its buffer and of the position.
                unsafe {
                    softmax.take::<S, C>(latents.add(lines.of_slot(row) + start * kv_stride), positions)
                };
            }
            if let (Some(raw), Some(written)) = (&raw, written) {
                // SAFETY: this runs compiled for its instruction set; the first heads of this row belong to
                // one thread. `kept` holds a line of f32 elements, and no format is larger.
                unsafe {
                    raw.line::<S>(row, cos_sin, &mut made[..kv_stride]);
                    let own = std::slice::from_raw_parts_mut(kept.as_mut_ptr().cast::<C>(), kv_stride);
                    C::store(own, &made[..kv_stride]);
                    softmax.take::<S, C>(own.as_ptr(), 1);
                    if first == 0 {
                        store(written, lines.of_row(row), &made[..kv_stride]);
                    }
                }
            }
            for (head, sums) in (first..).zip(softmax.sums.chunks_exact(padded)) {
                let at = (row * heads + head) * width;
                // SAFETY: this head of this row belongs to this thread.
                let out = unsafe { out.part(at..at + width) };
                // SAFETY: this runs compiled for its instruction set.
                let total = unsafe { sum_lanes::<S>(&softmax.totals[head - first]) };
                out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum / total);
            }
        }
    }
}

/// Some heads of a row, and their running softmax state.
struct Softmax<'a> {
    queries: &'a [f32],
    sums: &'a mut [f32],
    weights: &'a mut [f32],
    largest: &'a mut [f32],
    totals: &'a mut [LaneSums],
    kv_stride: usize,
    width: usize,
    padded: usize,
}

impl Softmax<'_> {
    /// Processes a step of lines.
    ///
    /// # Safety
    /// The lines must exist.
    #[inline(always)]
    unsafe fn take<S: Simd, C: KvElement>(&mut self, lines: *const C, positions: usize) {
        let Softmax { queries, sums, weights, largest, totals, kv_stride, width, padded } = self;
        let (width, padded) = (*width, *padded);
        let step =
            KvBlock { keys: lines, values: lines, positions, width: *kv_stride, value_width: width, padded };
        // SAFETY: the caller's contract; queries and sums are padded to whole vectors.
        unsafe {
            step.scores::<S>(queries, weights);
            let mut corrections = [0.0; HEADS];
            let (scores, corrections) = (&mut **weights, &mut corrections);
            SoftmaxUpdate { scores, largest, totals, corrections }.update::<S>(from_ref(&(0..positions)));
            for (sums, correction) in sums.chunks_exact_mut(padded).zip(corrections) {
                sums.iter_mut().for_each(|sum| *sum *= *correction);
            }
            step.add_values::<S>(weights, sums);
        }
    }
}
