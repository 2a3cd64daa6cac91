//! An id of each row by chance, as [`crate::sampling::sampler`] defines it. Scalars: rows. Buffers: logits, draws, ids.

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
use crate::engine::golden::largest;
use crate::sampling::device_sampling::{DeviceSampling, TokenWeights};
use std::cell::Cell;

/// What the compiler decided.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Logits a row.
    pub vocabulary: usize,
}

thread_local! {
    /// A row's weights: their memory is kept from one dispatch to the next.
    static KEPT: Cell<TokenWeights> = Cell::default();
}

/// Runs this thread's share.
pub fn sample(call: &KernelArgs<'_>, shape: &Sample) {
    let (rows, vocabulary) = (call.scalar(0), shape.vocabulary);
    let logits = call.input::<f32>("logits", rows * vocabulary);
    let draws = call.input::<u32>("draws", rows * DeviceSampling::WORDS);
    let ids = call.output::<u32>("ids", rows);
    let (draws, _) = draws.as_chunks();
    let mut weights = KEPT.take();
    for row in call.share(rows, 1).flatten() {
        let logits = &logits[row * vocabulary..(row + 1) * vocabulary];
        let draw = DeviceSampling::of(draws[row]);
        let id = if draw.is_greedy() {
            largest(logits) as u32
        } else {
            call.level().run(Weigh { weights: &mut weights, logits, scale: draw.scale });
            weights.draw_weighed(&draw)
        };
        // SAFETY: this thread alone has this row.
        let drawn = unsafe { ids.part(row..row + 1) };
        drawn[0] = id;
    }
    KEPT.set(weights);
}

struct Weigh<'a> {
    weights: &'a mut TokenWeights,
    logits: &'a [f32],
    scale: f32,
}

impl Task for Weigh<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        self.weights.weigh(self.logits, self.scale);
    }
}
