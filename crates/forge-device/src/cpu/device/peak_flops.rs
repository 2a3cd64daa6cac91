//! Arithmetic throughput benchmark. It bounds prefill, where all rows of a chunk share each weight that is
//! read.

// Index loops over rows and vectors of fixed-size arrays unroll into registers.
#![allow(clippy::needless_range_loop)]

use crate::cpu::device::thread_pool::Pool;
use crate::cpu::simd::isa::{Isa, Task};
use crate::cpu::simd::vectors::Simd;
use crate::device::PeakOps;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Rows of x and vectors of outputs in a tile.
const ROWS: usize = 4;
const VECTORS: usize = 2;
/// Tiles per run, and runs. The fastest run counts.
const TILES: usize = 1 << 16;
const RUNS: usize = 40;

/// Peak throughput of all threads together, with operands in L1.
pub(crate) fn compute_speed(level: Isa, pool: &mut Pool) -> Result<PeakOps, String> {
    let lanes = &AtomicUsize::new(0);
    let mut best = |codes: bool| {
        let mut best = f64::INFINITY;
        for _ in 0..RUNS {
            let start = Instant::now();
            pool.run(&|_| level.run(Tiles { codes, lanes }))?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        // A vector lane does one f32 product, or four int8 products.
        let products = TILES * ROWS * VECTORS * lanes.load(Ordering::Relaxed) * if codes { 4 } else { 1 };
        Ok::<f64, String>((2 * products * pool.threads()) as f64 / best)
    };
    let int8 = if level.has_int8() { Some(best(true)?) } else { None };
    Ok(PeakOps { int8, f32: best(false)? })
}

/// Multiplies tiles of constant operands.
struct Tiles<'a> {
    codes: bool,
    /// Receives the number of lanes of the instruction set.
    lanes: &'a AtomicUsize,
}

impl Task for Tiles<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        self.lanes.store(S::LANES, Ordering::Relaxed);
        // SAFETY: the caller dispatched on the instruction set, and the buffers hold two vectors of any lane
        // count.
        unsafe { if S::HAS_INT8 && self.codes { int8_tiles::<S>() } else { f32_tiles::<S>() } }
    }
}

#[inline(always)]
unsafe fn int8_tiles<S: Simd>() {
    let (weights, x) = ([1_i8; 2 * VECTORS * 64], [1_i8; 64]);
    // SAFETY: the caller's contract.
    unsafe {
        let mut sums = [[S::splat_sums(0); VECTORS]; ROWS];
        // With paired rows, a lane does eight int8 products.
        for _ in 0..if S::PAIRS { TILES / 2 } else { TILES } {
            // Hides the addresses from the optimizer.
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
            black_box(S::sum(S::sums_to_f32(sums)));
        }
    }
}

#[inline(always)]
unsafe fn f32_tiles<S: Simd>() {
    let (weights, x) = ([1.0_f32; VECTORS * 16], [1.0_f32; ROWS]);
    // SAFETY: the caller's contract.
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
    fn every_instruction_set_reaches_a_plausible_rate() {
        let mut pool = Pool::new(2).unwrap();
        for level in Isa::available() {
            let PeakOps { int8, f32 } = compute_speed(level, &mut pool).unwrap();
            assert!(
                (1e6..1e16).contains(&f32) && int8.is_none_or(|int8| (1e6..1e16).contains(&int8)),
                "{level:?}: {int8:?} {f32}"
            );
            assert_eq!(int8.is_some(), level.has_int8());
        }
    }
}
