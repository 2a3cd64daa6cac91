//! Metal buffers: allocated by the device, or host memory bound without a copy.

use crate::device::Shared;
use crate::machine::differing_words;
use crate::object::{Class, Id, methods};
use forge_sim::{BufferId, Memory};
use std::cell::Cell;
use std::ffi::c_void;
use std::rc::Rc;

/// Page size of the emulated machine.
const PAGE: usize = 16384;
/// Page size of the Linux host, to which mappings are aligned.
const OWN_PAGE: usize = 4096;

/// A Metal buffer.
pub(crate) struct Buffer {
    pub(crate) id: BufferId,
    pub(crate) length: usize,
    /// Address of the contents in the host's memory.
    contents: *mut u8,
    pub(crate) kind: Kind,
    /// Whether the host has released the buffer.
    pub(crate) gone: Cell<bool>,
}

/// What a buffer's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Allocated by the device, shared with the host.
    Own,
    /// Read-only host memory, bound without a copy.
    Constant,
    /// Writable host memory, bound without a copy.
    Lent,
}

/// The host's reference to a buffer. Dropping it marks the buffer as released.
pub(crate) struct Held(pub(crate) Rc<Buffer>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.gone.set(true);
    }
}

static BUFFER: Class = Class {
    name: "MTLBuffer",
    method: methods! {
        "contents" => |buffer| -> *mut u8 { buffer.get::<Held>().0.contents }
        "length" => |buffer| -> usize { buffer.get::<Held>().0.length }
    },
};

/// Allocates an uninitialized buffer of `length` bytes.
pub(crate) fn own(shared: &Shared, length: usize) -> Result<Id, String> {
    let mut machine = shared.borrow_mut();
    let id = machine.memory().poisoned(length).map_err(|error| error.to_string())?;
    let contents = machine.memory().address(id);
    machine.shared.push(id);
    Ok(Id::new(&BUFFER, Held(made(id, length, contents, Kind::Own))))
}

/// Creates a no-copy buffer over host memory.
pub(crate) fn over(shared: &Shared, bytes: *const u8, length: usize) -> Result<Id, String> {
    if !bytes.addr().is_multiple_of(OWN_PAGE) || !length.is_multiple_of(PAGE) {
        return Err(format!("no-copy buffer of {length} bytes at {bytes:p} is not page-aligned"));
    }
    let found = present(bytes, length);
    if found.len() < certain(length) {
        return Err(format!("no-copy buffer of {length} bytes, of which only {} are mapped", found.len()));
    }
    let mut machine = shared.borrow_mut();
    let kind = if is_writable(bytes) { Kind::Lent } else { Kind::Constant };
    let id = match kind {
        Kind::Lent => machine.memory().bytes(&found),
        Kind::Own | Kind::Constant => machine.memory().constant(&found),
    };
    let buffer = made(id.map_err(|error| error.to_string())?, length, bytes.cast_mut(), kind);
    if kind == Kind::Lent {
        machine.shared.push(buffer.id);
        machine.lent.push(buffer.clone());
    }
    Ok(Id::new(&BUFFER, Held(buffer)))
}

fn made(id: BufferId, length: usize, contents: *mut u8, kind: Kind) -> Rc<Buffer> {
    Rc::new(Buffer { id, length, contents, kind, gone: Cell::new(false) })
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
        let certain = certain(self.length);
        match self.kind {
            Kind::Own => true,
            Kind::Constant => present(self.contents, certain) == copy[..certain],
            Kind::Lent => present(self.contents, certain).len() == certain,
        }
    }

    /// Copies the words that the host has changed to the emulated memory.
    pub(crate) fn renew(&self, memory: &mut Memory) {
        let found = present(self.contents, self.length);
        let changed = differing_words(memory.contents(self.id), &found);
        for offset in changed {
            memory.write(self.id, offset, &found[offset..offset + 4]);
        }
    }
}

/// Number of bytes of a mapping that are mapped in any case. The length is a multiple of the emulated page
/// size, and of the last emulated page only the first host page has to be mapped.
fn certain(length: usize) -> usize {
    length - PAGE + OWN_PAGE
}

/// Copies the mapped bytes at an address, by a system call so that unmapped memory does not fault.
fn present(bytes: *const u8, length: usize) -> Vec<u8> {
    let mut found = vec![0; length];
    let to = libc::iovec { iov_base: found.as_mut_ptr().cast::<c_void>(), iov_len: length };
    let from = libc::iovec { iov_base: bytes.cast_mut().cast::<c_void>(), iov_len: length };
    // SAFETY: `to` is an owned buffer, and the system only reads the mapped part of `from`.
    let count = unsafe { libc::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) };
    found.truncate(usize::try_from(count).unwrap_or(0));
    found
}
