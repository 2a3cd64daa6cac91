//! Some cached positions of a head: scores of queries, what becomes of scores, and the weighted sum of values.

// Indices count lanes and rows of fixed-size arrays: loops over them unroll into registers.
#![allow(clippy::needless_range_loop)]

use crate::cpu::attention::kv_format::KvElement;
use crate::cpu::elementwise::activation::UnaryOp;
use crate::cpu::matmul::f32::microkernel::totals;
use crate::cpu::simd::vectors::Simd;
use std::ops::Range;

/// Positions of a step.
pub(crate) const STEP: usize = 64;

/// Scores s become cap · tanh(s / cap).
#[inline(always)]
pub(crate) unsafe fn cap_scores<S: Simd>(scores: &mut [f32], count: usize, cap: f32) {
    // SAFETY: scores are a whole number of vectors.
    unsafe {
        for i in (0..count.next_multiple_of(S::LANES)).step_by(S::LANES) {
            let at = scores.as_mut_ptr().add(i);
            S::store(at, UnaryOp::Softcap(cap).of::<S>(S::load(at)));
        }
    }
}

/// Some cached positions of one head.
#[derive(Clone, Copy)]
pub(crate) struct KvBlock<C> {
    pub(crate) keys: *const C,
    pub(crate) values: *const C,
    pub(crate) positions: usize,
    pub(crate) width: usize,
    /// Channels that have values: the first of them.
    pub(crate) valued: usize,
    pub(crate) padded: usize,
}

impl<C: KvElement> KvBlock<C> {
    /// `LANES` numbers of a position, from `channel`; zeros past the width, if they are not `WHOLE`. Which they are is asked outside of
    /// loops: a loop with a choice in it keeps sums in memory.
    #[inline(always)]
    pub(crate) unsafe fn load<S: Simd, const WHOLE: bool>(
        &self,
        from: *const C,
        position: usize,
        channel: usize,
    ) -> S::V {
        // SAFETY: the caller promises that the position exists and that `channel` is below the width.
        unsafe {
            let record = from.add(position * C::record(self.width));
            match WHOLE {
                true => C::load::<S>(record, self.width, channel),
                false => C::load_last::<S>(record, self.width, channel),
            }
        }
    }

    /// Channels of whole vectors.
    #[inline(always)]
    pub(crate) fn whole<S: Simd>(&self) -> usize {
        self.width / S::LANES * S::LANES
    }

