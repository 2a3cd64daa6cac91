//! Some cached positions of a head: scores of queries, what becomes of scores, and the weighted sum of values.

// Indices count lanes and rows of fixed-size arrays: loops over them unroll into registers.
#![allow(clippy::needless_range_loop)]

use super::finish::Each;
use super::formats::Cached;
use super::simd::Simd;
use super::tile::totals;
use std::ops::Range;

/// Positions of a step.
pub(super) const STEP: usize = 64;

/// Scores s become cap · tanh(s / cap).
#[inline(always)]
pub(super) unsafe fn cap_scores<S: Simd>(scores: &mut [f32], count: usize, cap: f32) {
    // SAFETY: scores are a whole number of vectors.
    unsafe {
        for i in (0..count.next_multiple_of(S::LANES)).step_by(S::LANES) {
            let at = scores.as_mut_ptr().add(i);
            S::store(at, Each::Softcap(cap).of::<S>(S::load(at)));
        }
    }
}

/// Some cached positions of one head.
#[derive(Clone, Copy)]
pub(super) struct Step<C> {
    pub(super) keys: *const C,
    pub(super) values: *const C,
    pub(super) positions: usize,
    pub(super) width: usize,
    /// Channels that have values: the first of them.
    pub(super) valued: usize,
    pub(super) padded: usize,
}

impl<C: Cached> Step<C> {
    /// `LANES` numbers of a position, from `channel`; zeros past the width.
    #[inline(always)]
    pub(super) unsafe fn load<S: Simd>(&self, from: *const C, position: usize, channel: usize) -> S::V {
        // SAFETY: the caller promises that the position exists and that `channel` is below the width.
        unsafe { C::load::<S>(from.add(position * C::record(self.width)), self.width, channel) }
    }

    /// `weights[query][position]` = query · key.
    #[inline(always)]
    pub(super) unsafe fn scores<S: Simd>(&self, queries: &[f32], weights: &mut [f32]) {
        let group = queries.len() / self.padded;
        let mut query = 0;
        while query < group {
            let (queries, weights) = (&queries[query * self.padded..], &mut weights[query * STEP..]);
            // SAFETY: the caller's promise.
            unsafe {
                match group - query {
                    1 => self.scores_of::<S, 1>(queries, weights),
                    2 => self.scores_of::<S, 2>(queries, weights),
                    3 => self.scores_of::<S, 3>(queries, weights),
                    _ => self.scores_of::<S, 4>(queries, weights),
                }
            }
            query += 4;
        }
    }

    #[inline(always)]
    unsafe fn scores_of<S: Simd, const G: usize>(&self, queries: &[f32], weights: &mut [f32]) {
        for position in 0..self.positions {
            // SAFETY: the caller's promise.
            unsafe {
                let mut sums = [S::splat(0.0); G];
                for channel in (0..self.width).step_by(S::LANES) {
                    let key = self.load::<S>(self.keys, position, channel);
                    for g in 0..G {
                        let query = S::load(queries.as_ptr().add(g * self.padded + channel));
                        sums[g] = S::fma(key, query, sums[g]);
                    }
                }
                for (g, total) in totals::<S, G>(sums).into_iter().enumerate() {
                    weights[g * STEP + position] = total;
                }
            }
        }
    }

    /// `sums[query] += weights[query][position] * value`, over all positions.
    #[inline(always)]
    pub(super) unsafe fn add_values<S: Simd>(&self, weights: &[f32], sums: &mut [f32]) {
        let group = sums.len() / self.padded;
        let mut query = 0;
        while query < group {
            let (weights, sums) = (&weights[query * STEP..], &mut sums[query * self.padded..]);
            // SAFETY: the caller's promise.
            unsafe {
                match group - query {
                    1 => self.add_values_to::<S, 1>(weights, sums),
                    2 => self.add_values_to::<S, 2>(weights, sums),
                    3 => self.add_values_to::<S, 3>(weights, sums),
                    _ => self.add_values_to::<S, 4>(weights, sums),
                }
            }
            query += 4;
        }
    }

    #[inline(always)]
    unsafe fn add_values_to<S: Simd, const G: usize>(&self, weights: &[f32], sums: &mut [f32]) {
        let pairs = self.valued / (2 * S::LANES) * 2 * S::LANES;
        // SAFETY: the caller's promise; sums are padded to whole vectors.
        unsafe {
            for channel in (0..pairs).step_by(2 * S::LANES) {
                self.add_channels::<S, G, 2>(channel, weights, sums);
            }
            for channel in (pairs..self.valued).step_by(S::LANES) {
                self.add_channels::<S, G, 1>(channel, weights, sums);
            }
        }
    }

    /// The same of `V` vectors of channels, which share a weight that is loaded.
    #[inline(always)]
    unsafe fn add_channels<S: Simd, const G: usize, const V: usize>(
        &self,
        channel: usize,
        weights: &[f32],
        sums: &mut [f32],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let place = |g: usize, v: usize| g * self.padded + channel + v * S::LANES;
            let mut of = [[S::splat(0.0); V]; G];
            for g in 0..G {
                for v in 0..V {
                    of[g][v] = S::load(sums.as_ptr().add(place(g, v)));
                }
            }
            for position in 0..self.positions {
                let mut values = [S::splat(0.0); V];
                for v in 0..V {
                    values[v] = self.load::<S>(self.values, position, channel + v * S::LANES);
                }
                for g in 0..G {
                    let weight = S::splat(*weights.get_unchecked(g * STEP + position));
                    for v in 0..V {
                        of[g][v] = S::fma(weight, values[v], of[g][v]);
                    }
                }
            }
            for g in 0..G {
                for v in 0..V {
                    S::store(sums.as_mut_ptr().add(place(g, v)), of[g][v]);
                }
            }
        }
    }
}

/// Turns the scores of some positions to exp(score - largest), and others to 0, where `largest` now counts these scores too; `total` counts the weights.
/// Gives what sums made with the old `largest` have to be multiplied by.
#[inline(always)]
pub(super) unsafe fn soften<S: Simd>(
    scores: &mut [f32],
    seen: Range<usize>,
    largest: &mut f32,
    total: &mut f32,
) -> f32 {
    // Scores of no position become weights of about nothing, which nobody multiplies and the total leaves out.
    scores[..seen.start].fill(f32::NEG_INFINITY);
    scores[seen.end..].fill(f32::NEG_INFINITY);
    // SAFETY: scores are a whole number of vectors.
    unsafe {
        let mut of_step = S::splat(f32::NEG_INFINITY);
        for i in (0..STEP).step_by(S::LANES) {
            of_step = S::max(of_step, S::load(scores.as_ptr().add(i)));
        }
        let before = *largest;
        *largest = before.max(S::largest(of_step));
        let correction = if before == *largest { 1.0 } else { (before - *largest).exp() };
        for i in (0..seen.end.next_multiple_of(S::LANES)).step_by(S::LANES) {
            let score = S::load(scores.as_ptr().add(i));
            S::store(scores.as_mut_ptr().add(i), S::exp(S::sub(score, S::splat(*largest))));
        }
        scores[..seen.start].fill(0.0);
        scores[seen.end..].fill(0.0);
        let mut sums = S::splat(0.0);
        for i in (0..STEP).step_by(S::LANES) {
            sums = S::add(sums, S::load(scores.as_ptr().add(i)));
        }
        *total = *total * correction + S::sum(sums);
        correction
    }
}
