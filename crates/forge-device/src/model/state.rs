//! Layout of the state buffer: KV caches and recurrent states.
//!
//! The state buffer is a sequence of parts, each `[slots, ...]`. A KV cache has a record for every position
//! and head. A recurrent state has a fixed size. The model lays the buffer out when it is made. The engine
//! uses the layout to copy a slot and to save and restore recurrent states.

use crate::device::{Buffer, Device, Span};
use crate::model::arena::Arena;

/// Layout of [`Buffer::State`].
#[derive(Clone, Debug)]
pub struct StateLayout {
    arena: Arena,
    slots: u32,
    caches: Vec<Cache>,
    recurrent_states: Vec<Bytes>,
}

/// The keys or the values of a layer: `[slots, heads, positions, record]`. Position p is stored at
/// `p % positions`.
#[derive(Clone, Copy, Debug)]
struct Cache {
    offset: usize,
    heads: usize,
    positions: usize,
    /// Bytes of one head's record.
    record: usize,
}

/// A byte range of the buffer.
#[derive(Clone, Copy, Debug)]
struct Bytes {
    offset: usize,
    count: usize,
}

impl StateLayout {
    /// An empty layout for this many slots.
    pub const fn new(slots: u32) -> StateLayout {
        StateLayout {
            arena: Arena::new(Buffer::State),
            slots,
            caches: Vec::new(),
            recurrent_states: Vec::new(),
        }
    }

    /// Allocates a KV cache of `positions` positions per slot, with `record` elements per head.
    pub fn kv_cache<T>(&mut self, heads: usize, positions: u32, record: usize) -> Span<T> {
        let positions = positions as usize;
        let span = self.arena.take(self.slots as usize * heads * positions * record);
        let record = record * size_of::<T>();
        self.caches.push(Cache { offset: span.offset, heads, positions, record });
        span
    }

    /// Allocates a recurrent state of `numbers` f32 elements per slot. A row at position 0 starts from zeros;
    /// any other row continues from the row before it.
    pub fn recurrent_state(&mut self, numbers: usize) -> Span<f32> {
        let span = self.arena.take(self.slots as usize * numbers);
        self.recurrent_states.push(Bytes { offset: span.offset, count: span.bytes / self.slots as usize });
        span
    }

    /// Size of the state buffer in bytes.
    pub const fn bytes(&self) -> usize {
        self.arena.bytes()
    }

    /// Reads the recurrent states of a slot.
    pub fn read_state<D: Device>(&self, device: &mut D, slot: u32) -> Vec<Vec<u8>> {
        self.recurrent_states_of(slot).map(|bytes| read(device, bytes)).collect()
    }

    /// Writes the recurrent states of a slot, as returned by [`StateLayout::read_state`] for any slot.
    pub fn write_state<D: Device>(&self, device: &mut D, slot: u32, states: &[Vec<u8>]) {
        for (bytes, state) in self.recurrent_states_of(slot).zip(states) {
            device.write(Buffer::State, bytes.offset, state);
        }
    }

    /// Copies the KV cache of positions below `length` from slot `from` to slot `to`, except overwritten
    /// ones. `most` is the longest length that `from` has had.
    pub fn copy<D: Device>(&self, device: &mut D, from: u32, to: u32, length: u32, most: u32) {
        for cache in &self.caches {
            for (from, to) in cache.runs(from, length, most).zip(cache.runs(to, length, most)) {
                let bytes = read(device, from);
                device.write(Buffer::State, to.offset, &bytes);
            }
        }
    }

    fn recurrent_states_of(&self, slot: u32) -> impl Iterator<Item = Bytes> {
        self.recurrent_states
            .iter()
            .map(move |all| Bytes { offset: all.offset + slot as usize * all.count, count: all.count })
    }
}

impl Cache {
    /// The byte ranges of positions below `length` in a slot that has held `most` positions: for each head
    /// one range, or two if it wraps around.
    fn runs(self, slot: u32, length: u32, most: u32) -> impl Iterator<Item = Bytes> {
        let (length, most, slot) = (length as usize, most as usize, slot as usize);
        let oldest = most.saturating_sub(self.positions).min(length);
        let (first, count) = (oldest % self.positions, length - oldest);
        let straight = count.min(self.positions - first);
        (0..self.heads).flat_map(move |head| {
            let start = self.offset + (slot * self.heads + head) * self.positions * self.record;
            [(first, straight), (0, count - straight)].map(|(first, count)| Bytes {
                offset: start + first * self.record,
                count: count * self.record,
            })
        })
    }
}

fn read<D: Device>(device: &mut D, bytes: Bytes) -> Vec<u8> {
    let mut held = vec![0; bytes.count];
    device.read(Buffer::State, bytes.offset, &mut held);
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The byte ranges that are copied for each head.
    #[test]
    fn positions_that_were_not_overwritten_are_copied() {
        let cache = Cache { offset: 1000, heads: 2, positions: 8, record: 10 };
        for (length, most, places) in [
            (0, 0, vec![]),
            (5, 5, vec![(0, 5)]),
            (5, 8, vec![(0, 5)]),
            (8, 8, vec![(0, 8)]),
            // Positions 0 to 2 were overwritten by 8 to 10.
            (11, 11, vec![(3, 8), (0, 3)]),
            (9, 11, vec![(3, 8), (0, 1)]),
            (6, 11, vec![(3, 6)]),
            (16, 16, vec![(0, 8)]),
            // Everything was overwritten.
            (3, 11, vec![]),
        ] {
            let wanted: Vec<(usize, usize)> = [1000 + 160, 1000 + 240]
                .into_iter()
                .flat_map(|start| {
                    places.iter().map(move |(first, end)| (start + first * 10, (end - first) * 10))
                })
                .collect();
            let runs = cache.runs(1, length, most).map(|run| (run.offset, run.count));
            let runs: Vec<_> = runs.filter(|(_, count)| *count > 0).collect();
            assert_eq!(runs, wanted, "{length} of {most}");
        }
    }
}
