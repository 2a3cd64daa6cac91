//! The buffers that a replay or a test works on, and the windows through which kernels see them.
//!
//! A binding is a range of bytes of a buffer. Each is mapped at an address of its own with room on both sides, so
//! that an address says through which binding it was reached: what runs over the end of one weight does not land in
//! the next. Two windows of the same bytes show the same memory.

use crate::mmap::{Mapping, anonymous, map, page, round_up};
use crate::shadow::Shadow;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

/// Bytes on either side of a window that are not the binding's, but can be touched.
const ROOM: usize = 16 << 20;
/// Windows kept; before a dispatch that may need more, all are closed and opened anew as needed.
const WINDOWS: usize = 4096;

/// A buffer of a [`Memory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferId(usize);

impl BufferId {
    /// All of it, read only.
    pub fn read(self) -> Bound {
        Bound { buffer: self, offset: 0, bytes: usize::MAX, written: false }
    }

    /// All of it, read and written.
    pub fn write(self) -> Bound {
        Bound { buffer: self, offset: 0, bytes: usize::MAX, written: true }
    }

    /// `bytes` bytes of it from `offset`.
    pub fn span(self, offset: usize, bytes: usize, written: bool) -> Bound {
        Bound { buffer: self, offset, bytes, written }
    }
}

/// A range of a buffer that a kernel is given. `bytes` of `usize::MAX` means to the buffer's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Which buffer.
    pub buffer: BufferId,
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub bytes: usize,
    /// Whether the kernel may write.
    pub written: bool,
}

/// One buffer.
pub(crate) struct Buffer {
    pub(crate) bytes: usize,
    file: File,
    /// Where the host sees it.
    pub(crate) host: Mapping,
    /// None where nothing writes: weights.
    pub(crate) shadow: Option<Box<Shadow>>,
    /// Writes before this time are forgotten: their bytes count as never written.
    pub(crate) floor: u32,
}

/// Where a kernel sees a binding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// Address of the binding's first byte.
    pub(crate) start: usize,
    /// Lowest address that can be touched.
    pub(crate) low: usize,
    /// Bytes from there that can be touched.
    pub(crate) reach: usize,
}

/// Every buffer of a replay or a test.
#[derive(Default)]
pub struct Memory {
    pub(crate) buffers: Vec<Buffer>,
    windows: HashMap<(usize, usize, usize), (Window, Mapping)>,
}

impl Memory {
    /// No buffers.
    pub fn new() -> Memory {
        Memory::default()
    }

    /// A buffer of `bytes` bytes that nothing has written.
    pub fn unwritten(&mut self, bytes: usize) -> io::Result<BufferId> {
        let file = anonymous()?;
        file.set_len(round_up(bytes.max(1)) as u64)?;
        let host = map(None, round_up(bytes.max(1)), libc::MAP_SHARED, Some(&file), 0)?;
        self.buffers.push(Buffer { bytes, file, host, shadow: Some(Box::new(Shadow::new(bytes))), floor: 1 });
        Ok(BufferId(self.buffers.len() - 1))
    }

