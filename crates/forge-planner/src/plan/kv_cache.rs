//! What slots remember: the cache of each layer, how many positions it keeps, and its bytes.
//!
//! A layer that sees every position keeps every position. One that sees the last `window` of them keeps a ring: a window,
//! and what else a pass may bring before its first row has seen its own; position p lies at p % positions. Where no
//! context is so long that a ring would keep less than all, there is none.

use crate::plan::{Plan, State};
use forge_ir::Format;
use serde::Serialize;

/// What the positions of a ring are a multiple of: CPU kernels take so many that are neighbours in memory at once.
const NEIGHBOURS: usize = 64;

/// What the runtime's arenas begin each span on.
const SPAN_ALIGNMENT: u64 = 256;

/// What a layer keeps that sees the last positions only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Ring {
    /// Positions that a row sees, its own included.
    pub window: usize,
    /// Positions that are kept.
    pub positions: usize,
}

impl Ring {
    /// The ring of layers with that window, in contexts of at most `context` positions and passes of at most `chunk` rows;
    /// none if it would keep as much as there is.
    pub(crate) fn of(window: usize, chunk: usize, context: usize) -> Option<Ring> {
        let positions = window.checked_add(chunk)?.checked_sub(1)?.checked_next_multiple_of(NEIGHBOURS)?;
        (positions < context).then_some(Ring { window, positions })
    }
}

impl State {
    /// Positions that a slot of so many keeps.
    pub fn capacity(&self, context: usize) -> usize {
        self.ring.map_or(context, |ring| ring.positions.min(context))
    }
}

impl Plan {
    /// All caches, in the order in which layers first keep them.
    pub fn states(&self) -> impl Iterator<Item = State> {
        let first = |cache| self.applications.iter().find(|application| application.cache == Some(cache));
        let state = move |cache| self.sections[first(cache)?.section].state;
        (0..).map_while(state)
    }

    /// Bytes of keys and values, or of latents, for one position of one slot, in all layers.
    pub fn cache_bytes_per_position(&self) -> usize {
        self.states().map(|state| self.position_bytes(&state)).sum()
    }

    /// The same, in layers that keep every position.
    pub fn kept_bytes_per_position(&self) -> usize {
        let whole = self.states().filter(|state| state.ring.is_none());
        whole.map(|state| self.position_bytes(&state)).sum()
    }

    /// The different rings, in the order in which layers first have them, and bytes of one position of one slot in all
    /// layers that have it.
    pub fn rings(&self) -> Vec<(Ring, usize)> {
        let mut rings: Vec<(Ring, usize)> = Vec::new();
        for state in self.states() {
            let Some(ring) = state.ring else { continue };
            let bytes = self.position_bytes(&state);
            match rings.iter_mut().find(|(known, _)| *known == ring) {
                Some((_, sum)) => *sum += bytes,
                None => rings.push((ring, bytes)),
            }
        }
        rings
    }

    /// Bytes of a program's state with so many slots of so many positions, as it lays them out.
    pub fn state_bytes(&self, context: usize, slots: usize) -> u64 {
        let mut end = 0_u64;
        let mut take = |of_slot: usize| {
            end = end.next_multiple_of(SPAN_ALIGNMENT) + (slots * of_slot) as u64;
        };
        let mut kept = 0;
        for application in &self.applications {
            let section = &self.sections[application.section];
            // Layers that share a cache come after the one that has it first.
            if let Some(state) = section.state.filter(|_| application.cache == Some(kept)) {
                kept += 1;
                // Keys, then values.
                let each = if state.values { 2 } else { 1 };
                for _ in 0..each {
                    take(state.capacity(context) * self.position_bytes(&state) / each);
                }
            }
            section.memories.iter().for_each(|memory| take(4 * memory.numbers()));
        }
        end
    }

    /// Bytes that a slot has however long its text is: those of memories.
    pub fn memory_bytes(&self) -> usize {
        let sections = self.applications.iter().map(|application| &self.sections[application.section]);
        sections.flat_map(|section| &section.memories).map(|memory| 4 * memory.numbers()).sum()
    }

    /// Bytes of a layer's keys and values, or of its latents and turned keys, for one position of one slot.
    fn position_bytes(&self, state: &State) -> usize {
        let each = if state.values { 2 } else { 1 };
        each * state.heads * self.record_bytes(state.width)
    }

    /// Bytes of the key, or of the value, that one head of one position has.
    pub fn record_bytes(&self, width: usize) -> usize {
        match self.cache {
            Format::F32 => 4 * width,
            // A code for each number, and a half for each 32.
            Format::Q8_0 => width + width / 16,
            _ => 2 * width,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_has_a_window_and_a_pass_and_no_more_than_alignment_asks() {
        for (window, chunk, context, kept) in [
            (16, 256, 1024, Some(320)),
            // 65 + 256 - 1 is a multiple of 64; one position more is not.
            (65, 256, 1024, Some(320)),
            (66, 256, 1024, Some(384)),
            (4096, 256, 8192, Some(4352)),
            // As much as there is, or more.
            (16, 256, 320, None),
            (16, 256, 321, Some(320)),
            (usize::MAX, 256, 8192, None),
            (1, 1, 65, Some(64)),
        ] {
            let ring = Ring::of(window, chunk, context);
            assert_eq!(ring.map(|ring| ring.positions), kept, "{window} {chunk} {context}");
            if let Some(ring) = ring {
                // What the last row of a pass overwrites is not what the first one sees.
                assert!(ring.positions >= window + chunk - 1 && ring.positions.is_multiple_of(NEIGHBOURS));
            }
        }
    }
}
