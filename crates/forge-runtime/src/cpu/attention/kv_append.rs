//! Keys and values to the cache. Scalars: rows, context[, capacity]. Buffers: key, value, slots, positions,
//! keys, values.
//!
//! `key` and `value` are `[row, head, width]`, `keys` and `values` `[slot, head, context, record]` of one layer; a row's go
//! to its slot and position. A ring has `capacity` positions instead of the context's.

use crate::cpu::attention::kv_format::KvElement;
use crate::cpu::device::kernel_args::{KernelArgs, Output};
use crate::cpu::format::matrix::Format;
use half::f16;

/// What the compiler decided.
#[derive(Clone, Copy, Debug)]
pub struct Append {
    /// Key and value heads.
    pub key_heads: usize,
    /// Width of a head.
    pub width: usize,
    /// Of keys and values in the cache: `F32`, `F16`, or `Q8_0` where widths are multiples of 32.
    pub cache: Format,
    /// R, where the cache is a ring, in which position p lies at p % R.
    pub ring: Option<usize>,
}

/// Runs this thread's share.
pub fn append(call: &KernelArgs<'_>, shape: &Append) {
    match shape.cache {
        Format::F32 => rows::<f32>(call, shape),
        Format::F16 => rows::<f16>(call, shape),
        Format::Q8_0 => rows::<u8>(call, shape),
        other => panic!("a cache in {other:?} has no CPU kernel"),
    }
}

fn rows<C: KvElement>(call: &KernelArgs<'_>, shape: &Append) {
    let Append { key_heads, width, ring, .. } = *shape;
    let rows = call.scalar(0);
    let key = call.input::<f32>("key", rows * key_heads * width);
    let value = call.input::<f32>("value", rows * key_heads * width);
    let cache = Cache::<C>::find(call, rows, [key_heads, width], ring);
    for row in call.own(rows, 1) {
        for head in 0..key_heads {
            let range = (row * key_heads + head) * width..(row * key_heads + head + 1) * width;
            let at = cache.place(row, head, cache.position(row));
            // SAFETY: this thread alone has this row, and no other row has its slot and position.
            unsafe {
                store(cache.keys, at, &key[range.clone()]);
                store(cache.values, at, &value[range]);
            }
        }
    }
}

/// The cache of one layer, and where in it each row is.
pub(crate) struct Cache<'a, C> {
    pub(crate) keys: Output<'a, C>,
    pub(crate) values: Output<'a, C>,
    slots: &'a [u32],
    positions: &'a [u32],
    key_heads: usize,
    context: usize,
    room: KvExtent,
    width: usize,
}

/// Positions of a slot, and where each lies.
#[derive(Clone, Copy)]
pub(crate) struct KvExtent {
    /// How many there is room for.
    pub(crate) positions: usize,
    ring: Option<usize>,
}

impl KvExtent {
    /// Scalar 1 is the context, and scalar 2 the capacity of a ring.
    pub(crate) fn of(call: &KernelArgs<'_>, ring: Option<usize>) -> KvExtent {
        KvExtent { positions: call.scalar(if ring.is_some() { 2 } else { 1 }), ring }
    }

    /// Where a position lies among those of its head.
    pub(crate) fn of_position(self, position: usize) -> usize {
        self.ring.map_or(position, |ring| position % ring)
    }
}

impl<'a, C: KvElement> Cache<'a, C> {
    /// The buffers keys, values, slots and positions; scalar 1 is the context.
    pub(crate) fn find(
        call: &KernelArgs<'a>,
        rows: usize,
        [key_heads, width]: [usize; 2],
        ring: Option<usize>,
    ) -> Cache<'a, C> {
        let (context, room) = (call.scalar(1), KvExtent::of(call, ring));
        let slots = call.input::<u32>("slots", rows);
        let last = slots.iter().map(|&slot| slot as usize + 1).max().unwrap_or(0);
        let count = last * key_heads * room.positions * C::record(width);
        Cache {
            keys: call.output::<C>("keys", count),
            values: call.output::<C>("values", count),
            slots,
            positions: call.input::<u32>("positions", rows),
            key_heads,
            context,
            room,
            width,
        }
    }

    /// The position of a row.
    pub(crate) fn position(&self, row: usize) -> usize {
        let position = self.positions[row] as usize;
        assert!(
            position < self.context,
            "row {row} is at position {position} of a context of {}",
            self.context
        );
        position
    }

    /// Where a position of a row's slot begins.
    pub(crate) fn place(&self, row: usize, head: usize, position: usize) -> usize {
        let of_head = (self.slots[row] as usize * self.key_heads + head) * self.room.positions;
        (of_head + self.room.of_position(position)) * C::record(self.width)
    }
}

/// Makes a record of `from`, at `at`.
///
/// # Safety
/// No other thread touches these elements of `to`.
pub(crate) unsafe fn store<C: KvElement>(to: Output<'_, C>, at: usize, from: &[f32]) {
    // SAFETY: the caller's promise.
    C::store(unsafe { to.part(at..at + C::record(from.len())) }, from);
}
