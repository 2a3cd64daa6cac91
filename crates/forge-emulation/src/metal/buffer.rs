//! Metal buffers: allocated by the device, or host memory bound without a copy.

use crate::counters::labelled;
use crate::gpu::differing_words;
use crate::metal::device::SharedGpu;
use crate::objc::foundation;
use crate::objc::object::{Class, Id, methods};
use forge_sim::{BufferId, Memory};
use std::cell::Cell;
use std::ffi::c_void;
use std::rc::Rc;

/// Page size of the emulated GPU.
const PAGE: usize = 16384;
/// Page size of the Linux host, to which mappings are aligned.
const HOST_PAGE: usize = 4096;

/// A Metal buffer.
pub(crate) struct Buffer {
    pub(crate) id: BufferId,
    pub(crate) length: usize,
    /// Address of the contents in the host's memory.
    contents: *mut u8,
    pub(crate) backing: Backing,
    /// Whether the host has released the buffer.
    pub(crate) released: Cell<bool>,
}

/// What a buffer's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// Allocated by the device, shared with the host.
    Allocated,
    /// Read-only host memory, bound without a copy.
    NoCopyReadOnly,
    /// Writable host memory, bound without a copy.
    NoCopyWritable,
}

/// The host's reference to a buffer. Dropping it marks the buffer as released.
pub(crate) struct RetainedBuffer(pub(crate) Rc<Buffer>);

impl Drop for RetainedBuffer {
    fn drop(&mut self) {
        self.0.released.set(true);
    }
}

static BUFFER: Class = Class {
    name: "MTLBuffer",
    method: methods! {
        "contents" => |buffer| -> *mut u8 { buffer.get::<RetainedBuffer>().0.contents }
        "setLabel:" => |object, label: Id| { labelled(object.class().name, &foundation::read(label)) }
        "length" => |buffer| -> usize { buffer.get::<RetainedBuffer>().0.length }
    },
};

/// Allocates an uninitialized buffer of `length` bytes.
pub(crate) fn allocate(shared: &SharedGpu, length: usize) -> Result<Id, String> {
    let mut gpu = shared.borrow_mut();
    let id = gpu.memory().poisoned(length).map_err(|error| error.to_string())?;
    let contents = gpu.memory().address(id);
    gpu.shared.push(id);
    Ok(Id::new(&BUFFER, RetainedBuffer(new_buffer(id, length, contents, Backing::Allocated))))
}

/// Creates a no-copy buffer over host memory.
pub(crate) fn no_copy(shared: &SharedGpu, bytes: *const u8, length: usize) -> Result<Id, String> {
    if !bytes.addr().is_multiple_of(HOST_PAGE) || !length.is_multiple_of(PAGE) {
        return Err(format!("no-copy buffer of {length} bytes at {bytes:p} is not page-aligned"));
    }
    let found = read_mapped(bytes, length);
    if found.len() < min_mapped(length) {
        return Err(format!("no-copy buffer of {length} bytes, of which only {} are mapped", found.len()));
    }
    let mut gpu = shared.borrow_mut();
    let backing = if is_writable(bytes) { Backing::NoCopyWritable } else { Backing::NoCopyReadOnly };
    let id = match backing {
        Backing::NoCopyWritable => gpu.memory().bytes(&found),
        Backing::Allocated | Backing::NoCopyReadOnly => gpu.memory().constant(&found),
    };
    let buffer = new_buffer(id.map_err(|error| error.to_string())?, length, bytes.cast_mut(), backing);
    if backing == Backing::NoCopyWritable {
        gpu.shared.push(buffer.id);
        gpu.no_copy_writable.push(buffer.clone());
    }
    Ok(Id::new(&BUFFER, RetainedBuffer(buffer)))
}

fn new_buffer(id: BufferId, length: usize, contents: *mut u8, backing: Backing) -> Rc<Buffer> {
    Rc::new(Buffer { id, length, contents, backing, released: Cell::new(false) })
}

/// Whether the memory at an address is mapped writable.
fn is_writable(bytes: *const u8) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let has_it = |line: &&str| {
        let ends = line.split(' ').next().and_then(|range| range.split_once('-'));
        let address = |text: &str| usize::from_str_radix(text, 16).unwrap_or(0);
        ends.is_some_and(|(start, end)| (address(start)..address(end)).contains(&bytes.addr()))
    };
    maps.lines().find(has_it).and_then(|line| line.split(' ').nth(1)).is_some_and(|may| may.contains('w'))
}

impl Buffer {
    /// Whether host memory is still mapped and, if it is read-only, equal to `copy`.
    pub(crate) fn is_intact(&self, copy: &[u8]) -> bool {
        let min_mapped = min_mapped(self.length);
        match self.backing {
            Backing::Allocated => true,
            Backing::NoCopyReadOnly => read_mapped(self.contents, min_mapped) == copy[..min_mapped],
            Backing::NoCopyWritable => read_mapped(self.contents, min_mapped).len() == min_mapped,
        }
    }

    /// Copies the words that the host has changed to the emulated memory.
    pub(crate) fn copy_host_writes(&self, memory: &mut Memory) {
        let found = read_mapped(self.contents, self.length);
        let changed = differing_words(memory.contents(self.id), &found);
        for offset in changed {
            memory.write(self.id, offset, &found[offset..offset + 4]);
        }
    }
}

/// Number of bytes of a mapping that are mapped in any case. The length is a multiple of the emulated page
/// size, and of the last emulated page only the first host page has to be mapped.
fn min_mapped(length: usize) -> usize {
    length - PAGE + HOST_PAGE
}

/// Copies the mapped bytes at an address, by a system call so that unmapped memory does not fault.
fn read_mapped(bytes: *const u8, length: usize) -> Vec<u8> {
    let mut found = vec![0; length];
    let to = libc::iovec { iov_base: found.as_mut_ptr().cast::<c_void>(), iov_len: length };
    let from = libc::iovec { iov_base: bytes.cast_mut().cast::<c_void>(), iov_len: length };
    // SAFETY: `to` is an owned buffer, and the system only reads the mapped part of `from`.
    let count = unsafe { libc::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) };
    found.truncate(usize::try_from(count).unwrap_or(0));
    found
}
