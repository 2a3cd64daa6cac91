//! Attention with an online softmax: each query head over the cached keys and values of its slot, positions
//! `first..=position`, where first is 0 or follows from a window.
//!
//! Scalars: rows, context[, capacity][, splits]. Buffers: q, keys, values, [sinks,] [gates,] slots, positions, heads[, partials]; with a prologue
//! qkv[, query_gain, key_gain] in place of q, and keys and values are written; where its row brings nothing q[, query_gain], and
//! they are read. Serves the GPU's split and tiled kernels
//! alike: a thread takes some rows of one key head and goes through the cache in steps, so that each cached number is
//! loaded once for all queries that need it. It takes a cache whole, whatever the number of splits, so `partials` is not
//! needed.

use super::append::{Room, store};
use super::attend_step::{STEP, Step, cap_scores, soften};
use super::beside::Beside;
use super::call::{Call, Output};
use super::formats::{Cached, Format};
use super::level::Task;
use super::rotation::{Brings, HeadNorm, Rotation, prepare, prepare_value};
use super::scratch::Scratch;
use super::simd::Simd;
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
        let mut scratch =
            Scratch::take(queries_at_once * (2 * padded + 2 + STEP) + 2 * padded + Beside::room(padded));
        let (widened, scratch) = scratch.split_at_mut(Beside::room(padded));
        let mut beside = Beside::new(widened, padded);
        let (queries, scratch) = scratch.split_at_mut(queries_at_once * padded);
        let (sums, scratch) = scratch.split_at_mut(queries_at_once * padded);
        let (weights, scratch) = scratch.split_at_mut(queries_at_once * STEP);
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
            let seen = |row: usize, start: usize| {
                seen_from(row).max(start)..(positions[row] as usize + 1).min(start + STEP)
            };
            for start in (shortest..longest).step_by(STEP) {
                let mut next = rows.start;
                while next < rows.end {
                    // Rows of one slot are neighbours, and meet what any of them sees.
                    let of_slot =
                        next..(next..rows.end).find(|row| slots[*row] != slots[next]).unwrap_or(rows.end);
                    next = of_slot.end;
                    let all = of_slot.clone().map(|row| seen(row, start)).filter(|seen| !seen.is_empty());
                    let Some(all) = all.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)) else {
                        continue;
                    };
                    let at = place(of_slot.start, all.start);
                    // SAFETY: the cache has these positions from `at`, by the check of its buffers and the position's; queries
                    // and sums are padded to whole vectors.
                    let step = unsafe {
                        Step::<C> {
                            keys: keys.add(at),
                            values: values.add(at),
                            positions: all.len(),
                            width,
                            valued: width,
                            padded,
                        }
                    };
                    let in_step = all.start - start..all.end - start;
                    let queries_of =
                        (of_slot.start - first) * group * padded..(of_slot.end - first) * group * padded;
                    let is_shared = of_slot.len() > 1;
                    // SAFETY: as above.
                    unsafe {
                        if call.alone() {
                            step.scores::<S>(&queries[queries_of], weights);
                        } else {
                            beside.take_keys::<S, C>(&step, in_step.clone());
                            beside.scores::<S>(&queries[queries_of], width, weights);
                        }
                        if is_shared {
                            beside.take_values::<S, C>(&step, in_step.clone());
                        }
                    }
                    for row in of_slot.clone() {
                        let seen = seen(row, start);
                        if seen.is_empty() {
                            continue;
                        }
                        let weights = &mut weights[(row - of_slot.start) * group * STEP..][..group * STEP];
                        let mine = (row - first) * group;
                        // A row that is alone is scored from the first position that it sees on.
                        let origin = if call.alone() { all.start } else { start };
                        let seen_of_step = seen.start - origin..seen.end - origin;
                        // SAFETY: as above.
                        unsafe {
                            for member in 0..group {
                                let scores = &mut weights[member * STEP..(member + 1) * STEP];
                                if let Some(cap) = softcap {
                                    cap_scores::<S>(scores, seen_of_step.end, cap);
                                }
                                let correction = soften::<S>(
                                    scores,
                                    seen_of_step.clone(),
                                    &mut largest[mine + member],
                                    &mut totals[mine + member],
                                );
                                if correction != 1.0 {
                                    for sum in
                                        &mut sums[(mine + member) * padded..(mine + member + 1) * padded]
                                    {
                                        *sum *= correction;
                                    }
                                }
                            }
                            let sums = &mut sums[mine * padded..(mine + group) * padded];
                            let weights = &weights[seen_of_step.start..];
                            if is_shared {
                                let step = beside.step(seen.start - start, seen.len(), width);
                                step.add_values::<S>(weights, sums);
                            } else {
                                step.add_values::<S>(weights, sums);
                            }
                        }
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
