//! The id of the largest logit of each row; of equals the lowest. Scalars: rows. Buffers: logits, ids.

use super::call::Call;
use super::level::Task;
use super::simd::Simd;

/// What the compiler decided.
#[derive(Clone, Copy, Debug)]
pub struct Argmax {
    /// Logits a row.
    pub vocabulary: usize,
}

/// Runs this thread's share.
pub fn argmax(call: &Call<'_>, shape: &Argmax) {
    call.level().run(Largest { call, shape });
}

struct Largest<'a> {
    call: &'a Call<'a>,
    shape: &'a Argmax,
}

impl Task for Largest<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let (rows, vocabulary) = (self.call.scalar(0), self.shape.vocabulary);
        let logits = self.call.input::<f32>("logits", rows * vocabulary);
        let ids = self.call.output::<u32>("ids", rows);
        let whole = vocabulary / S::LANES * S::LANES;
        for row in self.call.share(rows, 1).flatten() {
            let logits = &logits[row * vocabulary..(row + 1) * vocabulary];
            // SAFETY: vectors up to `whole` lie inside the row.
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
            // SAFETY: this thread alone has this row.
            let id = unsafe { ids.part(row..row + 1) };
            id[0] = first as u32;
        }
    }
}
