//! How fast this machine multiplies: what bounds a prompt, whose rows share every weight that is read.

// Indices count rows and vectors of fixed-size arrays: loops over them unroll into registers.
#![allow(clippy::needless_range_loop)]

use crate::cpu::device::thread_pool::Pool;
use crate::cpu::simd::isa::{Isa, Task};
use crate::cpu::simd::vectors::Simd;
use crate::device::PeakOps;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Rows of x and vectors of outputs that a tile of products has, be they codes or singles.
const ROWS: usize = 4;
const VECTORS: usize = 2;
/// Tiles that are multiplied at a time, and how often: the fastest time counts.
const TILES: usize = 1 << 16;
const RUNS: usize = 40;

/// Additions and multiplications a second of all threads, from the nearest cache.
pub(crate) fn compute_speed(level: Isa, pool: &mut Pool) -> Result<PeakOps, String> {
    let lanes = &AtomicUsize::new(0);
    let mut best = |codes: bool| {
        let mut best = f64::INFINITY;
        for _ in 0..RUNS {
            let start = Instant::now();
            pool.run(&|_| level.run(Tiles { codes, lanes }))?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        // Each lane of a vector of singles is one product, or four of codes.
        let products = TILES * ROWS * VECTORS * lanes.load(Ordering::Relaxed) * if codes { 4 } else { 1 };
        Ok::<f64, String>((2 * products * pool.threads()) as f64 / best)
    };
    Ok(PeakOps { codes: best(true)?, singles: best(false)? })
}

/// Products of tiles, all of the same numbers.
struct Tiles<'a> {
    codes: bool,
    /// Where a level tells its lanes.
    lanes: &'a AtomicUsize,
}

impl Task for Tiles<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        self.lanes.store(S::LANES, Ordering::Relaxed);
        // SAFETY: this runs by its level, and there is room for two vectors of codes or singles of any.
        unsafe { if self.codes { of_codes::<S>() } else { of_singles::<S>() } }
    }
}

#[inline(always)]
unsafe fn of_codes<S: Simd>() {
    let (weights, x) = ([1_i8; 2 * VECTORS * 64], [1_i8; 64]);
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[S::splat_sums(0); VECTORS]; ROWS];
        // Where rows are met in pairs, a product is of eight codes.
        for _ in 0..if S::PAIRS { TILES / 2 } else { TILES } {
            // From somewhere else each time, for all that the compiler knows.
            let (weights, x) = (black_box(weights.as_ptr()), black_box(x.as_ptr()));
            for v in 0..VECTORS {
                if S::PAIRS {
                    for row in (0..ROWS).step_by(2) {
                        let of_rows = [x.add(8 * row), x.add(8 * row + 8)];
                        let pair = [sums[row][v], sums[row + 1][v]];
                        [sums[row][v], sums[row + 1][v]] =
                            S::add_pair(pair, weights.add(v * 8 * S::LANES), of_rows);
                    }
                } else {
                    let codes = S::load_codes(weights.add(v * 4 * S::LANES));
                    for row in 0..ROWS {
                        sums[row][v] = S::add_shared(sums[row][v], codes, x.add(4 * row));
                    }
                }
            }
        }
        for sums in sums.into_iter().flatten() {
            black_box(S::sum(S::sums_to_singles(sums)));
        }
    }
}

#[inline(always)]
unsafe fn of_singles<S: Simd>() {
    let (weights, x) = ([1.0_f32; VECTORS * 16], [1.0_f32; ROWS]);
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[S::splat(0.0); VECTORS]; ROWS];
        for _ in 0..TILES {
            let (weights, x) = (black_box(weights.as_ptr()), black_box(x.as_ptr()));
            for v in 0..VECTORS {
                let weights = S::load(weights.add(v * S::LANES));
                for row in 0..ROWS {
                    sums[row][v] = S::fma(weights, S::splat(*x.add(row)), sums[row][v]);
                }
            }
        }
        for sums in sums.into_iter().flatten() {
            black_box(S::sum(sums));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_multiplies_so_and_so_fast() {
        let mut pool = Pool::new(2).unwrap();
        for level in Isa::available() {
            let PeakOps { codes, singles } = compute_speed(level, &mut pool).unwrap();
            assert!(
                [codes, singles].iter().all(|speed| (1e6..1e16).contains(speed)),
                "{level:?}: {codes} {singles}"
            );
        }
    }
}
