//! What slots remember, and where it lies.
//!
//! The state buffer is a row of parts, each `[slots, ...]`: caches, which have a record of every position for each of their
//! heads, and memories, which are as large however long a text is. A model lays it out when it is made, one part after
//! another, and keeps it in its layout. The engine asks it for the bytes of one slot: to copy them to another slot, or to
//! keep what memories are.

use crate::device::{Buffer, Device, Span};
use crate::model::Arena;

/// Where everything of [`Buffer::State`] lies.
#[derive(Clone, Debug)]
pub struct StateLayout {
    arena: Arena,
    slots: u32,
    caches: Vec<Cache>,
    memories: Vec<Bytes>,
}

/// The keys, or the values, of a layer: `[slots, heads, positions, record]`. Position p lies at `p % positions`.
#[derive(Clone, Copy, Debug)]
struct Cache {
    offset: usize,
    heads: usize,
    positions: usize,
    /// Bytes of a head's record.
    record: usize,
}

/// A range of the buffer.
#[derive(Clone, Copy, Debug)]
struct Bytes {
    offset: usize,
    count: usize,
}

impl StateLayout {
    /// For so many slots, nothing in it yet.
    pub const fn new(slots: u32) -> StateLayout {
        StateLayout { arena: Arena::new(Buffer::State), slots, caches: Vec::new(), memories: Vec::new() }
    }

    /// A cache that keeps so many positions of each slot, with `record` elements for each of its heads.
    pub fn cache<T>(&mut self, heads: usize, positions: u32, record: usize) -> Span<T> {
        let positions = positions as usize;
        let span = self.arena.take(self.slots as usize * heads * positions * record);
        let record = record * size_of::<T>();
        self.caches.push(Cache { offset: span.offset, heads, positions, record });
        span
    }

    /// A memory of so many numbers for each slot. A row at position 0 finds zeros in the place of what is there; every other
    /// continues what the row before it left.
    pub fn memory(&mut self, numbers: usize) -> Span<f32> {
        let span = self.arena.take(self.slots as usize * numbers);
        self.memories.push(Bytes { offset: span.offset, count: span.bytes / self.slots as usize });
        span
    }

    /// Bytes of all of it.
    pub const fn bytes(&self) -> usize {
        self.arena.bytes()
    }

    /// What memories have learnt of a slot.
    pub fn learnt<D: Device>(&self, device: &mut D, slot: u32) -> Vec<Vec<u8>> {
        self.memories_of(slot).map(|bytes| read(device, bytes)).collect()
    }

    /// Has memories know of a slot what [`State::learnt`] gave, of this slot or of another.
    pub fn teach<D: Device>(&self, device: &mut D, slot: u32, learnt: &[Vec<u8>]) {
        for (bytes, learnt) in self.memories_of(slot).zip(learnt) {
            device.write(Buffer::State, bytes.offset, learnt);
        }
    }

    /// Copies to the caches of slot `to` what those of `from` have of its first `length` positions, if it has held `most`: all of
    /// them, or as many as have not been overwritten.
    pub fn copy<D: Device>(&self, device: &mut D, from: u32, to: u32, length: u32, most: u32) {
        for cache in &self.caches {
            for (from, to) in cache.runs(from, length, most).zip(cache.runs(to, length, most)) {
                let bytes = read(device, from);
                device.write(Buffer::State, to.offset, &bytes);
            }
        }
    }

    fn memories_of(&self, slot: u32) -> impl Iterator<Item = Bytes> {
        self.memories
            .iter()
            .map(move |all| Bytes { offset: all.offset + slot as usize * all.count, count: all.count })
    }
}

impl Cache {
    /// Where positions below `length` lie of a slot that has held `most`: for each head one run or, where they go round, two.
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

    /// What is copied of each head: the places from where to where.
    #[test]
    fn what_has_not_been_overwritten_is_copied() {
        let cache = Cache { offset: 1000, heads: 2, positions: 8, record: 10 };
        for (length, most, places) in [
            (0, 0, vec![]),
            (5, 5, vec![(0, 5)]),
            (5, 8, vec![(0, 5)]),
            (8, 8, vec![(0, 8)]),
            // 0 to 2 lie under 8 to 10.
            (11, 11, vec![(3, 8), (0, 3)]),
            (9, 11, vec![(3, 8), (0, 1)]),
            (6, 11, vec![(3, 6)]),
            (16, 16, vec![(0, 8)]),
            // Nothing is left.
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
