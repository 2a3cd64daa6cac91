//! Memory read bandwidth benchmark. It bounds decode, which reads every weight once per token.

use crate::cpu::device::thread_pool::Pool;
use crate::cpu::simd::isa::{Isa, Task};
use crate::cpu::simd::vectors::Simd;
use std::hint::black_box;
use std::time::Instant;

/// Minimum buffer size in bytes, so that caches are not measured.
const MIN_BYTES: usize = 256 << 20;
/// Maximum number of bytes read per run.
const MAX_BYTES: usize = 1 << 30;
/// Number of runs.
const RUNS: usize = 9;

/// Software prefetch of the benchmark, with its distance in bytes: none, or the two kinds of
/// [`crate::cpu::simd::prefetch_policy::PrefetchDistance`].
#[derive(Clone, Copy)]
enum Ahead {
    Nothing,
    Far(usize),
    Once(usize),
}

/// Read bandwidth in bytes per second. Each thread sums the words of its own range. The runs cycle through
/// the prefetch kinds, and the fastest run counts. None if `bytes` may fit in caches.
pub(crate) fn read_speed(bytes: &[u8], level: Isa, pool: &mut Pool) -> Result<Option<f64>, String> {
    if bytes.len() < MIN_BYTES {
        return Ok(None);
    }
    let bytes = &bytes[..bytes.len().min(MAX_BYTES)];
    let stretch = bytes.len().div_ceil(pool.threads());
    let distance = level.prefetch_distance();
    let mut patterns = vec![Ahead::Nothing];
    if distance.far > 0 {
        patterns.push(Ahead::Far(distance.far));
    }
    if distance.once {
        patterns.push(Ahead::Once(distance.near));
    }
    let mut best = f64::INFINITY;
    for run in 0..RUNS {
        let ahead = patterns[run % patterns.len()];
        let start = Instant::now();
        pool.run(&|thread| {
            let own = bytes.chunks(stretch).nth(thread).unwrap_or_default();
            let mut sums = [0; 8];
            level.run(Sum { bytes: own, ahead, sums: &mut sums });
            black_box(sums);
        })?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(Some(bytes.len() as f64 / best))
}

/// Sums all whole cache lines, word by word.
struct Sum<'a> {
    bytes: &'a [u8],
    ahead: Ahead,
    sums: &'a mut [u64; 8],
}

impl Task for Sum<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Sum { bytes, ahead, sums: to } = self;
        let mut sums = [0_u64; 8];
        for line in bytes.as_chunks::<64>().0 {
            // SAFETY: the caller dispatched on the instruction set, and prefetch addresses need not be valid.
            unsafe {
                match ahead {
                    Ahead::Nothing => {}
                    Ahead::Far(bytes) => S::prefetch_far(line.as_ptr().wrapping_add(bytes)),
                    Ahead::Once(bytes) => S::prefetch_once(line.as_ptr().wrapping_add(bytes)),
                }
            }
            for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
                *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
            }
        }
        *to = sums;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_measurement_exceeds_the_caches() {
        let mut pool = Pool::new(2).unwrap();
        for level in Isa::available() {
            assert_eq!(read_speed(&[1; 1000], level, &mut pool), Ok(None));
            let speed = read_speed(&vec![1; MIN_BYTES], level, &mut pool).unwrap().expect("it is memory");
            assert!((1e8..1e13).contains(&speed), "{speed}");
        }
    }

    #[test]
    fn metrics_parsing_reads_all_whole_lines() {
        let bytes: Vec<u8> = (0..200_u8).collect();
        let words = bytes[..192].as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
        let expected = words.fold(0_u64, u64::wrapping_add);
        let patterns = [Ahead::Nothing, Ahead::Far(64), Ahead::Once(8192)];
        for (level, ahead) in Isa::available().into_iter().zip(patterns.into_iter().cycle()) {
            let mut sums = [0; 8];
            level.run(Sum { bytes: &bytes, ahead, sums: &mut sums });
            assert_eq!(sums.into_iter().fold(0, u64::wrapping_add), expected);
        }
    }
}
