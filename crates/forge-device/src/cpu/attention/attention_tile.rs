//! A thread's tile of attention: some rows of one KV head, their queries, and their running sums.
//!
//! `begin` prepares queries and appends the rows' keys and values to the cache. `attend_block` processes one
//! step of cached positions. `finish` divides sums by totals and applies gates. The rows of one slot share the
//! positions of a step that any of them attends to.

use crate::cpu::attention::attend::{KvDestination, Queries};
use crate::cpu::attention::kv_append::{KvExtent, store};
use crate::cpu::attention::kv_format::KvElement;
use crate::cpu::attention::kv_tile::KvTile;
use crate::cpu::attention::online_softmax::{
    KvBlock, LaneSums, STEP, SoftmaxUpdate, cap_scores, lane_sums_from, sum_lanes,
};
use crate::cpu::attention::rope_tables::RopeTables;
use crate::cpu::attention::rope_tables::{prepare, prepare_value};
use crate::cpu::device::kernel_args::Output;
use crate::cpu::simd::vectors::Simd;
use forge_ops::{Attend, Gates, Prologue};
use std::ops::Range;

/// Maximum number of rows per tile: a step is converted to f32 once for all of them.
const ROWS: usize = 32;
/// Maximum number of queries per tile with more than half as many rows, so that their state fits in L2.
const QUERIES: usize = 128;

/// Shape and buffers of a dispatch, shared by all tiles.
pub(crate) struct Attention<'a, C> {
    pub(crate) shape: &'a Attend,
    /// Whether this is a decode step, where results need not be batch-invariant.
    pub(crate) alone: bool,
    pub(crate) context: usize,
    pub(crate) extent: KvExtent,
    pub(crate) slots: &'a [u32],
    pub(crate) positions: &'a [u32],
    pub(crate) queries: Queries<'a, C>,
    pub(crate) keys: *const C,
    pub(crate) values: *const C,
    pub(crate) sinks: Option<&'a [f32]>,
    pub(crate) gates: Option<(Gates, &'a [f32])>,
    pub(crate) heads: Output<'a, f32>,
}

impl<C: KvElement> Attention<'_, C> {
    /// Query heads per KV head.
    pub(crate) fn group(&self) -> usize {
        self.shape.query_heads / self.shape.key_heads
    }

    /// Offset in the cache of a position of a row's slot.
    fn place(&self, row: usize, head: usize, position: usize) -> usize {
        let of_head = (self.slots[row] as usize * self.shape.key_heads + head) * self.extent.positions;
        (of_head + self.extent.of_position(position)) * C::stride(self.shape.width)
    }

    /// The first position that a row attends to.
    fn first_attended(&self, row: usize) -> usize {
        let seen = self.positions[row] as usize + 1;
        self.shape.window.map_or(0, |window| seen.saturating_sub(window))
    }

    /// The positions of the step at `start` that a row attends to.
    fn attended(&self, row: usize, start: usize) -> Range<usize> {
        self.first_attended(row).max(start)..(self.positions[row] as usize + 1).min(start + STEP)
    }

    /// Starts of the steps of some rows. They are multiples of the step length for all rows, so that results
    /// are batch-invariant.
    pub(crate) fn steps(&self, rows: Range<usize>) -> impl Iterator<Item = usize> {
        let shortest = rows.clone().map(|row| self.first_attended(row)).min().unwrap_or(0) / STEP * STEP;
        let longest = rows.map(|row| self.positions[row] as usize + 1).max().unwrap_or(0);
        (shortest..longest).step_by(STEP)
    }
}

/// The rows that a thread processes together.
pub(crate) struct AttentionTile<'s> {
    rows: Range<usize>,
    /// The KV head.
    head: usize,
    /// Query heads per row.
    group: usize,
    /// Head dimension, padded to whole vectors.
    padded: usize,
    /// `[query, padded]`, for queries and sums.
    queries: &'s mut [f32],
    sums: &'s mut [f32],
    /// `[query, STEP]`: scores, then softmax weights.
    weights: &'s mut [f32],
    /// A key and its RoPE factors, while a row is prepared.
    prepared: &'s mut [f32],
    /// Maximum score of each query so far, and total of its weights.
    largest: &'s mut [f32],
    totals: &'s mut [LaneSums],
    /// Factors that rescale the sums before a step is added, padded to whole vectors.
    corrections: &'s mut [f32],
    tile: KvTile<'s>,
}

impl<'s> AttentionTile<'s> {
    /// Maximum number of rows, for `group` queries per row.
    pub(crate) fn most_rows(group: usize) -> usize {
        (QUERIES / group).clamp(ROWS / 2, ROWS)
    }

    /// Workspace elements for `queries` queries.
    pub(crate) fn scratch_len(queries: usize, padded: usize) -> usize {
        queries * (2 * padded + STEP + 1 + size_of::<LaneSums>() / size_of::<f32>())
            + 2 * padded
            + queries.next_multiple_of(16)
            + KvTile::scratch_len(padded)
    }

