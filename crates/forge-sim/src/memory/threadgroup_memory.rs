//! Threadgroup memory. Each array is surrounded by a gap, so that an overrun does not grow the next array. The shadow
//! memory is contiguous, without gaps.

use crate::memory::shadow::Shadow;
use std::io;

/// Size of the address range in bytes.
const SPAN: usize = 8 << 20;
/// Size of the gaps before, between and after arrays, in bytes.
const GAP: usize = 32 << 10;
/// Metal's limit of threadgroup memory, in bytes.
pub(crate) const LIMIT: usize = 32 << 10;

/// One array.
#[derive(Clone, Debug)]
pub(crate) struct Array {
    id: u32,
    /// Offset in the arena.
    pub(crate) offset: usize,
    /// Size in bytes.
    pub(crate) bytes: usize,
    /// Offset in the shadow memory.
    shadow_offset: usize,
    /// Name in the kernel.
    pub(crate) name: String,
}

/// Threadgroup memory. One arena is enough, because threadgroups run one after another.
pub(crate) struct Arena {
    pub(crate) base: usize,
    pub(crate) span: usize,
    pub(crate) slots: Vec<Array>,
    last: usize,
    pub(crate) shadow: Shadow,
    /// Total size of all arrays in bytes.
    pub(crate) used: usize,
}

/// The arena has no space left for an array.
pub(crate) struct OutOfMemory;

impl Arena {
    pub(crate) fn new() -> io::Result<Arena> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the system chooses the address.
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

    /// Removes all arrays. Called before each dispatch.
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
    ) -> Result<(usize, bool), OutOfMemory> {
        if let Some(slot) = self.slots.iter().find(|slot| slot.id == id) {
            return Ok((self.base + slot.offset, false));
        }
        let after = self.slots.last().map_or(0, |slot| slot.offset + slot.bytes);
        let offset = (after + GAP).next_multiple_of(256);
        if bytes > SPAN || offset + bytes + GAP > SPAN {
            return Err(OutOfMemory);
        }
        let shadow_offset = self.used;
        self.slots.push(Array { id, offset, bytes, shadow_offset, name: name() });
        self.used += bytes.next_multiple_of(16);
        self.shadow.grow(self.used);
        Ok((self.base + offset, true))
    }

    /// The shadow offset of these bytes, if they are all in one array.
    #[inline(always)]
    pub(crate) fn shadow_offset(&mut self, offset: usize, size: usize) -> Option<usize> {
        let place = |slot: &Array| {
            let inside = offset.wrapping_sub(slot.offset);
            (inside < slot.bytes && inside + size <= slot.bytes).then_some(slot.shadow_offset + inside)
        };
        if let Some(found) = self.slots.get(self.last).and_then(place) {
            return Some(found);
        }
        let (index, found) =
            self.slots.iter().enumerate().find_map(|(index, slot)| Some((index, place(slot)?)))?;
        self.last = index;
        Some(found)
    }

    /// The array nearest to an offset, for messages.
    pub(crate) fn nearest(&self, offset: usize) -> Option<&Array> {
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