    /// `weights[query][position]` = query · key.
    #[inline(always)]
    pub(crate) unsafe fn scores<S: Simd>(&self, queries: &[f32], weights: &mut [f32]) {
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
        let whole = self.whole::<S>();
        for position in 0..self.positions {
            // SAFETY: the caller's promise.
            unsafe {
                let mut sums = [S::splat(0.0); G];
                for channel in (0..whole).step_by(S::LANES) {
                    let key = self.load::<S, true>(self.keys, position, channel);
                    for g in 0..G {
                        let query = S::load(queries.as_ptr().add(g * self.padded + channel));
                        sums[g] = S::fma(key, query, sums[g]);
                    }
                }
                if whole < self.width {
                    let key = self.load::<S, false>(self.keys, position, whole);
                    for g in 0..G {
                        let query = S::load(queries.as_ptr().add(g * self.padded + whole));
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
    pub(crate) unsafe fn add_values<S: Simd>(&self, weights: &[f32], sums: &mut [f32]) {
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
        // Sums, values and a weight are to fit registers: there are 16 of eight lanes, and 32 of others.
        // SAFETY: the caller's promise.
        unsafe {
            match S::LANES {
                8 => self.add_values_by::<S, G, 2>(weights, sums),
                _ => self.add_values_by::<S, G, 4>(weights, sums),
            }
        }
    }

    /// `V` vectors of channels at once, as far as there are so many.
    #[inline(always)]
    unsafe fn add_values_by<S: Simd, const G: usize, const V: usize>(
        &self,
        weights: &[f32],
        sums: &mut [f32],
    ) {
        let whole = self.valued.min(self.whole::<S>());
        let together = whole / (V * S::LANES) * V * S::LANES;
        // SAFETY: the caller's promise; sums are padded to whole vectors.
        unsafe {
            for channel in (0..together).step_by(V * S::LANES) {
                self.add_channels::<S, G, V, true>(channel, weights, sums);
            }
            for channel in (together..whole).step_by(S::LANES) {
                self.add_channels::<S, G, 1, true>(channel, weights, sums);
            }
            if whole < self.valued {
                self.add_channels::<S, G, 1, false>(whole, weights, sums);
            }
        }
    }

    /// The same of `V` vectors of channels, which share a weight that is loaded.
    #[inline(always)]
    unsafe fn add_channels<S: Simd, const G: usize, const V: usize, const WHOLE: bool>(
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
                    values[v] = self.load::<S, WHOLE>(self.values, position, channel + v * S::LANES);
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

/// The weights of a query added up: those of each lane for itself, until all is done.
pub(crate) type Total = [f32; 16];

/// A total that begins with a number.
pub(crate) fn total_from(number: f32) -> Total {
    std::array::from_fn(|lane| if lane == 0 { number } else { 0.0 })
}

/// All lanes together.
#[inline(always)]
pub(crate) unsafe fn total_of<S: Simd>(total: &Total) -> f32 {
    // SAFETY: there are as many lanes at least.
    unsafe { S::sum(S::load(total.as_ptr())) }
}

/// Queries whose scores become weights, all at once: what one of them would wait for, others have done meanwhile.
pub(crate) struct SoftmaxUpdate<'a> {
    /// `[query, STEP]`
    pub(crate) scores: &'a mut [f32],
    /// The largest score of each so far.
    pub(crate) largest: &'a mut [f32],
    /// Of each, counts its weights.
    pub(crate) totals: &'a mut [Total],
    /// What sums that were made with the `largest` of before have to be multiplied by, afterwards: of each, and of whole vectors.
    pub(crate) corrections: &'a mut [f32],
}

impl SoftmaxUpdate<'_> {
    /// Turns the scores of the positions that are seen to exp(score - largest), and others to 0, where `largest` counts these scores
    /// too. As many queries as there are for each of `seen` see the same.
    #[inline(always)]
    pub(crate) unsafe fn soften<S: Simd>(self, seen: &[Range<usize>]) {
        let SoftmaxUpdate { scores, largest, totals, corrections } = self;
        let group = largest.len() / seen.len();
        // SAFETY: scores and corrections are whole numbers of vectors.
        unsafe {
            for (row, seen) in seen.iter().enumerate() {
                for query in row * group..(row + 1) * group {
                    let scores = &mut scores[query * STEP..][..STEP];
                    // Scores of no position become weights of about nothing, which nobody multiplies and the total leaves out.
                    scores[..seen.start].fill(f32::NEG_INFINITY);
                    scores[seen.end..].fill(f32::NEG_INFINITY);
                    let mut of_step = S::splat(f32::NEG_INFINITY);
                    for i in (0..STEP).step_by(S::LANES) {
                        of_step = S::max(of_step, S::load(scores.as_ptr().add(i)));
                    }
                    let before = largest[query];
                    largest[query] = before.max(S::largest(of_step));
                    // Where nothing was before there are no sums yet, and no total.
                    corrections[query] = if before == largest[query] { 0.0 } else { before - largest[query] };
                }
            }
            for i in (0..largest.len().next_multiple_of(S::LANES)).step_by(S::LANES) {
                let at = corrections[i..][..S::LANES].as_mut_ptr();
                S::store(at, S::exp(S::load(at)));
            }
            for (row, seen) in seen.iter().enumerate() {
                for query in row * group..(row + 1) * group {
                    let scores = &mut scores[query * STEP..][..STEP];
                    for i in (0..seen.end.next_multiple_of(S::LANES)).step_by(S::LANES) {
                        let score = S::load(scores.as_ptr().add(i));
                        S::store(scores.as_mut_ptr().add(i), S::exp(S::sub(score, S::splat(largest[query]))));
                    }
                    scores[..seen.start].fill(0.0);
                    scores[seen.end..].fill(0.0);
                    let mut sums = S::splat(0.0);
                    for i in (0..STEP).step_by(S::LANES) {
                        sums = S::add(sums, S::load(scores.as_ptr().add(i)));
                    }
                    let total = totals[query].as_mut_ptr();
                    let before = S::mul(S::load(total), S::splat(corrections[query]));
                    S::store(total, S::add(before, sums));
                }
            }
        }
    }
}
