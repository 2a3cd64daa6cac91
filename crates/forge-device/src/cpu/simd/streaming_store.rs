//! Non-temporal stores of results.
//!
//! In decode, all threads write parts of a row, and all threads read it in the next dispatch. An ordinary
//! store must first take the cache line from the cores that read it, and a core has few such requests in
//! flight. Without a shared cache this costs 40 to 90 ns a line under memory load. That was nearly 4% of
//! decode time (1.1B q4_0, EPYC of 2022). A non-temporal store takes no line, and the next reader fetches the
//! row in either case.
//!
//! With many rows, the thread that writes a row also reads it, so ordinary stores keep it in its caches.

use crate::cpu::device::scratch::Line;
use crate::cpu::simd::vectors::Simd;

/// Copies `results` to `y`, whole cache lines with non-temporal stores.
#[inline(always)]
pub(crate) fn write_past<S: Simd>(results: &[f32], y: &mut [f32]) {
    // SAFETY: a line is 16 f32 elements, and all bit patterns are valid.
    let (before, lines, after) = unsafe { y.align_to_mut::<Line>() };
    let (first, rest) = results.split_at(before.len());
    let (whole, last) = rest.as_chunks::<16>();
    before.copy_from_slice(first);
    after.copy_from_slice(last);
    for (line, numbers) in lines.iter_mut().zip(whole) {
        for part in (0..16).step_by(S::LANES) {
            // SAFETY: the address is within a line and aligned to a vector.
            unsafe { S::store_past(line.0.as_mut_ptr().add(part), S::load(numbers.as_ptr().add(part))) };
        }
    }
}

/// Store fence: orders non-temporal stores of this thread before its later stores. Every thread calls it at
/// the end of a dispatch.
#[inline(always)]
pub(crate) fn store_fence() {
    // SAFETY: every x86-64 CPU has SSE.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::device::scratch::Scratch;
    use crate::cpu::simd::isa::{Isa, Task};

    struct Writes<'a> {
        results: &'a [f32],
        y: &'a mut [f32],
    }

    impl Task for Writes<'_> {
        #[inline(always)]
        fn run<S: Simd>(self) {
            write_past::<S>(self.results, self.y);
        }
    }

    #[test]
    fn streaming_stores_handle_any_alignment() {
        let results: Vec<f32> = (1..=100).map(|number| number as f32).collect();
        for level in Isa::available() {
            for (start, count) in [(0, 64), (0, 100), (3, 70), (15, 17), (8, 8), (5, 0), (16, 16)] {
                let mut y = Scratch::take(128);
                y.fill(0.0);
                level.run(Writes { results: &results[..count], y: &mut y[start..start + count] });
                store_fence();
                let wanted = [&vec![0.0; start], &results[..count], &vec![0.0; 128 - start - count]].concat();
                assert_eq!(*y, wanted[..], "{count} from {start} on, {level:?}");
            }
        }
    }
}
