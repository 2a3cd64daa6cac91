//! Samples a token id for each row, as [`crate::sampling::sampler`] defines it. Scalars: rows. Buffers:
//! logits, draws, ids.

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
use crate::sampling::argmax::argmax;
use crate::sampling::device_sampling::{DeviceSampling, TokenWeights};
use forge_ops::Sample;
use std::cell::Cell;

thread_local! {
    /// A row's weights, kept to reuse their memory.
    static WEIGHTS: Cell<TokenWeights> = Cell::default();
}

/// Runs this thread's part.
pub fn sample(call: &KernelArgs<'_>, shape: &Sample) {
    let (rows, vocabulary) = (call.scalar(0), shape.vocabulary);
    let logits = call.input::<f32>("logits", rows * vocabulary);
    let draws = call.input::<u32>("draws", rows * DeviceSampling::WORDS);
    let ids = call.output::<u32>("ids", rows);
    let (draws, _) = draws.as_chunks();
    let mut weights = WEIGHTS.take();
    for row in call.claim(rows, 1).flatten() {
        let logits = &logits[row * vocabulary..(row + 1) * vocabulary];
        let draw = DeviceSampling::of(draws[row]);
        let id = if draw.is_greedy() {
            argmax(logits) as u32
        } else {
            call.level().run(ComputeWeights { weights: &mut weights, logits, scale: draw.scale });
            weights.draw_weighed(&draw)
        };
        // SAFETY: this row belongs to this thread.
        let drawn = unsafe { ids.part(row..row + 1) };
        drawn[0] = id;
    }
    WEIGHTS.set(weights);
}

struct ComputeWeights<'a> {
    weights: &'a mut TokenWeights,
    logits: &'a [f32],
    scale: f32,
}

impl Task for ComputeWeights<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        self.weights.weigh(self.logits, self.scale);
    }
}
