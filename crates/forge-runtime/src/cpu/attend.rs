//! Attention with an online softmax: each query head over the cached keys and values of its slot, positions
//! `first..=position`, where first is 0 or follows from a window.
//!
//! Scalars: rows, context[, capacity][, splits]. Buffers: q, keys, values, [sinks,] [gates,] slots, positions, heads[, partials]; with a prologue
//! qkv[, query_gain, key_gain] in place of q, and keys and values are written; where its row brings nothing q[, query_gain], and
//! they are read. Serves the GPU's split and tiled kernels
//! alike: a thread takes some rows of one key head and goes through the cache in steps, so that each cached number is
//! loaded once for all queries that need it. It takes a cache whole, whatever the number of splits, so `partials` is not
//! needed.

// Indices count lanes and rows of fixed-size arrays: loops over them unroll into registers.
#![allow(clippy::needless_range_loop)]

use super::append::{Room, store};
use super::call::{Call, Output};
use super::finish::Each;
use super::formats::{Cached, Format};
use super::level::Task;
use super::rotation::{Brings, HeadNorm, Rotation, prepare, prepare_value};
use super::scratch::Scratch;
use super::simd::Simd;
use super::tile::totals;
use half::f16;
use std::marker::PhantomData;

/// What the compiler decided.
#[derive(Clone, Copy, Debug)]
pub struct Attend {
    /// Query heads.
    pub query_heads: usize,
    /// Key and value heads.
    pub key_heads: usize,
    /// Width of a head.
    pub width: usize,
    /// As in [`super::Append`].
    pub cache: Format,
    /// As in [`super::Append`], a multiple of 64.
    pub ring: Option<usize>,
    /// Multiplies q·k.
    pub scale: f32,
    /// Positions that a row sees, itself included; `None`: all so far.
    pub window: Option<usize>,
    /// c, where a score s becomes c · tanh(s / c).
    pub softcap: Option<f32>,
    /// Whether heads have sinks: each one more score, without a value.
    pub sinks: bool,
    /// What multiplies the heads that it gives.
    pub gates: Option<Gates>,
    /// What prepares rows, if that is left to this kernel. No two rows may be of one slot then.
    pub prologue: Option<Prologue>,
}

/// Where the gates of a row's heads are, of which sigmoids multiply what attention gives.
#[derive(Clone, Copy, Debug)]
pub struct Gates {
    /// Numbers of a row.
    pub pitch: usize,
    /// The first gate of its first head.
    pub first: usize,
}

/// What [`super::rotate_append()`] does, done by [`attend`].
#[derive(Clone, Copy, Debug)]
pub struct Prologue {
    /// What its row has beside queries.
    pub brings: Brings,
    /// Of queries and keys.
    pub norm: Option<HeadNorm>,
    /// Of queries and keys.
    pub rotation: Rotation,
}

/// What the compiler decided.
#[derive(Clone, Copy, Debug)]
pub struct AttendJoin {
    /// Query heads.
    pub query_heads: usize,
    /// Width of a head.
    pub width: usize,
}

/// Positions of a step.
pub(super) const STEP: usize = 64;
/// The most rows that a thread takes at once.
const ROWS: usize = 8;

/// Runs this thread's share.
pub fn attend(call: &Call<'_>, shape: &Attend) {
    match shape.cache {
        Format::F32 => call.level().run(Heads::<f32> { call, shape, cache: PhantomData }),
        Format::F16 => call.level().run(Heads::<f16> { call, shape, cache: PhantomData }),
        Format::Q8_0 => call.level().run(Heads::<u8> { call, shape, cache: PhantomData }),
        other => panic!("a cache in {other:?} has no CPU kernel"),
    }
}

/// Nothing: [`attend`] has written the heads, whatever the number of splits.
pub fn attend_join(_call: &Call<'_>, _shape: &AttendJoin) {}

struct Heads<'a, C> {
    call: &'a Call<'a>,
    shape: &'a Attend,
    cache: PhantomData<C>,
}

