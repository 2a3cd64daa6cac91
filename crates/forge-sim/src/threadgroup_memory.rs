//! The memory of one threadgroup: every array that a kernel declares in it, with room around each, so that what runs
//! over the end of one does not land in the next. What is remembered of arrays is kept without that room.

use crate::shadow::Shadow;
use std::io;

/// Bytes of addresses.
const SPAN: usize = 8 << 20;
/// Bytes before, between and after arrays.
const ROOM: usize = 32 << 10;
/// What Metal grants a threadgroup.
pub(crate) const LIMIT: usize = 32 << 10;

/// One array.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    id: u32,
    /// Where it starts in the arena.
    pub(crate) offset: usize,
    /// Its bytes.
    pub(crate) bytes: usize,
    /// Where it starts in the shadow.
    remembered: usize,
    /// Its name in the kernel.
    pub(crate) name: String,
}

/// Threadgroup memory. Threadgroups run one after another, so there is one.
pub(crate) struct Arena {
    pub(crate) base: usize,
    pub(crate) span: usize,
    pub(crate) slots: Vec<Slot>,
    last: usize,
    pub(crate) shadow: Shadow,
    /// Bytes of all arrays.
    pub(crate) used: usize,
}

/// An arena has no room for an array.
pub(crate) struct Full;

impl Arena {
    pub(crate) fn new() -> io::Result<Arena> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the system chooses the place.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), SPAN, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Arena {
            base: start as usize,
            span: SPAN,
            slots: Vec::new(),
            last: 0,
            shadow: Shadow::new(0),
            used: 0,
        })
    }

    /// Forgets every array: a kernel starts.
    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        if self.shadow.shift < 2 {
            self.shadow = Shadow::new(0);
        }
        self.used = 0;
        self.last = 0;
    }

    /// The address of array `id`, and whether it is new.
    pub(crate) fn array(
        &mut self,
        id: u32,
        bytes: usize,
        name: impl FnOnce() -> String,
    ) -> Result<(usize, bool), Full> {
        if let Some(slot) = self.slots.iter().find(|slot| slot.id == id) {
            return Ok((self.base + slot.offset, false));
        }
        let after = self.slots.last().map_or(0, |slot| slot.offset + slot.bytes);
        let offset = (after + ROOM).next_multiple_of(256);
        if bytes > SPAN || offset + bytes + ROOM > SPAN {
            return Err(Full);
        }
        let remembered = self.used;
        self.slots.push(Slot { id, offset, bytes, remembered, name: name() });
        self.used += bytes.next_multiple_of(16);
        self.shadow.reach(self.used);
        Ok((self.base + offset, true))
    }

    /// Where in the shadow these bytes are, if one array has them all.
    #[inline(always)]
    pub(crate) fn remembered(&mut self, offset: usize, size: usize) -> Option<usize> {
        let place = |slot: &Slot| {
            let inside = offset.wrapping_sub(slot.offset);
            (inside < slot.bytes && inside + size <= slot.bytes).then_some(slot.remembered + inside)
        };
        if let Some(found) = self.slots.get(self.last).and_then(place) {
            return Some(found);
        }
        let (index, found) =
            self.slots.iter().enumerate().find_map(|(index, slot)| Some((index, place(slot)?)))?;
        self.last = index;
        Some(found)
    }

    /// The array whose room an offset lies in, for people.
    pub(crate) fn nearest(&self, offset: usize) -> Option<&Slot> {
        self.slots.iter().min_by_key(|slot| {
            let after = offset.saturating_sub(slot.offset + slot.bytes);
            slot.offset.saturating_sub(offset).max(after)
        })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: it was mapped in `new` and no kernel runs any more.
        unsafe { libc::munmap(self.base as *mut libc::c_void, self.span) };
    }
}
