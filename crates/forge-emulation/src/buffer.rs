//! Buffers: bytes of their own, or memory of the host that the GPU sees without a copy.

use crate::device::Shared;
use crate::machine::differing_words;
use crate::object::{Class, Id, methods};
use forge_sim::{BufferId, Memory};
use std::cell::Cell;
use std::ffi::c_void;
use std::rc::Rc;

/// A page of the machine that is emulated.
const PAGE: usize = 16384;
/// A page of any Linux that the emulation runs on, which is where mappings start here.
const OWN_PAGE: usize = 4096;

/// A buffer.
pub(crate) struct Buffer {
    pub(crate) id: BufferId,
    pub(crate) length: usize,
    /// Where the host sees it.
    contents: *mut u8,
    pub(crate) kind: Kind,
    /// Whether the host has given it back.
    pub(crate) gone: Cell<bool>,
}

/// Whose memory a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Its own, which the host sees.
    Own,
    /// The host's, which nobody can write.
    Constant,
    /// The host's, which it may write.
    Lent,
}

/// A buffer as the host has it.
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

/// A buffer of `length` bytes that nobody has written.
pub(crate) fn own(shared: &Shared, length: usize) -> Result<Id, String> {
    let mut machine = shared.borrow_mut();
    let id = machine.memory().poisoned(length).map_err(|error| error.to_string())?;
    let contents = machine.memory().address(id);
    machine.shared.push(id);
    Ok(Id::new(&BUFFER, Held(made(id, length, contents, Kind::Own))))
}

/// A buffer over memory of the host, which no kernel may write.
pub(crate) fn over(shared: &Shared, bytes: *const u8, length: usize) -> Result<Id, String> {
    if !bytes.addr().is_multiple_of(OWN_PAGE) || !length.is_multiple_of(PAGE) {
        return Err(format!(
            "a buffer of {length} bytes without a copy at {bytes:p}: it does not start and end on pages"
        ));
    }
    let found = present(bytes, length);
    if found.len() < certain(length) {
        return Err(format!(
            "a buffer of {length} bytes without a copy, of which the host has {}",
            found.len()
        ));
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

/// Whether the host may write what lies at an address, as the system says.
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
    /// Whether memory that the host has lent is still there, and what it was where nobody can write it, which it compares with
    /// `copy`.
    pub(crate) fn is_intact(&self, copy: &[u8]) -> bool {
        let certain = certain(self.length);
        match self.kind {
            Kind::Own => true,
            Kind::Constant => present(self.contents, certain) == copy[..certain],
            Kind::Lent => present(self.contents, certain).len() == certain,
        }
    }

    /// Gives the machine's memory what the host has written into its own.
    pub(crate) fn renew(&self, memory: &mut Memory) {
        let found = present(self.contents, self.length);
        let changed = differing_words(memory.contents(self.id), &found);
        for offset in changed {
            memory.write(self.id, offset, &found[offset..offset + 4]);
        }
    }
}

/// The bytes of a mapping that end on a page of our own though its length is counted in those of the machine: what follows
/// in the last of those may be somebody else's.
fn certain(length: usize) -> usize {
    length - PAGE + OWN_PAGE
}

/// The bytes at an address, as far as there are any: the system is asked, which does not trip over an end.
fn present(bytes: *const u8, length: usize) -> Vec<u8> {
    let mut found = vec![0; length];
    let to = libc::iovec { iov_base: found.as_mut_ptr().cast::<c_void>(), iov_len: length };
    let from = libc::iovec { iov_base: bytes.cast_mut().cast::<c_void>(), iov_len: length };
    // SAFETY: `to` is memory of our own, and of `from` the system reads only what there is.
    let count = unsafe { libc::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) };
    found.truncate(usize::try_from(count).unwrap_or(0));
    found
}
