//! Allocation of spans in a buffer.

use crate::device::{Buffer, Span};

/// A bump allocator of spans in a buffer, aligned to 256 bytes.
#[derive(Clone, Debug)]
pub struct Arena {
    buffer: Buffer,
    used: usize,
}

impl Arena {
    /// Alignment of every span in bytes; enough for all devices.
    pub const ALIGNMENT: usize = 256;

    /// An empty arena.
    pub const fn new(buffer: Buffer) -> Arena {
        Arena { buffer, used: 0 }
    }

    /// Allocates `count` elements.
    pub const fn take<T>(&mut self, count: usize) -> Span<T> {
        let offset = self.used.next_multiple_of(Arena::ALIGNMENT);
        let bytes = count * size_of::<T>();
        self.used = offset + bytes;
        Span::new(self.buffer, offset, bytes)
    }

    /// Bytes allocated, gaps included.
    pub const fn bytes(&self) -> usize {
        self.used
    }
}
