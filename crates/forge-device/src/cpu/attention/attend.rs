//! Attention with online softmax: each query head attends to the cached keys and values of its slot. A row
//! attends to positions `first..=position`, where `first` is 0 or given by the sliding window.
//!
//! Scalars: rows, context[, capacity][, splits]. Buffers: q, keys, values[, sinks][, gates], slots,
//! positions, heads[, partials].
//! - With a prologue: qkv[, query_gain, key_gain] instead of q; keys and values are written.
//! - With a prologue of rows without keys and values: q[, query_gain]; keys and values are read.
//!
//! It replaces both the split-KV and the tiled GPU kernels. A thread takes some rows of one KV head and steps
//! through the cache, so that each cached element is loaded once for all its queries. The cache is not split,
//! whatever the number of splits, so `partials` is not used.

use crate::cpu::attention::attention_tile::{Attention, AttentionTile};
use crate::cpu::attention::kv_append::KvExtent;
use crate::cpu::attention::kv_format::KvElement;
use crate::cpu::attention::online_softmax::STEP;
use crate::cpu::device::kernel_args::{KernelArgs, Output};
use crate::cpu::device::scratch::Scratch;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
use forge_ops::KvSource;
use forge_ops::{Attend, AttendCombine, Format, Prologue};
use half::f16;
use std::marker::PhantomData;

/// Runs this thread's part.
pub fn attend(call: &KernelArgs<'_>, shape: &Attend) {
    match shape.cache {
        Format::F32 => call.level().run(Heads::<f32> { call, shape, cache: PhantomData }),
        Format::F16 => call.level().run(Heads::<f16> { call, shape, cache: PhantomData }),
        Format::Q8_0 => call.level().run(Heads::<u8> { call, shape, cache: PhantomData }),
        other => panic!("unsupported KV cache format on the CPU: {other:?}"),
    }
}

/// Does nothing: [`attend`] does not split the KV cache.
pub fn attend_combine(_call: &KernelArgs<'_>, _shape: &AttendCombine) {}

struct Heads<'a, C> {
    call: &'a KernelArgs<'a>,
    shape: &'a Attend,
    cache: PhantomData<C>,
}

/// Source of the rows' queries.
pub(crate) enum Queries<'a, C> {
    /// Prepared queries, `[row, query head, width]`.
    Ready(&'a [f32]),
    /// Raw heads, `[row, heads, width]`, to be normed and rotated, with keys and values for the cache.
    Raw { heads: &'a [f32], prologue: &'a Prologue, query_gain: &'a [f32], own: Option<KvDestination<'a, C>> },
}

/// Destination of the rows' own keys and values.
pub(crate) struct KvDestination<'a, C> {
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
        let mut scratch = Scratch::take(AttentionTile::scratch_len(at_once * group, padded));
        let mut tile = AttentionTile::new(&mut scratch, at_once * group, group, padded);
        for item in call.claim_rows(rows.div_ceil(at_once) * key_heads, 1).flatten() {
            let (first, head) = (item / key_heads * at_once, item % key_heads);
            let rows = first..(first + at_once).min(rows);
            // SAFETY: this KV head of these rows belongs to this thread. Where the cache is written, each
            // slot has one row. The buffer check and the position check ensure that the cache has these
            // positions.
            unsafe {
                tile.begin::<S, C>(&of, rows.clone(), head);
                for start in of.steps(rows) {
                    tile.attend_block::<S, C>(&of, start);
                }
                tile.finish::<S, C>(&of);
            }
        }
    }
}

impl<'a, C: KvElement> Heads<'a, C> {
    /// Looks up the buffers.
    #[inline(always)]
    fn attention(&self) -> Attention<'a, C> {
        let Heads { call, shape, .. } = *self;
        let Attend { query_heads, key_heads, width, ring, sinks, gates, ref prologue, .. } = *shape;
        let (rows, context) = (call.scalar(0), call.scalar(1));
        let extent = KvExtent::of(call, ring);
        // The positions of a step must be contiguous in memory.
        assert!(
            ring.is_none_or(|ring| ring.is_multiple_of(STEP)),
            "ring capacity {ring:?} is not a multiple of the step length"
        );
        let slots = call.input::<u32>("slots", rows);
        let last = slots.iter().map(|&slot| slot as usize + 1).max().unwrap_or(0);
        let cached = last * key_heads * extent.positions * C::stride(width);
        let (queries, keys, values) = match prologue {
            None => (
                Queries::Ready(call.input::<f32>("q", rows * query_heads * width)),
                call.input::<C>("keys", cached).as_ptr(),
                call.input::<C>("values", cached).as_ptr(),
            ),
            Some(prologue) => {
                let count = rows * prologue.kv_source.head_offsets(query_heads, key_heads)[2] * width;
                let gain = |name| if prologue.norm.is_some() { call.input::<f32>(name, width) } else { &[] };
                let query_gain = gain("query_gain");
                if prologue.kv_source == KvSource::Nothing {
                    let heads = call.input::<f32>("q", count);
                    let cache = ["keys", "values"].map(|part| call.input::<C>(part, cached).as_ptr());
                    (Queries::Raw { heads, prologue, query_gain, own: None }, cache[0], cache[1])
                } else {
                    let twice = (0..rows).any(|row| slots[..row].contains(&slots[row]));
                    assert!(!twice, "fused KV append supports one row per slot: {slots:?}");
                    let heads = call.input::<f32>("qkv", count);
                    let cache = ["keys", "values"].map(|part| call.output::<C>(part, cached));
                    let (keys, values) = (cache[0].start(), cache[1].start());
                    let own = Some(KvDestination { key_gain: gain("key_gain"), cache });
                    (Queries::Raw { heads, prologue, query_gain, own }, keys, values)
                }
            }
        };
        Attention {
            shape,
            alone: call.is_decode(),
            context,
            extent,
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