    /// Creates a tile in a workspace of that size.
    pub(crate) fn new(
        scratch: &'s mut [f32],
        queries: usize,
        group: usize,
        padded: usize,
    ) -> AttentionTile<'s> {
        let (widened, scratch) = scratch.split_at_mut(KvTile::scratch_len(padded));
        let tile = KvTile::new(widened, padded);
        let (of_queries, scratch) = scratch.split_at_mut(queries * padded);
        let (sums, scratch) = scratch.split_at_mut(queries * padded);
        let (weights, scratch) = scratch.split_at_mut(queries * STEP);
        let (prepared, scratch) = scratch.split_at_mut(2 * padded);
        let (corrections, scratch) = scratch.split_at_mut(queries.next_multiple_of(16));
        let (totals, largest) = scratch.split_at_mut(scratch.len() - queries);
        let ((totals, _), rows, head, queries) = (totals.as_chunks_mut(), 0..0, 0, of_queries);
        AttentionTile {
            rows,
            head,
            group,
            padded,
            queries,
            sums,
            weights,
            prepared,
            largest,
            totals,
            corrections,
            tile,
        }
    }

    /// Indices of a row's queries in the tile.
    fn queries_of(&self, row: usize) -> Range<usize> {
        let first = (row - self.rows.start) * self.group;
        first..first + self.group
    }

    /// Starts a tile with other rows.
    ///
    /// # Safety
    /// If rows have keys, this KV head of the rows' slots must belong to this thread.
    #[inline(always)]
    pub(crate) unsafe fn begin<S: Simd, C: KvElement>(
        &mut self,
        of: &Attention<'_, C>,
        rows: Range<usize>,
        head: usize,
    ) {
        let count = rows.len() * self.group;
        (self.rows, self.head) = (rows, head);
        self.queries[..count * self.padded].fill(0.0);
        self.sums[..count * self.padded].fill(0.0);
        for row in self.rows.clone() {
            let (position, context) = (of.positions[row] as usize, of.context);
            assert!(
                position < context,
                "row {row}: position {position} exceeds the context length {context}"
            );
            for (member, query) in self.queries_of(row).enumerate() {
                let sink = of.sinks.map(|sinks| sinks[head * self.group + member]);
                self.largest[query] = sink.unwrap_or(f32::NEG_INFINITY);
                self.totals[query] = lane_sums_from(if sink.is_some() { 1.0 } else { 0.0 });
            }
            // SAFETY: the caller's contract.
            unsafe { self.prepare::<S, C>(of, row) };
        }
    }

    /// Prepares and scales the queries of a row, and appends its key and value to the cache.
    #[inline(always)]
    unsafe fn prepare<S: Simd, C: KvElement>(&mut self, of: &Attention<'_, C>, row: usize) {
        let Attend { query_heads, key_heads, width, scale, .. } = *of.shape;
        let (head, group, padded, position) =
            (self.head, self.group, self.padded, of.positions[row] as usize);
        let mine = self.queries_of(row);
        let queries = &mut self.queries[mine.start * padded..mine.end * padded];
        match &of.queries {
            Queries::Ready(q) => {
                let from = &q[(row * query_heads + head * group) * width..][..group * width];
                for (to, from) in queries.chunks_exact_mut(padded).zip(from.chunks_exact(width)) {
                    to[..width].copy_from_slice(from);
                }
            }
            Queries::Raw { heads, prologue, query_gain, own } => {
                let Prologue { kv_source, norm, rope } = *prologue;
                let [first_key, first_value, row_heads] = kv_source.head_offsets(query_heads, key_heads);
                let from = |number: usize| &heads[(row * row_heads + number) * width..][..width];
                let with = |gain| norm.map(|norm| (norm, gain));
                let (made, cos_sin) = self.prepared.split_at_mut(padded);
                let (made, cos_sin) = (&mut made[..width], &mut cos_sin[..rope.table_len()]);
                rope.cos_sin(position, of.context, cos_sin);
                // SAFETY: heads are as wide as `made`; for the cache, the caller's contract.
                unsafe {
                    for (member, to) in queries.chunks_exact_mut(padded).enumerate() {
                        let from = from(head * group + member);
                        prepare::<S>(from, with(*query_gain), rope, cos_sin, &mut to[..width]);
                    }
                    if let Some(KvDestination { key_gain, cache: [keys, values] }) = own {
                        let place = of.place(row, head, position);
                        prepare::<S>(from(first_key + head), with(*key_gain), rope, cos_sin, made);
                        store(*keys, place, made);
                        let value = prepare_value::<S>(from(first_value + head), *norm, made);
                        store(*values, place, value);
                    }
                }
            }
        }
        for query in queries {
            *query *= scale;
        }
    }

    /// Processes the step at `start` for all rows.
    ///
    /// # Safety
    /// The cache must have the positions of all rows.
    #[inline(always)]
    pub(crate) unsafe fn attend_block<S: Simd, C: KvElement>(&mut self, of: &Attention<'_, C>, start: usize) {
        let mut next = self.rows.start;
        while next < self.rows.end {
            // Rows of one slot are adjacent.
            let others = (next..self.rows.end).find(|row| of.slots[*row] != of.slots[next]);
            let of_slot = next..others.unwrap_or(self.rows.end);
            next = of_slot.end;
            let seen = of_slot.clone().map(|row| of.attended(row, start)).filter(|seen| !seen.is_empty());
            if let Some(seen) = seen.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)) {
                // SAFETY: the caller's contract.
                unsafe { self.attend_slot_rows::<S, C>(of, of_slot, start, seen) };
            }
        }
    }

    /// Processes the rows of one slot; `all` are the positions that any of them attends to.
    #[inline(always)]
    unsafe fn attend_slot_rows<S: Simd, C: KvElement>(
        &mut self,
        of: &Attention<'_, C>,
        rows: Range<usize>,
        start: usize,
        all: Range<usize>,
    ) {
        let (width, padded, group) = (of.shape.width, self.padded, self.group);
        let at = of.place(rows.start, self.head, all.start);
        let mine = self.queries_of(rows.start).start..self.queries_of(rows.end).start;
        let queries = &self.queries[mine.start * padded..mine.end * padded];
        let is_shared = rows.len() > 1;
        // SAFETY: the cache has these positions from `at` on; queries and sums are padded to whole vectors.
        unsafe {
            let (keys, values) = (of.keys.add(at), of.values.add(at));
            let step = KvBlock::<C> { keys, values, positions: all.len(), width, value_width: width, padded };
            let in_step = all.start - start..all.end - start;
            if of.alone {
                step.scores::<S>(queries, self.weights);
            } else {
                self.tile.take_keys::<S, C>(&step, in_step.clone());
                self.tile.scores::<S>(queries, width, all.end - start, self.weights);
            }
            if is_shared {
                self.tile.take_values::<S, C>(&step, in_step);
            }
            // In decode, scores begin at the first attended position.
            let origin = if of.alone { all.start } else { start };
            let seen: [Range<usize>; ROWS] = std::array::from_fn(|i| {
                let seen = of.attended((rows.start + i).min(rows.end - 1), start);
                if seen.is_empty() { 0..0 } else { seen.start - origin..seen.end - origin }
            });
            let seen = &seen[..rows.len()];
            self.weigh::<S>(mine, seen, of.shape.softcap);
            for (row, seen) in rows.clone().zip(seen).filter(|(_, seen)| !seen.is_empty()) {
                let (mine, first) = (self.queries_of(row), (row - rows.start) * group * STEP);
                let sums = &mut self.sums[mine.start * padded..mine.end * padded];
                let weights = &self.weights[first + seen.start..first + group * STEP];
                if is_shared {
                    self.tile.step(seen.start, seen.len(), width).add_values::<S>(weights, sums);
                } else {
                    step.add_values::<S>(weights, sums);
                }
            }
        }
    }

    /// Converts scores to softmax weights, and rescales the queries' sums. Queries of one row have the same
    /// positions.
    #[inline(always)]
    unsafe fn weigh<S: Simd>(&mut self, queries: Range<usize>, seen: &[Range<usize>], softcap: Option<f32>) {
        let scores = &mut self.weights[..queries.len() * STEP];
        // SAFETY: there are as many scores as a step has positions.
        unsafe {
            if let Some(cap) = softcap {
                for (scores, seen) in scores.chunks_exact_mut(self.group * STEP).zip(seen) {
                    for scores in scores.chunks_exact_mut(STEP) {
                        cap_scores::<S>(scores, seen.end, cap);
                    }
                }
            }
            let (largest, totals) = (&mut self.largest[queries.clone()], &mut self.totals[queries.clone()]);
            let corrections = &mut *self.corrections;
            SoftmaxUpdate { scores, largest, totals, corrections }.update::<S>(seen);
        }
        let sums = &mut self.sums[queries.start * self.padded..queries.end * self.padded];
        for (sums, correction) in sums.chunks_exact_mut(self.padded).zip(&*self.corrections) {
            sums.iter_mut().for_each(|sum| *sum *= correction);
        }
    }

    /// Writes the output heads of the rows.
    ///
    /// # Safety
    /// This KV head of these rows must belong to this thread.
    #[inline(always)]
    pub(crate) unsafe fn finish<S: Simd, C: KvElement>(&self, of: &Attention<'_, C>) {
        let width = of.shape.width;
        for row in self.rows.clone() {
            for (member, query) in self.queries_of(row).enumerate() {
                let query_head = self.head * self.group + member;
                let at = (row * of.shape.query_heads + query_head) * width;
                // SAFETY: the caller's contract.
                let (out, total) =
                    unsafe { (of.heads.part(at..at + width), sum_lanes::<S>(&self.totals[query])) };
                for (out, sum) in out.iter_mut().zip(&self.sums[query * self.padded..]) {
                    *out = sum / total;
                }
                if let Some((Gates { pitch, first }, gates)) = of.gates {
                    let own = &gates[row * pitch + first + query_head * width..];
                    out.iter_mut().zip(own).for_each(|(out, gate)| *out *= sigmoid(*gate));
                }
            }
        }
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
