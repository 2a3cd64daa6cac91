//! Attention with an online softmax: each query head over the cached keys and values of its slot, positions
//! `first..=position`, where first is 0 or follows from a window.
//!
//! Scalars: rows, context[, capacity][, splits]. Buffers: q, keys, values[, sinks][, gates], slots, positions, heads[, partials]; with a prologue
//! qkv[, query_gain, key_gain] in place of q, and keys and values are written; where its row brings nothing q[, query_gain], and
//! they are read. Serves the GPU's split and tiled kernels
//! alike: a thread takes some rows of one key head and goes through the cache in steps, so that each cached number is
//! loaded once for all queries that need it. It takes a cache whole, whatever the number of splits, so `partials` is not
//! needed.

use crate::cpu::attention::attention_tile::{Attention, AttentionTile};
use crate::cpu::attention::kv_append::KvExtent;
use crate::cpu::attention::kv_format::KvElement;
use crate::cpu::attention::online_softmax::STEP;
use crate::cpu::attention::rope_tables::{HeadNorm, KvSource, Rotation};
use crate::cpu::device::kernel_args::{KernelArgs, Output};
use crate::cpu::device::scratch::Scratch;
use crate::cpu::format::matrix::Format;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
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
    /// As in [`crate::cpu::Append`].
    pub cache: Format,
    /// As in [`crate::cpu::Append`], a multiple of 64.
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

/// What [`crate::cpu::attention::rope_append()`] does, done by [`attend`].
#[derive(Clone, Copy, Debug)]
pub struct Prologue {
    /// What its row has beside queries.
    pub brings: KvSource,
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

/// Runs this thread's share.
pub fn attend(call: &KernelArgs<'_>, shape: &Attend) {
    match shape.cache {
        Format::F32 => call.level().run(Heads::<f32> { call, shape, cache: PhantomData }),
        Format::F16 => call.level().run(Heads::<f16> { call, shape, cache: PhantomData }),
        Format::Q8_0 => call.level().run(Heads::<u8> { call, shape, cache: PhantomData }),
        other => panic!("a cache in {other:?} has no CPU kernel"),
    }
}

/// Nothing: [`attend`] has written the heads, whatever the number of splits.
pub fn attend_join(_call: &KernelArgs<'_>, _shape: &AttendJoin) {}

struct Heads<'a, C> {
    call: &'a KernelArgs<'a>,
    shape: &'a Attend,
    cache: PhantomData<C>,
}

/// Where the rows' queries come from.
pub(crate) enum Queries<'a, C> {
    /// `[row, query head, width]`, ready.
    Ready(&'a [f32]),
    /// `[row, heads, width]`, to be prepared, with what goes to the cache.
    Raw { heads: &'a [f32], prologue: Prologue, query_gain: &'a [f32], own: Option<Own<'a, C>> },
}

/// Where the keys and values of the rows go that bring them.
pub(crate) struct Own<'a, C> {
    pub(crate) key_gain: &'a [f32],
    pub(crate) cache: [Output<'a, C>; 2],
}

impl<C: KvElement> Task for Heads<'_, C> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Heads { call, shape, .. } = self;
        let Attend { key_heads, width, .. } = *shape;
        let of = self.attention();
        let (rows, group, padded) = (of.positions.len(), of.group(), width.next_multiple_of(16));
        let at_once = rows.div_ceil(call.workers() * 2).clamp(1, AttentionTile::most_rows(group));
        let mut scratch = Scratch::take(AttentionTile::room(at_once * group, padded));
        let mut share = AttentionTile::new(&mut scratch, at_once * group, group, padded);
        for item in call.share_rows(rows.div_ceil(at_once) * key_heads, 1).flatten() {
            let (first, head) = (item / key_heads * at_once, item % key_heads);
            let rows = first..(first + at_once).min(rows);
            // SAFETY: this thread alone has this key head of these rows, and so of their slots, as no other row is of a slot where the
            // cache is written. The cache has these positions, by the check of its buffers and the positions'.
            unsafe {
                share.begin::<S, C>(&of, rows.clone(), head);
                for start in of.steps(rows) {
                    share.meet::<S, C>(&of, start);
                }
                share.finish::<S, C>(&of);
            }
        }
    }
}

impl<'a, C: KvElement> Heads<'a, C> {
    /// Finds the buffers.
    #[inline(always)]
    fn attention(&self) -> Attention<'a, C> {
        let Heads { call, shape, .. } = *self;
        let Attend { query_heads, key_heads, width, ring, sinks, gates, prologue, .. } = *shape;
        let (rows, context) = (call.scalar(0), call.scalar(1));
        let room = KvExtent::of(call, ring);
        // Steps are of positions that are neighbours in memory.
        assert!(ring.is_none_or(|ring| ring.is_multiple_of(STEP)), "a ring of {ring:?} positions");
        let slots = call.input::<u32>("slots", rows);
        let last = slots.iter().map(|&slot| slot as usize + 1).max().unwrap_or(0);
        let cached = last * key_heads * room.positions * C::record(width);
        let (queries, keys, values) = match prologue {
            None => (
                Queries::Ready(call.input::<f32>("q", rows * query_heads * width)),
                call.input::<C>("keys", cached).as_ptr(),
                call.input::<C>("values", cached).as_ptr(),
            ),
            Some(prologue) => {
                let count = rows * prologue.brings.heads(query_heads, key_heads)[2] * width;
                let gain = |name| if prologue.norm.is_some() { call.input::<f32>(name, width) } else { &[] };
                let query_gain = gain("query_gain");
                if prologue.brings == KvSource::Nothing {
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
        Attention {
            shape,
            alone: call.alone(),
            context,
            room,
            slots,
            positions: call.input::<u32>("positions", rows),
            queries,
            keys,
            values,
            sinks: sinks.then(|| call.input::<f32>("sinks", query_heads)),
            gates: gates.map(|gates| (gates, call.input::<f32>("gates", rows * gates.pitch))),
            heads: call.output::<f32>("heads", rows * query_heads * width),
        }
    }
}
