//! Appends keys and values to the KV cache. Scalars: rows, context[, capacity]. Buffers: key, value, slots,
//! positions, keys, values.
//!
//! `key` and `value` are `[row, head, width]`. `keys` and `values` are `[slot, head, context, stride]` for
//! one layer. A row is stored at its slot and position. A ring cache has `capacity` positions instead of
//! `context`.

use crate::cpu::attention::kv_format::KvElement;
use crate::cpu::device::kernel_args::{KernelArgs, Output};
use forge_ops::{Append, Format};
use half::f16;

/// Appends this thread's rows.
pub fn append(call: &KernelArgs<'_>, shape: &Append) {
    match shape.cache {
        Format::F32 => rows::<f32>(call, shape),
        Format::F16 => rows::<f16>(call, shape),
        Format::Q8_0 => rows::<u8>(call, shape),
        other => panic!("unsupported KV cache format on the CPU: {other:?}"),
    }
}

fn rows<C: KvElement>(call: &KernelArgs<'_>, shape: &Append) {
    let Append { key_heads, width, ring, .. } = *shape;
    let rows = call.scalar(0);
    let key = call.input::<f32>("key", rows * key_heads * width);
    let value = call.input::<f32>("value", rows * key_heads * width);
    let cache = Cache::<C>::find(call, rows, [key_heads, width], ring);
    for row in call.static_range(rows, 1) {
        for head in 0..key_heads {
            let range = (row * key_heads + head) * width..(row * key_heads + head + 1) * width;
            let at = cache.place(row, head, cache.position(row));
            // SAFETY: this row belongs to this thread, and no other row has its slot and position.
            unsafe {
                store(cache.keys, at, &key[range.clone()]);
                store(cache.values, at, &value[range]);
            }
        }
    }
}

/// The KV cache of one layer, and the rows' slots and positions.
pub(crate) struct Cache<'a, C> {
    pub(crate) keys: Output<'a, C>,
    pub(crate) values: Output<'a, C>,
    slots: &'a [u32],
    positions: &'a [u32],
    key_heads: usize,
    context: usize,
    extent: KvExtent,
    width: usize,
}

/// Capacity of a slot, and the mapping of positions.
#[derive(Clone, Copy)]
pub(crate) struct KvExtent {
    /// Number of positions.
    pub(crate) positions: usize,
    ring: Option<usize>,
}

impl KvExtent {
    /// Reads the capacity from scalar 1 (context) or scalar 2 (ring).
    pub(crate) fn of(call: &KernelArgs<'_>, ring: Option<usize>) -> KvExtent {
        KvExtent { positions: call.scalar(if ring.is_some() { 2 } else { 1 }), ring }
    }

    /// Index of a position within its head.
    pub(crate) fn of_position(self, position: usize) -> usize {
        self.ring.map_or(position, |ring| position % ring)
    }
}

impl<'a, C: KvElement> Cache<'a, C> {
    /// Looks up the buffers keys, values, slots and positions; scalar 1 is the context.
    pub(crate) fn find(
        call: &KernelArgs<'a>,
        rows: usize,
        [key_heads, width]: [usize; 2],
        ring: Option<usize>,
    ) -> Cache<'a, C> {
        let (context, extent) = (call.scalar(1), KvExtent::of(call, ring));
        let slots = call.input::<u32>("slots", rows);
        let last = slots.iter().map(|&slot| slot as usize + 1).max().unwrap_or(0);
        let count = last * key_heads * extent.positions * C::stride(width);
        Cache {
            keys: call.output::<C>("keys", count),
            values: call.output::<C>("values", count),
            slots,
            positions: call.input::<u32>("positions", rows),
            key_heads,
            context,
            extent,
            width,
        }
    }

    /// The position of a row.
    pub(crate) fn position(&self, row: usize) -> usize {
        let position = self.positions[row] as usize;
        assert!(
            position < self.context,
            "row {row}: position {position} exceeds the context length {}",
            self.context
        );
        position
    }

    /// Offset of a position of a row's slot.
    pub(crate) fn place(&self, row: usize, head: usize, position: usize) -> usize {
        let of_head = (self.slots[row] as usize * self.key_heads + head) * self.extent.positions;
        (of_head + self.extent.of_position(position)) * C::stride(self.width)
    }
}

/// Stores `from` as a head at `at`.
///
/// # Safety
/// No other thread may access these elements of `to`.
pub(crate) unsafe fn store<C: KvElement>(to: Output<'_, C>, at: usize, from: &[f32]) {
    // SAFETY: the caller's contract.
    C::store(unsafe { to.part(at..at + C::stride(from.len())) }, from);
}