    /// A buffer that holds these bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> io::Result<BufferId> {
        let id = self.unwritten(bytes.len())?;
        self.write(id, 0, bytes);
        Ok(id)
    }

    /// A buffer that holds these numbers.
    pub fn floats(&mut self, values: &[f32]) -> io::Result<BufferId> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.bytes(&bytes)
    }

    /// A buffer that holds these words.
    pub fn words(&mut self, values: &[u32]) -> io::Result<BufferId> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.bytes(&bytes)
    }

    /// A buffer that shows a file and is never written.
    pub fn file(&mut self, path: &Path) -> io::Result<BufferId> {
        let file = File::open(path)?;
        let bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let host = map(None, round_up(bytes.max(1)), libc::MAP_PRIVATE, Some(&file), 0)?;
        self.buffers.push(Buffer { bytes, file, host, shadow: None, floor: 1 });
        Ok(BufferId(self.buffers.len() - 1))
    }

    /// A buffer that holds these bytes and is never written.
    pub fn constant(&mut self, bytes: &[u8]) -> io::Result<BufferId> {
        let id = self.bytes(bytes)?;
        self.buffers[id.0].shadow = None;
        Ok(id)
    }

    /// Bytes of a buffer.
    pub fn size(&self, buffer: BufferId) -> usize {
        self.buffers[buffer.0].bytes
    }

    /// What a buffer holds.
    pub fn contents(&self, buffer: BufferId) -> &[u8] {
        let buffer = &self.buffers[buffer.0];
        // SAFETY: the mapping has at least so many bytes, and no kernel runs while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(buffer.host.start as *const u8, buffer.bytes) }
    }

    /// What a buffer holds, as numbers.
    pub fn read_floats(&self, buffer: BufferId) -> Vec<f32> {
        let bytes = self.contents(buffer);
        bytes.chunks_exact(4).map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
    }

    /// What a buffer holds, as words.
    pub fn read_words(&self, buffer: BufferId) -> Vec<u32> {
        let bytes = self.contents(buffer);
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
    }

    /// Writes as the host: whole or, beyond the buffer's end, not at all. Says whether it fitted.
    pub fn write(&mut self, buffer: BufferId, offset: usize, bytes: &[u8]) -> bool {
        let buffer = &mut self.buffers[buffer.0];
        if offset.checked_add(bytes.len()).is_none_or(|end| end > buffer.bytes) {
            return false;
        }
        // SAFETY: the range is inside the mapping, and no kernel runs while `self` is borrowed.
        unsafe {
            let target = (buffer.host.start + offset) as *mut u8;
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
        }
        if let Some(shadow) = &mut buffer.shadow {
            shadow.host_writes(offset, bytes.len());
        }
        true
    }

    /// Forgets when bytes were written, and remembers that they were.
    pub(crate) fn age(&mut self) {
        for shadow in self.buffers.iter_mut().filter_map(|buffer| buffer.shadow.as_mut()) {
            shadow.age();
        }
    }

    /// Whether something has written every byte of a range.
    pub fn written(&mut self, buffer: BufferId, offset: usize, bytes: usize) -> bool {
        let buffer = &mut self.buffers[buffer.0];
        let floor = buffer.floor;
        let Some(shadow) = &mut buffer.shadow else { return true };
        bytes == 0 || shadow.at(offset, bytes).iter().all(|cell| cell.wrote >= floor)
    }

    /// The ranges of a range that something has written, from its start; none if nothing ever writes the buffer.
    pub(crate) fn initialised(
        &mut self,
        buffer: BufferId,
        offset: usize,
        bytes: usize,
    ) -> Option<Vec<Range<usize>>> {
        let buffer = &mut self.buffers[buffer.0];
        let floor = buffer.floor;
        let shadow = buffer.shadow.as_mut()?;
        let mut ranges: Vec<Range<usize>> = Vec::new();
        if bytes == 0 {
            return Some(ranges);
        }
        let cells = shadow.at(offset, bytes);
        let each = bytes / cells.len();
        for (index, cell) in cells.iter().enumerate() {
            if cell.wrote < floor {
                continue;
            }
            match ranges.last_mut() {
                Some(last) if last.end == index * each => last.end += each,
                _ => ranges.push(index * each..(index + 1) * each),
            }
        }
        Some(ranges)
    }

    /// Makes sure that the next `count` windows can be open together, all others closed if need be.
    pub(crate) fn make_room(&mut self, count: usize) {
        if self.windows.len() + count > WINDOWS {
            self.windows.clear();
        }
    }

    /// Where kernels see a range that lies inside its buffer.
    pub(crate) fn window(&mut self, buffer: BufferId, offset: usize, bytes: usize) -> io::Result<Window> {
        let key = (buffer.0, offset, bytes);
        if let Some((window, _)) = self.windows.get(&key) {
            return Ok(*window);
        }
        let page = page();
        let first = offset / page * page;
        let shown = round_up(offset + bytes) - first;
        let reach = shown + 2 * ROOM;
        let mapping = map(None, reach, libc::MAP_PRIVATE, None, 0)?;
        let buffer = &self.buffers[buffer.0];
        if shown > 0 {
            let sharing = if buffer.shadow.is_some() { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
            let shown = map(Some(mapping.start + ROOM), shown, sharing, Some(&buffer.file), first)?;
            std::mem::forget(shown); // It is part of `mapping`, which gives both back.
        }
        let window = Window { start: mapping.start + ROOM + offset - first, low: mapping.start, reach };
        self.windows.insert(key, (window, mapping));
        Ok(window)
    }
}

impl BufferId {
    /// Its number in its memory.
    pub(crate) fn index(self) -> usize {
        self.0
    }
}
