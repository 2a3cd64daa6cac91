//! Results that are written past the caches.
//!
//! A row alone is made by all threads, and then read by all of them, from one dispatch to the next: each cache line that a thread
//! writes is one that the others have read lately. To write it the usual way is to take it from them first, and a core takes few at a time:
//! where cores share no cache that is 40 to 90 ns a line while memory is busy, and was nearly 4% of what an id of the 1.1B in
//! q4_0 took (an EPYC of 2022). Past the caches nothing is asked for; whoever reads the row next has to fetch it
//! either way.
//!
//! Rows of many are read by who wrote them, and stay in its caches.

use crate::cpu::device::scratch::Line;
use crate::cpu::simd::vectors::Simd;

/// Writes results to `y`: past the caches what is whole lines.
#[inline(always)]
pub(crate) fn write_past<S: Simd>(results: &[f32], y: &mut [f32]) {
    // SAFETY: a line is sixteen numbers, and any are.
    let (before, lines, after) = unsafe { y.align_to_mut::<Line>() };
    let (first, rest) = results.split_at(before.len());
    let (whole, last) = rest.as_chunks::<16>();
    before.copy_from_slice(first);
    after.copy_from_slice(last);
    for (line, numbers) in lines.iter_mut().zip(whole) {
        for part in (0..16).step_by(S::LANES) {
            // SAFETY: parts of a line, which begins where a vector may.
            unsafe { S::store_past(line.0.as_mut_ptr().add(part), S::load(numbers.as_ptr().add(part))) };
        }
    }
}

/// Ends a thread's share of a dispatch: what it wrote past the caches is seen before what it writes from now on.
#[inline(always)]
pub(crate) fn settle() {
    // SAFETY: every such processor has it.
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
    fn results_go_where_they_belong_wherever_lines_begin() {
        let results: Vec<f32> = (1..=100).map(|number| number as f32).collect();
        for level in Isa::available() {
            for (start, count) in [(0, 64), (0, 100), (3, 70), (15, 17), (8, 8), (5, 0), (16, 16)] {
                let mut y = Scratch::take(128);
                y.fill(0.0);
                level.run(Writes { results: &results[..count], y: &mut y[start..start + count] });
                settle();
                let wanted = [&vec![0.0; start], &results[..count], &vec![0.0; 128 - start - count]].concat();
                assert_eq!(*y, wanted[..], "{count} from {start} on, {level:?}");
            }
        }
    }
}
