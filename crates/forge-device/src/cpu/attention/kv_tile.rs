//! KV tile: the keys of a step transposed and the values widened, once for all rows of a slot.
//!
//! Lanes are positions, so a score is the sum of one lane. All batch passes use this layout, even with one
//! row, so that results are batch-invariant.

// Index loops over lanes and rows of fixed-size arrays unroll into registers.
#![allow(clippy::needless_range_loop)]

use crate::cpu::attention::kv_format::KvElement;
use crate::cpu::attention::online_softmax::{KvBlock, STEP};
use crate::cpu::simd::vectors::Simd;
use std::ops::Range;

/// Queries per register tile.
const QUERIES: usize = 4;

/// The positions of a step as f32.
pub(crate) struct KvTile<'a> {
    /// `[channel, STEP]`
    keys: &'a mut [f32],
    /// `[STEP, padded]`
    values: &'a mut [f32],
    /// Head dimension, padded to a multiple of 16.
    padded: usize,
}

impl<'a> KvTile<'a> {
    /// Workspace elements of a tile.
    pub(crate) fn scratch_len(padded: usize) -> usize {
        2 * STEP * padded
    }

    /// Creates a tile in a workspace of that size.
    pub(crate) fn new(scratch: &'a mut [f32], padded: usize) -> KvTile<'a> {
        let (keys, values) = scratch.split_at_mut(STEP * padded);
        KvTile { keys, values, padded }
    }

    /// Loads and transposes the keys of some positions of a step; `cached` starts at the first of them.
    #[inline(always)]
    pub(crate) unsafe fn take_keys<S: Simd, C: KvElement>(
        &mut self,
        cached: &KvBlock<C>,
        positions: Range<usize>,
    ) {
        let whole = cached.whole::<S>();
        // SAFETY: the caller ensures that the positions exist.
        unsafe {
            for channel in (0..whole).step_by(S::LANES) {
                self.take_keys_from::<S, C, true>(cached, positions.clone(), channel);
            }
            if whole < cached.width {
                self.take_keys_from::<S, C, false>(cached, positions, whole);
            }
        }
    }

    /// Loads the vector of each key that starts at `channel`.
    #[inline(always)]
    unsafe fn take_keys_from<S: Simd, C: KvElement, const WHOLE: bool>(
        &mut self,
        cached: &KvBlock<C>,
        positions: Range<usize>,
        channel: usize,
    ) {
        let mut square = [[0.0_f32; 16]; 16];
        for first in (positions.start / S::LANES * S::LANES..positions.end).step_by(S::LANES) {
            // Lanes of other positions are unspecified; their scores are unused.
            for position in positions.start.max(first)..positions.end.min(first + S::LANES) {
                // SAFETY: the caller's contract.
                unsafe {
                    let key = cached.load::<S, WHOLE>(cached.keys, position - positions.start, channel);
                    S::store(square[position - first].as_mut_ptr(), key);
                }
            }
            // SAFETY: the tile holds all lanes of every instruction set.
            unsafe {
                S::transpose(
                    square.each_ref().map(|row| row.as_ptr()),
                    &mut self.keys[channel * STEP + first],
                    STEP,
                )
            };
        }
    }

    /// Loads the values of the same positions.
    #[inline(always)]
    pub(crate) unsafe fn take_values<S: Simd, C: KvElement>(
        &mut self,
        cached: &KvBlock<C>,
        positions: Range<usize>,
    ) {
        let whole = cached.whole::<S>();
        for position in positions.clone() {
            let to = &mut self.values[position * self.padded..][..self.padded];
            // SAFETY: the caller ensures that the positions exist.
            unsafe {
                for channel in (0..whole).step_by(S::LANES) {
                    let value = cached.load::<S, true>(cached.values, position - positions.start, channel);
                    S::store(&mut to[channel], value);
                }
                if whole < cached.width {
                    let value = cached.load::<S, false>(cached.values, position - positions.start, whole);
                    S::store(&mut to[whole], value);
                }
            }
        }
    }

    /// The loaded values from position `first` on, as a block.
    pub(crate) fn step(&self, first: usize, positions: usize, width: usize) -> KvBlock<f32> {
        let values = self.values[first * self.padded..].as_ptr();
        let padded = self.padded;
        KvBlock { keys: values, values, positions, width: padded, value_width: width, padded }
    }

    /// Computes `weights[query][position]` = query · key for at least the first `end` positions of the step.
    #[inline(always)]
    pub(crate) unsafe fn scores<S: Simd>(
        &self,
        queries: &[f32],
        width: usize,
        end: usize,
        weights: &mut [f32],
    ) {
        // SAFETY: the caller's contract. Sums, keys and a query must fit in registers: 16 with eight lanes,
        // otherwise 32.
        unsafe {
            match S::LANES {
                8 => self.scores_by::<S, 2>(queries, width, end, weights),
                _ if end <= 2 * S::LANES => self.scores_by::<S, 2>(queries, width, end, weights),
                _ => self.scores_by::<S, 4>(queries, width, end, weights),
            }
        }
    }

    /// With `VECTORS` vectors of positions per register tile.
    #[inline(always)]
    unsafe fn scores_by<S: Simd, const VECTORS: usize>(
        &self,
        queries: &[f32],
        width: usize,
        end: usize,
        weights: &mut [f32],
    ) {
        let count = queries.len() / self.padded;
        for query in (0..count).step_by(QUERIES) {
            let (queries, weights) = (&queries[query * self.padded..], &mut weights[query * STEP..]);
            // SAFETY: the caller's contract.
            unsafe {
                match count - query {
                    1 => self.scores_of::<S, VECTORS, 1>(queries, width, end, weights),
                    2 => self.scores_of::<S, VECTORS, 2>(queries, width, end, weights),
                    3 => self.scores_of::<S, VECTORS, 3>(queries, width, end, weights),
                    _ => self.scores_of::<S, VECTORS, QUERIES>(queries, width, end, weights),
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn scores_of<S: Simd, const VECTORS: usize, const Q: usize>(
        &self,
        queries: &[f32],
        width: usize,
        end: usize,
        weights: &mut [f32],
    ) {
        for first in (0..end).step_by(VECTORS * S::LANES) {
            // SAFETY: the caller ensures the lengths of queries and weights.
            unsafe {
                let mut sums = [[S::splat(0.0); VECTORS]; Q];
                for channel in 0..width {
                    let keys = self.keys[channel * STEP + first..][..VECTORS * S::LANES].as_ptr();
                    for v in 0..VECTORS {
                        let key = S::load(keys.add(v * S::LANES));
                        for q in 0..Q {
                            let query = S::splat(*queries.get_unchecked(q * self.padded + channel));
                            sums[q][v] = S::fma(key, query, sums[q][v]);
                        }
                    }
                }
                for q in 0..Q {
                    for v in 0..VECTORS {
                        S::store(&mut weights[q * STEP + first + v * S::LANES], sums[q][v]);
                    }
                }
            }
        }
    }
}
