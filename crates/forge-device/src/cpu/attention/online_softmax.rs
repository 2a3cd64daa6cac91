//! Attention kernels over a block of cached positions: scores, online softmax and the weighted sum of values.

// Index loops over lanes and rows of fixed-size arrays unroll into registers.
#![allow(clippy::needless_range_loop)]

use crate::cpu::attention::kv_format::KvElement;
use crate::cpu::elementwise::activation::Vectorized;
use crate::cpu::matmul::f32::microkernel::totals;
use crate::cpu::simd::vectors::Simd;
use forge_ops::UnaryOp;
use std::ops::Range;

/// Positions per step.
pub(crate) const STEP: usize = 64;

/// Softcap: scores s become cap · tanh(s / cap).
#[inline(always)]
pub(crate) unsafe fn cap_scores<S: Simd>(scores: &mut [f32], count: usize, cap: f32) {
    // SAFETY: scores are whole vectors.
    unsafe {
        for i in (0..count.next_multiple_of(S::LANES)).step_by(S::LANES) {
            let at = scores.as_mut_ptr().add(i);
            S::store(at, UnaryOp::Softcap(cap).of::<S>(S::load(at)));
        }
    }
}

/// A block of cached positions of one head.
#[derive(Clone, Copy)]
pub(crate) struct KvBlock<C> {
    pub(crate) keys: *const C,
    pub(crate) values: *const C,
    pub(crate) positions: usize,
    pub(crate) width: usize,
    /// Channels of a value; the first ones of a position.
    pub(crate) value_width: usize,
    /// Stride of queries and sums: the width in whole vectors.
    pub(crate) padded: usize,
}

impl<C: KvElement> KvBlock<C> {
    /// Loads `LANES` channels of a position from `channel` on, with zeros past the width unless `WHOLE`.
    /// `WHOLE` is a constant, because a branch in the loop would keep the sums in memory.
    #[inline(always)]
    pub(crate) unsafe fn load<S: Simd, const WHOLE: bool>(
        &self,
        from: *const C,
        position: usize,
        channel: usize,
    ) -> S::V {
        // SAFETY: the caller ensures that the position exists and that `channel` is below the width.
        unsafe {
            let head = from.add(position * C::stride(self.width));
            match WHOLE {
                true => C::load::<S>(head, self.width, channel),
                false => C::load_last::<S>(head, self.width, channel),
            }
        }
    }

    /// Number of channels in whole vectors.
    #[inline(always)]
    pub(crate) fn whole<S: Simd>(&self) -> usize {
        self.width / S::LANES * S::LANES
    }

