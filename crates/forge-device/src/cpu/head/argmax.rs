//! Argmax of each row of logits, the lowest id on ties. Scalars: rows. Buffers: logits, ids.
//!
//! `argmax_combine` selects the best of the candidates that a matrix product wrote. Scalars: rows. Buffers:
//! candidates, ids.

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
use forge_ops::{Argmax, ArgmaxCombine};

/// A sort key in the order of the values. NaN gives 0, below all numbers.
pub(crate) fn ordered(number: f32) -> u32 {
    // Makes the two zeros equal: -0 + 0 is +0.
    let bits = (number + 0.0).to_bits();
    match number {
        number if number.is_nan() => 0,
        number if number < 0.0 => !bits,
        _ => bits | 1 << 31,
    }
}

/// Runs this thread's part.
pub fn argmax_combine(call: &KernelArgs<'_>, shape: &ArgmaxCombine) {
    let (rows, words) = (call.scalar(0), 2 * shape.candidates);
    let candidates = call.input::<u32>("candidates", rows * words);
    let ids = call.output::<u32>("ids", rows);
    for row in call.claim(rows, 1).flatten() {
        let (mut best, mut best_id) = (0, 0);
        for pair in candidates[row * words..(row + 1) * words].chunks_exact(2) {
            let (key, id) = (pair[0], pair[1]);
            if key > best || (key == best && key > 0 && id < best_id) {
                (best, best_id) = (key, id);
            }
        }
        // SAFETY: this row belongs to this thread.
        let id = unsafe { ids.part(row..row + 1) };
        id[0] = best_id;
    }
}

/// Runs this thread's part.
pub fn argmax(call: &KernelArgs<'_>, shape: &Argmax) {
    call.level().run(Largest { call, shape });
}

struct Largest<'a> {
    call: &'a KernelArgs<'a>,
    shape: &'a Argmax,
}

impl Task for Largest<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let (rows, vocabulary) = (self.call.scalar(0), self.shape.vocabulary);
        let logits = self.call.input::<f32>("logits", rows * vocabulary);
        let ids = self.call.output::<u32>("ids", rows);
        let whole = vocabulary / S::LANES * S::LANES;
        for row in self.call.claim(rows, 1).flatten() {
            let logits = &logits[row * vocabulary..(row + 1) * vocabulary];
            // SAFETY: vectors up to `whole` are in bounds of the row.
            let mut largest = unsafe {
                let mut largest = S::splat(f32::NEG_INFINITY);
                for i in (0..whole).step_by(S::LANES) {
                    largest = S::max(S::load(logits.as_ptr().add(i)), largest);
                }
                S::largest(largest)
            };
            for &logit in &logits[whole..] {
                largest = largest.max(logit);
            }
            let first = logits.iter().position(|&logit| logit == largest).unwrap_or(0);
            // SAFETY: this row belongs to this thread.
            let id = unsafe { ids.part(row..row + 1) };
            id[0] = first as u32;
        }
    }
}
