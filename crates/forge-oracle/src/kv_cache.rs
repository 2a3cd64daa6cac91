//! The bytes of a KV cache with known values.

use crate::batch::Batch;
use crate::compare::{Expected, compare};
use crate::random::Random;
use forge_ops::Format;
use half::f16;
use std::fmt::Debug;

/// One half of a layer's KV cache, keys or values: `[slot, head, capacity, width]`. A cache of latents has one
/// head.
#[derive(Clone, Copy, Debug)]
pub struct KvCache {
    /// Slots.
    pub slots: usize,
    /// KV heads.
    pub heads: usize,
    /// Positions of a slot.
    pub context: usize,
    /// Elements of a head.
    pub width: usize,
    /// Number format.
    pub format: Format,
    /// Capacity of a ring buffer; `None`: the whole context.
    pub ring: Option<usize>,
}

impl KvCache {
    /// Capacity of a slot in positions.
    pub fn capacity(&self) -> usize {
        self.ring.unwrap_or(self.context).min(self.context)
    }

    /// Elements of all slots.
    pub fn elements(&self) -> usize {
        self.slots * self.heads * self.capacity() * self.width
    }

    /// Bytes of all slots.
    pub fn bytes(&self) -> usize {
        self.elements() / self.width * self.head_bytes()
    }

    /// Bytes of one head of a position.
    pub fn head_bytes(&self) -> usize {
        match self.format {
            Format::F16 => 2 * self.width,
            Format::Q8_0 => self.width + self.width / 16,
            _ => 4 * self.width,
        }
    }

    /// The first element of a head of a position.
    pub fn place(&self, slot: u32, head: usize, position: usize) -> usize {
        let position = self.ring.map_or(position, |ring| position % ring);
        ((slot as usize * self.heads + head) * self.capacity() + position) * self.width
    }

    /// Values as the cache stores them.
    pub fn encode(&self, values: &[f32]) -> Vec<u8> {
        match self.format {
            Format::Q8_0 => values.chunks_exact(self.width).flat_map(q8_0_head).collect(),
            Format::F16 => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
            _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        }
    }

    /// The values of stored bytes.
    pub fn decode(&self, bytes: &[u8]) -> Vec<f32> {
        let half = |bytes: &[u8]| f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
        let width = self.width;
        let head = |head: &[u8]| -> Vec<f32> {
            let scale = |channel: usize| half(&head[width + channel / 32 * 2..]);
            (0..width).map(|channel| scale(channel) * f32::from(head[channel].cast_signed())).collect()
        };
        match self.format {
            Format::Q8_0 => bytes.chunks_exact(self.head_bytes()).flat_map(head).collect(),
            Format::F16 => bytes.chunks_exact(2).map(half).collect(),
            _ => bytes.chunks_exact(4).map(|of| f32::from_le_bytes([of[0], of[1], of[2], of[3]])).collect(),
        }
    }

    /// Random contents, as bytes and as the values they have. Positions from `reach` of their slot on are NaN.
    pub fn random(&self, random: &mut Random, reach: impl Fn(u32) -> usize) -> (Vec<u8>, Vec<f32>) {
        let mut values = random.floats(self.elements());
        for slot in 0..self.slots as u32 {
            for head in 0..self.heads {
                let (begin, written) = (self.place(slot, head, 0), reach(slot).min(self.capacity()));
                values[begin + written * self.width..begin + self.capacity() * self.width].fill(f32::NAN);
            }
        }
        let bytes = self.encode(&values);
        let values = self.decode(&bytes);
        (bytes, values)
    }

    /// Checks a cache after an append: the rows' heads, `[row, head, width]`, may be off by `error` of their
    /// value, and the rest is what it was.
    ///
    /// # Panics
    ///
    /// If it is not.
    pub fn check_append(
        &self,
        what: impl Debug,
        [before, after]: [&[f32]; 2],
        heads: &[f64],
        batch: &Batch,
        error: impl Fn(f64) -> f64,
    ) {
        let mut is_written = vec![false; before.len()];
        for (index, head) in heads.chunks_exact(self.width).enumerate() {
            let (row, head_index) = (index / self.heads, index % self.heads);
            let (slot, position) = (batch.slots[row], batch.positions[row] as usize);
            let at = self.place(slot, head_index, position);
            let expected: Vec<Expected> = head.iter().map(|value| (*value, error(*value))).collect();
            compare((&what, "appended", slot, position), &after[at..at + self.width], &expected, 1.0);
            is_written[at..at + self.width].fill(true);
        }
        for (index, (before, after)) in before.iter().zip(after).enumerate() {
            let same = before == after || (before.is_nan() && after.is_nan());
            assert!(
                same || is_written[index],
                "{what:?}: element {index} of the cache was {before}, is {after}"
            );
        }
    }
}

/// A head in q8_0: all quantized values, then an f16 scale for each 32. NaN stays NaN.
fn q8_0_head(head: &[f32]) -> Vec<u8> {
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for block in head.chunks_exact(32) {
        let largest = block.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        let is_nan = block.iter().any(|x| x.is_nan());
        let scale = if is_nan { f16::NAN } else { f16::from_f32(largest / 127.0) };
        let step = scale.to_f32().max(f32::MIN_POSITIVE);
        let code = |x: &f32| (x / step).round_ties_even().clamp(-127.0, 127.0) as i8;
        codes.extend(block.iter().map(|x| code(x).cast_unsigned()));
        scales.extend(scale.to_le_bytes());
    }
    codes.extend(scales);
    codes
}
