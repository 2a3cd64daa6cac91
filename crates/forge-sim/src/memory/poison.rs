//! Buffers that the host writes through a raw address.
//!
//! Such a buffer starts with poison words: all different, and NaN in f32, f16 and bf16. Before a pass, every
//! word that has changed and was not written by a kernel counts as written by the host. A host that writes
//! the poison word itself is missed, with a probability of one in four million per word.
//!
//! The host may write while kernels are in flight if they do not access the word. Such a word is
//! [cleared](Memory::clear_accesses) before the kernels run and [checked](Memory::was_accessed) afterwards.

use crate::memory::buffers::{BufferId, Memory};
use crate::memory::shadow::{Cell, HOST};
use std::io;

/// The poison word at `index`.
fn poison(index: usize) -> [u8; 4] {
    let mixed = (index as u32).wrapping_add(1).wrapping_mul(0x9e37_79b1);
    (0xffc0_0000 | mixed >> 10).to_le_bytes()
}

impl Memory {
    /// Adds an uninitialized buffer of `bytes` bytes, which the host writes through [`Memory::address`].
    pub fn poisoned(&mut self, bytes: usize) -> io::Result<BufferId> {
        let id = self.unwritten(bytes)?;
        let address = self.address(id);
        for at in 0..bytes {
            // SAFETY: the mapping has this many bytes, and is not shared yet.
            unsafe { address.add(at).write(poison(at / 4)[at % 4]) };
        }
        Ok(id)
    }

    /// The host's address of a buffer. The host may write while no kernel runs, and must call
    /// [`Memory::detect_host_writes`] before the next dispatch.
    pub fn address(&self, buffer: BufferId) -> *mut u8 {
        self.buffers[buffer.index()].host.start as *mut u8
    }

    /// Detects which words of a poisoned buffer the host has written.
    pub fn detect_host_writes(&mut self, buffer: BufferId) {
        let address = self.address(buffer);
        let buffer = &mut self.buffers[buffer.index()];
        let Some(shadow) = buffer.shadow.as_deref_mut() else { return };
        // SAFETY: the mapping has this many bytes, and no kernel runs while `self` is borrowed.
        let bytes = unsafe { std::slice::from_raw_parts(address, buffer.bytes) };
        let size = 1 << shadow.shift;
        for (index, (cell, found)) in shadow.cells.iter_mut().zip(bytes.chunks(size)).enumerate() {
            let at = index * size;
            let is_changed = || match found.first_chunk::<4>() {
                // Compared as one number: there are millions of words.
                Some(word) => *word != poison(at / 4),
                None => *found != poison(at / 4)[at % 4..][..found.len()],
            };
            if cell.wrote < HOST && is_changed() {
                *cell = Cell::by_host();
            }
        }
    }

    /// Marks the word at `offset` as not accessed.
    pub fn clear_accesses(&mut self, buffer: BufferId, offset: usize) {
        if let Some(shadow) = self.buffers[buffer.index()].shadow.as_deref_mut() {
            shadow.at(offset, 4).fill(Cell::default());
        }
    }

    /// Whether a kernel has accessed a word since [`Memory::clear_accesses`]. The word then counts as written by the
    /// host.
    pub fn was_accessed(&mut self, buffer: BufferId, offset: usize) -> bool {
        let Some(shadow) = self.buffers[buffer.index()].shadow.as_deref_mut() else { return false };
        let cells = shadow.at(offset, 4);
        let touched = cells.iter().any(|cell| cell.wrote | cell.read != 0);
        cells.fill(Cell::by_host());
        touched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_host_writes_only() {
        let mut memory = Memory::new();
        let buffer = memory.poisoned(22).unwrap_or_else(|error| panic!("{error}"));
        // SAFETY: the buffer has this many bytes.
        unsafe { memory.address(buffer).add(8).cast::<u32>().write_unaligned(0) };
        let written = |memory: &mut Memory| [0, 4, 8, 12, 16].map(|at| memory.written(buffer, at, 4));
        assert_eq!(written(&mut memory), [false; 5], "before anybody has looked");
        memory.detect_host_writes(buffer);
        assert_eq!(written(&mut memory), [false, false, true, false, false]);
    }

    #[test]
    fn poison_is_nan_in_every_format() {
        for index in 0..100 {
            let word = u32::from_le_bytes(poison(index));
            let half = half::f16::from_bits((word >> 16) as u16);
            let bfloat = half::bf16::from_bits((word >> 16) as u16);
            assert!(f32::from_bits(word).is_nan() && half.is_nan() && bfloat.is_nan(), "{word:#x}");
        }
    }
}