    /// Computes `weights[query][position]` = query · key.
    #[inline(always)]
    pub(crate) unsafe fn scores<S: Simd>(&self, queries: &[f32], weights: &mut [f32]) {
        let group = queries.len() / self.padded;
        let mut query = 0;
        while query < group {
            let (queries, weights) = (&queries[query * self.padded..], &mut weights[query * STEP..]);
            // SAFETY: the caller's contract.
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
            // SAFETY: the caller's contract.
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

    /// Computes `sums[query] += weights[query][position] * value` over all positions.
    #[inline(always)]
    pub(crate) unsafe fn add_values<S: Simd>(&self, weights: &[f32], sums: &mut [f32]) {
        let group = sums.len() / self.padded;
        let mut query = 0;
        while query < group {
            let (weights, sums) = (&weights[query * STEP..], &mut sums[query * self.padded..]);
            // SAFETY: the caller's contract.
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
        // SAFETY: the caller's contract. Sums, values and a weight must fit in registers: 16 with eight
        // lanes, otherwise 32.
        unsafe {
            match S::LANES {
                8 => self.add_values_by::<S, G, 2>(weights, sums),
                _ => self.add_values_by::<S, G, 4>(weights, sums),
            }
        }
    }

    /// Adds the values of all channels, `V` vectors of channels at a time as far as possible.
    #[inline(always)]
    unsafe fn add_values_by<S: Simd, const G: usize, const V: usize>(
        &self,
        weights: &[f32],
        sums: &mut [f32],
    ) {
        let whole = self.value_width.min(self.whole::<S>());
        let together = whole / (V * S::LANES) * V * S::LANES;
        // SAFETY: the caller's contract; sums are padded to whole vectors.
        unsafe {
            for channel in (0..together).step_by(V * S::LANES) {
                self.add_channels::<S, G, V, true>(channel, weights, sums);
            }
            for channel in (together..whole).step_by(S::LANES) {
                self.add_channels::<S, G, 1, true>(channel, weights, sums);
            }
            if whole < self.value_width {
                self.add_channels::<S, G, 1, false>(whole, weights, sums);
            }
        }
    }

    /// Adds `V` vectors of channels, which share each loaded weight.
    #[inline(always)]
    unsafe fn add_channels<S: Simd, const G: usize, const V: usize, const WHOLE: bool>(
        &self,
        channel: usize,
        weights: &[f32],
        sums: &mut [f32],
    ) {
        // SAFETY: the caller's contract.
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

/// Partial sums of a query's softmax weights, one per lane.
pub(crate) type LaneSums = [f32; 16];

/// Lane sums that add up to `number`.
pub(crate) fn lane_sums_from(number: f32) -> LaneSums {
    std::array::from_fn(|lane| if lane == 0 { number } else { 0.0 })
}

/// The horizontal sum.
#[inline(always)]
pub(crate) unsafe fn sum_lanes<S: Simd>(total: &LaneSums) -> f32 {
    // SAFETY: there are at least that many lanes.
    unsafe { S::sum(S::load(total.as_ptr())) }
}

/// Online-softmax update of several queries together, which hides the latency of each.
pub(crate) struct SoftmaxUpdate<'a> {
    /// `[query, STEP]`
    pub(crate) scores: &'a mut [f32],
    /// Running maximum of each query's scores.
    pub(crate) largest: &'a mut [f32],
    /// Running total of each query's weights.
    pub(crate) totals: &'a mut [LaneSums],
    /// Output: factors that rescale earlier sums to the new maximum, padded to whole vectors.
    pub(crate) corrections: &'a mut [f32],
}

impl SoftmaxUpdate<'_> {
    /// Replaces scores of attended positions by exp(score - largest), and others by 0, where `largest`
    /// includes these scores. Queries are divided evenly among the ranges `attended`.
    #[inline(always)]
    pub(crate) unsafe fn update<S: Simd>(self, attended: &[Range<usize>]) {
        let SoftmaxUpdate { scores, largest, totals, corrections } = self;
        let group = largest.len() / attended.len();
        // SAFETY: scores and corrections are whole vectors.
        unsafe {
            for (row, attended) in attended.iter().enumerate() {
                for query in row * group..(row + 1) * group {
                    let scores = &mut scores[query * STEP..][..STEP];
                    // Scores outside the range become weights of about 0, which are not used and not part of
                    // the total.
                    scores[..attended.start].fill(f32::NEG_INFINITY);
                    scores[attended.end..].fill(f32::NEG_INFINITY);
                    let mut of_step = S::splat(f32::NEG_INFINITY);
                    for i in (0..STEP).step_by(S::LANES) {
                        of_step = S::max(of_step, S::load(scores.as_ptr().add(i)));
                    }
                    let before = largest[query];
                    largest[query] = before.max(S::largest(of_step));
                    // Without earlier positions, sums and totals are still zero.
                    corrections[query] = if before == largest[query] { 0.0 } else { before - largest[query] };
                }
            }
            for i in (0..largest.len().next_multiple_of(S::LANES)).step_by(S::LANES) {
                let at = corrections[i..][..S::LANES].as_mut_ptr();
                S::store(at, S::exp(S::load(at)));
            }
            for (row, attended) in attended.iter().enumerate() {
                for query in row * group..(row + 1) * group {
                    let scores = &mut scores[query * STEP..][..STEP];
                    for i in (0..attended.end.next_multiple_of(S::LANES)).step_by(S::LANES) {
                        let score = S::load(scores.as_ptr().add(i));
                        S::store(scores.as_mut_ptr().add(i), S::exp(S::sub(score, S::splat(largest[query]))));
                    }
                    scores[..attended.start].fill(0.0);
                    scores[attended.end..].fill(0.0);
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