/// Where the rows' queries come from.
enum Queries<'a, C> {
    /// `[row, query head, width]`, ready.
    Ready(&'a [f32]),
    /// `[row, heads, width]`, to be prepared, with what goes to the cache.
    Raw { heads: &'a [f32], prologue: Prologue, query_gain: &'a [f32], own: Option<Own<'a, C>> },
}

/// Where the keys and values of the rows go that bring them.
struct Own<'a, C> {
    key_gain: &'a [f32],
    cache: [Output<'a, C>; 2],
}

impl<C: Cached> Task for Heads<'_, C> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Attend {
            query_heads,
            key_heads,
            width,
            ring,
            scale,
            window,
            softcap,
            sinks,
            gates,
            prologue,
            ..
        } = *self.shape;
        let call = self.call;
        let (rows, context) = (call.scalar(0), call.scalar(1));
        let room = Room::of(call, ring);
        // Steps are of positions that are neighbours in memory.
        assert!(ring.is_none_or(|ring| ring.is_multiple_of(STEP)), "a ring of {ring:?} positions");
        let group = query_heads / key_heads;
        let slots = call.input::<u32>("slots", rows);
        let positions = call.input::<u32>("positions", rows);
        let sinks = sinks.then(|| call.input::<f32>("sinks", query_heads));
        let gates = gates.map(|gates| (gates, call.input::<f32>("gates", rows * gates.pitch)));
        let last = slots.iter().map(|&slot| slot as usize + 1).max().unwrap_or(0);
        let cached = last * key_heads * room.positions * C::record(width);
        let heads = call.output::<f32>("heads", rows * query_heads * width);
        let (source, keys, values) = match prologue {
            None => (
                Queries::Ready(call.input::<f32>("q", rows * query_heads * width)),
                call.input::<C>("keys", cached).as_ptr(),
                call.input::<C>("values", cached).as_ptr(),
            ),
            Some(prologue) => {
                let count = rows * prologue.brings.heads(query_heads, key_heads)[2] * width;
                let gain = |name| if prologue.norm.is_some() { call.input::<f32>(name, width) } else { &[] };
                let query_gain = gain("query_gain");
                if prologue.brings == Brings::Nothing {
                    let heads = call.input::<f32>("q", count);
                    let cache = ["keys", "values"].map(|part| call.input::<C>(part, cached).as_ptr());
                    (Queries::Raw { heads, prologue, query_gain, own: None }, cache[0], cache[1])
                } else {
                    let twice = (0..rows).any(|row| slots[..row].contains(&slots[row]));
                    assert!(!twice, "two rows of a slot, where rows append what they attend to: {slots:?}");
                    let heads = call.input::<f32>("qkv", count);
                    let cache = ["keys", "values"].map(|part| call.output::<C>(part, cached));
                    let (keys, values) = (cache[0].start(), cache[1].start());
                    let own = Some(Own { key_gain: gain("key_gain"), cache });
                    (Queries::Raw { heads, prologue, query_gain, own }, keys, values)
                }
            }
        };

        let padded = width.next_multiple_of(16);
        let at_once = rows.div_ceil(call.workers() * 2).clamp(1, ROWS);
        let queries_at_once = at_once * group;
        let mut scratch = Scratch::take(queries_at_once * (2 * padded + 2) + group * STEP + 2 * padded);
        let (queries, scratch) = scratch.split_at_mut(queries_at_once * padded);
        let (sums, scratch) = scratch.split_at_mut(queries_at_once * padded);
        let (weights, scratch) = scratch.split_at_mut(group * STEP);
        let (prepared, scratch) = scratch.split_at_mut(2 * padded);
        let (largest, totals) = scratch.split_at_mut(queries_at_once);

        for item in call.share(rows.div_ceil(at_once) * key_heads, 1).flatten() {
            let (first, head) = (item / key_heads * at_once, item % key_heads);
            let rows = first..(first + at_once).min(rows);
            let count = rows.len() * group;
            queries[..count * padded].fill(0.0);
            sums[..count * padded].fill(0.0);
            let place = |row: usize, position: usize| {
                let of_head = (slots[row] as usize * key_heads + head) * room.positions;
                (of_head + room.of_position(position)) * C::record(width)
            };
            for row in rows.clone() {
                let position = positions[row] as usize;
                assert!(position < context, "row {row} is at position {position} of a context of {context}");
                let mine = (row - first) * group;
                for member in 0..group {
                    let sink = sinks.map(|sinks| sinks[head * group + member]);
                    largest[mine + member] = sink.unwrap_or(f32::NEG_INFINITY);
                    totals[mine + member] = if sink.is_some() { 1.0 } else { 0.0 };
                }
                let queries = &mut queries[mine * padded..(mine + group) * padded];
                // SAFETY: this thread alone has this key head of this slot, as no other row is of the slot where the
                // cache is written.
                unsafe {
                    match &source {
                        Queries::Ready(q) => {
                            let from = &q[(row * query_heads + head * group) * width..][..group * width];
                            for (to, from) in queries.chunks_exact_mut(padded).zip(from.chunks_exact(width)) {
                                to[..width].copy_from_slice(from);
                            }
                        }
                        Queries::Raw { heads, prologue, query_gain, own } => {
                            let Prologue { brings, norm, rotation } = prologue;
                            let [first_key, first_value, row_heads] = brings.heads(query_heads, key_heads);
                            let from = |number: usize| &heads[(row * row_heads + number) * width..][..width];
                            let with = |gain| norm.map(|norm| (norm, gain));
                            let (made, turns) = prepared.split_at_mut(padded);
                            let (made, turns) = (&mut made[..width], &mut turns[..rotation.room()]);
                            rotation.turns(position, context, turns);
                            for (member, to) in queries.chunks_exact_mut(padded).enumerate() {
                                let from = from(head * group + member);
                                prepare::<S>(from, with(*query_gain), rotation, turns, &mut to[..width]);
                            }
                            if let Some(Own { key_gain, cache: [keys, values] }) = own {
                                prepare::<S>(from(first_key + head), with(*key_gain), rotation, turns, made);
                                store(*keys, place(row, position), made);
                                let value = prepare_value::<S>(from(first_value + head), *norm, made);
                                store(*values, place(row, position), value);
                            }
                        }
                    }
                }
                for query in queries {
                    *query *= scale;
                }
            }

            let seen_from = |row: usize| match window {
                Some(window) => (positions[row] as usize + 1).saturating_sub(window),
                None => 0,
            };
            let shortest = rows.clone().map(seen_from).min().unwrap_or(0) / STEP * STEP;
            let longest = rows.clone().map(|row| positions[row] as usize + 1).max().unwrap_or(0);
            // Steps begin at multiples of their length for all rows, so what a row is computed from does not depend on
            // which rows come with it.
            for start in (shortest..longest).step_by(STEP) {
                for row in rows.clone() {
                    let begin = seen_from(row).max(start);
                    let end = (positions[row] as usize + 1).min(start + STEP);
                    if end <= begin {
                        continue;
                    }
                    let at = place(row, begin);
                    let mine = (row - first) * group;
                    // SAFETY: the cache has positions `begin..end` from `at`, by the check of its buffers and the
                    // position's; queries and sums are padded to whole vectors.
                    unsafe {
                        let step = Step::<C> {
                            keys: keys.add(at),
                            values: values.add(at),
                            positions: end - begin,
                            width,
                            valued: width,
                            padded,
                        };
                        let queries = &queries[mine * padded..(mine + group) * padded];
                        step.scores::<S>(queries, weights);
                        for member in 0..group {
                            let scores = &mut weights[member * STEP..(member + 1) * STEP];
                            if let Some(cap) = softcap {
                                cap_scores::<S>(scores, end - begin, cap);
                            }
                            let correction = soften::<S>(
                                scores,
                                end - begin,
                                &mut largest[mine + member],
                                &mut totals[mine + member],
                            );
                            if correction != 1.0 {
                                for sum in &mut sums[(mine + member) * padded..(mine + member + 1) * padded] {
                                    *sum *= correction;
                                }
                            }
                        }
                        step.add_values::<S>(weights, &mut sums[mine * padded..(mine + group) * padded]);
                    }
                }
            }
            for row in rows {
                for member in 0..group {
                    let query = (row - first) * group + member;
                    let at = (row * query_heads + head * group + member) * width;
                    // SAFETY: this thread alone has these heads of this row.
                    let out = unsafe { heads.part(at..at + width) };
                    for (out, sum) in out.iter_mut().zip(&sums[query * padded..]) {
                        *out = sum / totals[query];
                    }
                    if let Some((Gates { pitch, first }, gates)) = gates {
                        let own = &gates[row * pitch + first + (head * group + member) * width..];
                        out.iter_mut().zip(own).for_each(|(out, gate)| *out *= sigmoid(*gate));
                    }
                }
            }
        }
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Scores s become cap · tanh(s / cap).
#[inline(always)]
unsafe fn cap_scores<S: Simd>(scores: &mut [f32], count: usize, cap: f32) {
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
    unsafe fn load<S: Simd>(&self, from: *const C, position: usize, channel: usize) -> S::V {
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
        for channel in (0..self.valued).step_by(S::LANES) {
            // SAFETY: the caller's promise; sums are padded to whole vectors.
            unsafe {
                let mut of = [S::splat(0.0); G];
                for g in 0..G {
                    of[g] = S::load(sums.as_ptr().add(g * self.padded + channel));
                }
                for position in 0..self.positions {
                    let value = self.load::<S>(self.values, position, channel);
                    for g in 0..G {
                        of[g] = S::fma(S::splat(weights[g * STEP + position]), value, of[g]);
                    }
                }
                for g in 0..G {
                    S::store(sums.as_mut_ptr().add(g * self.padded + channel), of[g]);
                }
            }
        }
    }
}

