//! Microkernels: inner loops of matrix products, with register-sized tiles.

// Index loops over lanes and rows of fixed-size arrays unroll into registers.
#![allow(clippy::needless_range_loop)]

use crate::cpu::format::matrix::{AT_ONCE, BLOCK, Matrix, Scaling, of_half};
use crate::cpu::simd::prefetch_policy::PrefetchDistance;
use crate::cpu::simd::vectors::Simd;

/// Dot product of one matrix row and x, directly from stored weights; see [`stored_products`]. Each part of a
/// block has its own accumulator, because one dependency chain would be slower than memory.
#[inline(always)]
pub(crate) unsafe fn stored_product<S: Simd, M: Matrix>(
    matrix: M,
    first: usize,
    x: *const f32,
    blocks: usize,
    distance: PrefetchDistance,
) -> f32 {
    // SAFETY: the caller ensures the lengths of the row and of x.
    unsafe {
        if M::SCALING != Scaling::Done {
            return stored_products::<S, M, 1>(matrix, [first], x, blocks, distance.far)[0];
        }
        let ahead = distance.near.checked_div(M::OF_BLOCK).unwrap_or(0);
        // Enough accumulators for the shortest vectors.
        let mut sums = [S::splat(0.0); BLOCK / 8];
        for block in 0..blocks {
            match ahead {
                0 => {}
                _ if distance.once => matrix.prefetch_once::<S>(first + block + ahead),
                _ => matrix.prefetch::<S>(first + block + ahead),
            }
            for part in 0..BLOCK / S::LANES {
                let x = S::load(x.add(block * BLOCK + part * S::LANES));
                sums[part] = S::fma(matrix.vector::<S>(first + block, part), x, sums[part]);
            }
        }
        for part in 1..BLOCK / S::LANES {
            sums[0] = S::add(sums[0], sums[part]);
        }
        S::sum(sums[0])
    }
}

/// Dot products of `W` matrix rows and x, directly from stored weights. `first` is each row's first block; x
/// has `blocks * 32` elements. A group's offset is multiplied by the sum of its x, which all rows share.
/// `ahead` is the prefetch distance in bytes, for formats that use it.
#[inline(always)]
pub(crate) unsafe fn stored_products<S: Simd, M: Matrix, const W: usize>(
    matrix: M,
    first: [usize; W],
    x: *const f32,
    blocks: usize,
    ahead: usize,
) -> [f32; W] {
    // SAFETY: the caller ensures the lengths of the rows and of x.
    unsafe {
        let mut sums = [S::splat(0.0); W];
        // The streams share the prefetch distance.
        let ahead = ahead.checked_div(M::OF_BLOCK * W).unwrap_or(0);
        let groups = blocks / M::GROUP;
        for start in (0..groups).step_by(M::SCALES_AT_ONCE) {
            // Scales are converted in groups and then broadcast from memory, which is cheap.
            let count = (groups - start).min(M::SCALES_AT_ONCE);
            let mut scales = [[0.0; 2 * AT_ONCE]; W];
            for w in 0..W {
                matrix.scales::<S>(first[w] / M::GROUP + start, count, &mut scales[w]);
            }
            for i in 0..count {
                let block = (start + i) * M::GROUP;
                let mut of_x = S::splat(0.0);
                if M::SCALING == Scaling::Offset {
                    for column in (0..M::GROUP * BLOCK).step_by(S::LANES) {
                        of_x = S::add(of_x, S::load(x.add(block * BLOCK + column)));
                    }
                }
                for w in 0..W {
                    let by_group = matches!(M::SCALING, Scaling::Scale | Scaling::Offset);
                    let mut of_group = if by_group { S::splat(0.0) } else { sums[w] };
                    for block in block..block + M::GROUP {
                        if ahead > 0 {
                            matrix.prefetch_far::<S>(first[w] + block + ahead);
                        }
                        for part in 0..BLOCK / S::LANES {
                            let mut weight = matrix.vector::<S>(first[w] + block, part);
                            let scale = |at: usize| S::splat(scales[w][at + 2 * i + of_half::<S>(part)]);
                            match M::SCALING {
                                Scaling::HalfBlockScale => weight = S::mul(weight, scale(0)),
                                Scaling::HalfBlockOffset => weight = S::fma(weight, scale(0), scale(AT_ONCE)),
                                _ => {}
                            }
                            let x = S::load(x.add(block * BLOCK + part * S::LANES));
                            of_group = S::fma(weight, x, of_group);
                        }
                    }
                    sums[w] = match M::SCALING {
                        Scaling::Done | Scaling::HalfBlockScale | Scaling::HalfBlockOffset => of_group,
                        Scaling::Scale => S::fma(of_group, S::splat(scales[w][i]), sums[w]),
                        Scaling::Offset => {
                            let sum = S::fma(of_x, S::splat(scales[w][2 * i + 1]), sums[w]);
                            S::fma(of_group, S::splat(scales[w][2 * i]), sum)
                        }
                    };
                }
            }
        }
        totals::<S, W>(sums)
    }
}

/// Memory to prefetch sequentially while a tile is computed.
#[derive(Clone, Copy)]
pub(crate) struct Prefetch {
    pub(crate) next: *const u8,
    /// Bytes per column.
    pub(crate) of_column: usize,
}

/// Adds the products of `W` vectors of outputs and `X` rows of x to sums with a row stride of `stride`.
/// Weights are stored column by column.
#[inline(always)]
pub(crate) unsafe fn add_tile<S: Simd, const W: usize, const X: usize>(
    weights: *const f32,
    x: [*const f32; X],
    columns: usize,
    to: *mut f32,
    stride: usize,
    ahead: Prefetch,
) {
    // SAFETY: the caller ensures that all rows have these columns.
    unsafe {
        let mut sums = [[S::splat(0.0); W]; X];
        for i in 0..X {
            for w in 0..W {
                sums[i][w] = S::load(to.add(i * stride + w * S::LANES));
            }
        }
        for column in 0..columns {
            S::prefetch_far(ahead.next.wrapping_add(column * ahead.of_column));
            let mut vectors = [S::splat(0.0); W];
            for w in 0..W {
                vectors[w] = S::load(weights.add((column * W + w) * S::LANES));
            }
            for i in 0..X {
                let x = S::splat(*x[i].add(column));
                for w in 0..W {
                    sums[i][w] = S::fma(vectors[w], x, sums[i][w]);
                }
            }
        }
        for i in 0..X {
            for w in 0..W {
                S::store(to.add(i * stride + w * S::LANES), sums[i][w]);
            }
        }
    }
}

/// The horizontal sum of each vector.
#[inline(always)]
pub(crate) unsafe fn totals<S: Simd, const N: usize>(vectors: [S::V; N]) -> [f32; N] {
    let mut totals = [0.0; N];
    let fours = N / 4 * 4;
    // SAFETY: the caller's contract.
    unsafe {
        for i in (0..fours).step_by(4) {
            let four = S::sums([vectors[i], vectors[i + 1], vectors[i + 2], vectors[i + 3]]);
            totals[i..i + 4].copy_from_slice(&four);
        }
        for i in fours..N {
            totals[i] = S::sum(vectors[i]);
        }
    }
    totals
}
