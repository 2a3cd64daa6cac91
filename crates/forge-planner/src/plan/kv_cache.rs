//! State of a slot: the KV cache of each layer, its capacity in positions, and sizes in bytes.
//!
//! A layer with full attention keeps every position. A layer with a sliding window keeps a ring buffer. Its
//! capacity is the window plus the rows that a pass may write before its first row has read the window.
//! Position p is stored at p % capacity. If the ring would hold the whole context, the layer keeps every
//! position instead.

use crate::plan::model_plan::Plan;
use crate::plan::section::State;
use forge_ir::units::size;
use forge_ops::Format;
use serde::Serialize;

/// Ring capacity is a multiple of this: CPU kernels read this many consecutive positions as one block.
const BLOCK_POSITIONS: usize = 64;

/// Alignment in bytes of each range in the runtime's state memory.
const SPAN_ALIGNMENT: u64 = 256;

/// Ring buffer of a layer with a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Ring {
    /// Window in positions, including the row's own.
    pub window: usize,
    /// Capacity in positions.
    pub positions: usize,
}

impl Ring {
    /// The ring for a sliding window, with contexts of at most `context` positions and passes of at most
    /// `chunk` rows. `None` if the ring would hold the whole context.
    pub(crate) fn of(window: usize, chunk: usize, context: usize) -> Option<Ring> {
        let positions =
            window.checked_add(chunk)?.checked_sub(1)?.checked_next_multiple_of(BLOCK_POSITIONS)?;
        (positions < context).then_some(Ring { window, positions })
    }
}

impl State {
    /// Capacity in positions, for this context length.
    pub fn capacity(&self, context: usize) -> usize {
        self.ring.map_or(context, |ring| ring.positions.min(context))
    }
}

impl Plan {
    /// All caches, in the order of first use.
    pub fn states(&self) -> impl Iterator<Item = State> {
        let first = |cache| self.applications.iter().find(|application| application.cache == Some(cache));
        let state = move |cache| self.sections[first(cache)?.section].state;
        (0..).map_while(state)
    }

    /// KV or MLA cache bytes per position and slot, summed over all layers.
    pub fn cache_bytes_per_position(&self) -> usize {
        self.states().map(|state| self.position_bytes(&state)).sum()
    }

    /// [`Plan::cache_bytes_per_position`] of the layers that keep every position.
    pub fn kept_bytes_per_position(&self) -> usize {
        let whole = self.states().filter(|state| state.ring.is_none());
        whole.map(|state| self.position_bytes(&state)).sum()
    }

    /// The distinct rings in the order of first use, each with its bytes per position and slot over all
    /// layers.
    pub fn rings(&self) -> Vec<(Ring, usize)> {
        let mut rings: Vec<(Ring, usize)> = Vec::new();
        for state in self.states() {
            let Some(ring) = state.ring else { continue };
            let bytes = self.position_bytes(&state);
            match rings.iter_mut().find(|(other, _)| *other == ring) {
                Some((_, sum)) => *sum += bytes,
                None => rings.push((ring, bytes)),
            }
        }
        rings
    }

    /// Bytes of the program's state for this context length and number of slots, in the runtime's layout.
    pub fn state_bytes(&self, context: usize, slots: usize) -> u64 {
        let mut end = 0_u64;
        let mut take = |of_slot: usize| {
            end = end.next_multiple_of(SPAN_ALIGNMENT) + (slots * of_slot) as u64;
        };
        let mut kept = 0;
        for application in &self.applications {
            let section = &self.sections[application.section];
            // Layers that share a cache come after the layer that owns it.
            if let Some(state) = section.state.filter(|_| application.cache == Some(kept)) {
                kept += 1;
                // Keys, then values.
                let each = if state.values { 2 } else { 1 };
                for _ in 0..each {
                    take(state.capacity(context) * self.position_bytes(&state) / each);
                }
            }
            section.recurrent_states.iter().for_each(|recurrent_state| take(4 * recurrent_state.elements()));
        }
        end
    }

    /// Bytes per slot that do not depend on the context length: recurrent states.
    pub fn recurrent_state_bytes(&self) -> usize {
        let sections = self.applications.iter().map(|application| &self.sections[application.section]);
        sections
            .flat_map(|section| &section.recurrent_states)
            .map(|recurrent_state| 4 * recurrent_state.elements())
            .sum()
    }

    /// The size of the cache, for display: `1.5 KB per token`, or with sliding windows `256 B per token and 1.3
    /// KB per token of the last 320`.
    pub fn kv_cache_text(&self) -> String {
        let size = |bytes: usize| size(bytes as u64);
        let rings = self.rings();
        let of_ring = |(ring, bytes): &(Ring, usize)| {
            format!("{} per token of the last {}", size(*bytes), ring.positions)
        };
        let mut parts: Vec<String> = rings.iter().map(of_ring).collect();
        if rings.is_empty() || self.kept_bytes_per_position() > 0 {
            parts.insert(0, format!("{} per token", size(self.kept_bytes_per_position())));
        }
        if self.recurrent_state_bytes() > 0 {
            parts.push(format!("{} of recurrent state per sequence", size(self.recurrent_state_bytes())));
        }
        parts.join(" and ")
    }

    /// Cache bytes of one layer per position and slot.
    fn position_bytes(&self, state: &State) -> usize {
        let each = if state.values { 2 } else { 1 };
        each * state.heads * self.head_bytes(state.width)
    }

    /// Bytes of one head's key, or value, at one position.
    pub fn head_bytes(&self, width: usize) -> usize {
        match self.cache {
            Format::F32 => 4 * width,
            // One byte for each element, and an f16 scale for each 32.
            Format::Q8_0 => width + width / 16,
            _ => 2 * width,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_hold_a_window_and_a_pass_rounded_to_alignment() {
        for (window, chunk, context, kept) in [
            (16, 256, 1024, Some(320)),
            // 65 + 256 - 1 is a multiple of 64; 66 + 256 - 1 is not.
            (65, 256, 1024, Some(320)),
            (66, 256, 1024, Some(384)),
            (4096, 256, 8192, Some(4352)),
            // At least the whole context.
            (16, 256, 320, None),
            (16, 256, 321, Some(320)),
            (usize::MAX, 256, 8192, None),
            (1, 1, 65, Some(64)),
        ] {
            let ring = Ring::of(window, chunk, context);
            assert_eq!(ring.map(|ring| ring.positions), kept, "{window} {chunk} {context}");
            if let Some(ring) = ring {
                // The last row of a pass does not overwrite a position that the first row reads.
                assert!(
                    ring.positions >= window + chunk - 1 && ring.positions.is_multiple_of(BLOCK_POSITIONS)
                );
            }
        }
    }
}