/// Turns scores to exp(score - largest), where `largest` now counts these scores too; `total` counts the weights.
/// Gives what sums made with the old `largest` have to be multiplied by.
#[inline(always)]
pub(super) unsafe fn soften<S: Simd>(
    scores: &mut [f32],
    count: usize,
    largest: &mut f32,
    total: &mut f32,
) -> f32 {
    // Scores of no position become weights of about nothing, which nobody multiplies and the total leaves out.
    scores[count..].fill(f32::NEG_INFINITY);
    // SAFETY: scores are a whole number of vectors.
    unsafe {
        let mut of_step = S::splat(f32::NEG_INFINITY);
        for i in (0..STEP).step_by(S::LANES) {
            of_step = S::max(of_step, S::load(scores.as_ptr().add(i)));
        }
        let before = *largest;
        *largest = before.max(S::largest(of_step));
        let correction = if before == *largest { 1.0 } else { (before - *largest).exp() };
        for i in (0..count.next_multiple_of(S::LANES)).step_by(S::LANES) {
            let score = S::load(scores.as_ptr().add(i));
            S::store(scores.as_mut_ptr().add(i), S::exp(S::sub(score, S::splat(*largest))));
        }
        scores[count..].fill(0.0);
        let mut sums = S::splat(0.0);
        for i in (0..STEP).step_by(S::LANES) {
            sums = S::add(sums, S::load(scores.as_ptr().add(i)));
        }
        *total = *total * correction + S::sum(sums);
        correction
    }
}
