//! The buffers of a replay or a test, and the windows through which kernels access them.
//!
//! A binding is a byte range of a buffer. Each binding is mapped at its own address with a gap on both sides,
//! so an address identifies the binding: an overrun of one weight does not reach the next. Two windows of the
//! same bytes share memory.

use crate::memory::mmap::{Mapping, anonymous, map, page, round_up};
use crate::memory::shadow::Shadow;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

/// Size of the accessible gap on either side of a window, in bytes.
const GAP: usize = 16 << 20;
/// Maximum open windows. When a dispatch would exceed it, all windows are closed first.
const WINDOWS: usize = 4096;

/// A buffer of a [`Memory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferId(usize);

impl BufferId {
    /// Binds the whole buffer read-only.
    pub fn read(self) -> Bound {
        Bound { buffer: self, offset: 0, bytes: usize::MAX, written: false }
    }

    /// Binds the whole buffer for reading and writing.
    pub fn write(self) -> Bound {
        Bound { buffer: self, offset: 0, bytes: usize::MAX, written: true }
    }

    /// Binds `bytes` bytes from `offset`.
    pub fn span(self, offset: usize, bytes: usize, written: bool) -> Bound {
        Bound { buffer: self, offset, bytes, written }
    }
}

/// A binding: a byte range of a buffer. `bytes` of `usize::MAX` extends to the buffer's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The buffer.
    pub buffer: BufferId,
    /// Offset of the first byte.
    pub offset: usize,
    /// Size in bytes.
    pub bytes: usize,
    /// Whether the kernel may write.
    pub written: bool,
}

/// One buffer.
pub(crate) struct Buffer {
    pub(crate) bytes: usize,
    file: File,
    /// The host's mapping.
    pub(crate) host: Mapping,
    /// `None` for constant buffers, such as weights.
    pub(crate) shadow: Option<Box<Shadow>>,
    /// Bytes written before this time count as uninitialized.
    pub(crate) floor: u32,
}

/// The mapping of a binding for kernels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// Address of the binding's first byte.
    pub(crate) start: usize,
    /// Lowest accessible address.
    pub(crate) low: usize,
    /// Number of accessible bytes from `low`.
    pub(crate) reach: usize,
}

/// All buffers of a replay or a test.
#[derive(Default)]
pub struct Memory {
    pub(crate) buffers: Vec<Buffer>,
    windows: HashMap<(usize, usize, usize), (Window, Mapping)>,
}

impl Memory {
    /// Creates a memory without buffers.
    pub fn new() -> Memory {
        Memory::default()
    }

    /// Adds an uninitialized buffer of `bytes` bytes.
    pub fn unwritten(&mut self, bytes: usize) -> io::Result<BufferId> {
        let file = anonymous()?;
        file.set_len(round_up(bytes.max(1)) as u64)?;
        let host = map(None, round_up(bytes.max(1)), libc::MAP_SHARED, Some(&file), 0)?;
        self.buffers.push(Buffer { bytes, file, host, shadow: Some(Box::new(Shadow::new(bytes))), floor: 1 });
        Ok(BufferId(self.buffers.len() - 1))
    }

    /// Adds a buffer with these bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> io::Result<BufferId> {
        let id = self.unwritten(bytes.len())?;
        self.write(id, 0, bytes);
        Ok(id)
    }

    /// Adds a buffer with these f32 values.
    pub fn floats(&mut self, values: &[f32]) -> io::Result<BufferId> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.bytes(&bytes)
    }

    /// Adds a buffer with these u32 values.
    pub fn words(&mut self, values: &[u32]) -> io::Result<BufferId> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.bytes(&bytes)
    }

    /// Adds a constant buffer that maps a file.
    pub fn file(&mut self, path: &Path) -> io::Result<BufferId> {
        let file = File::open(path)?;
        let bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let host = map(None, round_up(bytes.max(1)), libc::MAP_PRIVATE, Some(&file), 0)?;
        self.buffers.push(Buffer { bytes, file, host, shadow: None, floor: 1 });
        Ok(BufferId(self.buffers.len() - 1))
    }

    /// Adds a constant buffer with these bytes.
    pub fn constant(&mut self, bytes: &[u8]) -> io::Result<BufferId> {
        let id = self.bytes(bytes)?;
        self.buffers[id.0].shadow = None;
        Ok(id)
    }

    /// Size of a buffer in bytes.
    pub fn size(&self, buffer: BufferId) -> usize {
        self.buffers[buffer.0].bytes
    }

    /// Contents of a buffer.
    pub fn contents(&self, buffer: BufferId) -> &[u8] {
        let buffer = &self.buffers[buffer.0];
        // SAFETY: the mapping has at least this many bytes, and no kernel runs while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(buffer.host.start as *const u8, buffer.bytes) }
    }

    /// Contents of a buffer as f32 values.
    pub fn read_floats(&self, buffer: BufferId) -> Vec<f32> {
        let bytes = self.contents(buffer);
        bytes.chunks_exact(4).map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
    }

    /// Contents of a buffer as u32 values.
    pub fn read_words(&self, buffer: BufferId) -> Vec<u32> {
        let bytes = self.contents(buffer);
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
    }

    /// Writes bytes as the host. Returns false and writes nothing if they exceed the buffer.
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

    /// Discards the times of accesses, but keeps which bytes are initialized.
    pub(crate) fn clear_times(&mut self) {
        for shadow in self.buffers.iter_mut().filter_map(|buffer| buffer.shadow.as_mut()) {
            shadow.clear_times();
        }
    }

    /// Whether all bytes of a range are initialized.
    pub fn written(&mut self, buffer: BufferId, offset: usize, bytes: usize) -> bool {
        let buffer = &mut self.buffers[buffer.0];
        let floor = buffer.floor;
        let Some(shadow) = &mut buffer.shadow else { return true };
        bytes == 0 || shadow.at(offset, bytes).iter().all(|cell| cell.wrote >= floor)
    }

    /// The initialized parts of a range, relative to its start; `None` for a constant buffer.
    pub(crate) fn initialized_ranges(
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

    /// Ensures that `count` more windows can be open is_uniform; closes the others if necessary.
    pub(crate) fn reserve_windows(&mut self, count: usize) {
        if self.windows.len() + count > WINDOWS {
            self.windows.clear();
        }
    }

    /// The window of a byte range, which must be inside the buffer.
    pub(crate) fn window(&mut self, buffer: BufferId, offset: usize, bytes: usize) -> io::Result<Window> {
        let key = (buffer.0, offset, bytes);
        if let Some((window, _)) = self.windows.get(&key) {
            return Ok(*window);
        }
        let page = page();
        let first = offset / page * page;
        let shown = round_up(offset + bytes) - first;
        let reach = shown + 2 * GAP;
        let mapping = map(None, reach, libc::MAP_PRIVATE, None, 0)?;
        let buffer = &self.buffers[buffer.0];
        if shown > 0 {
            let sharing = if buffer.shadow.is_some() { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
            let shown = map(Some(mapping.start + GAP), shown, sharing, Some(&buffer.file), first)?;
            std::mem::forget(shown); // It is part of `mapping`, which unmaps both.
        }
        let window = Window { start: mapping.start + GAP + offset - first, low: mapping.start, reach };
        self.windows.insert(key, (window, mapping));
        Ok(window)
    }
}

impl BufferId {
    /// Index of the buffer in its memory.
    pub(crate) fn index(self) -> usize {
        self.0
    }
}
