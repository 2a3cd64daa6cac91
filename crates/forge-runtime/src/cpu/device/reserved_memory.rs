//! Memory that a copy of the weight file is written to, and that is read only when it is whole. Whoever copies owns it.
//!
//! It has an address for every byte of the file, and memory for what is copied.

use memmap2::{Advice, Mmap, MmapMut, MmapOptions};
use std::io;
use std::ops::Range;

/// Where a copy is written.
pub(crate) enum ReservedMemory {
    /// Everything is.
    Whole(MmapMut),
    /// Some of it is not: of that there are zeros to be read, which take no memory.
    Parts(Mmap),
}

impl ReservedMemory {
    pub(crate) fn new(length: usize, left_out: &[Range<usize>]) -> io::Result<ReservedMemory> {
        if !left_out.is_empty() {
            return ReservedMemory::parts(length, left_out);
        }
        MmapOptions::new().len(length).no_reserve_swap().map_anon().map(ReservedMemory::Whole)
    }

    /// The system counts private memory that can be written (RLIMIT_DATA; all that it has promised where it promises no more than there
    /// is), touched or not. So only what is copied can be.
    fn parts(length: usize, left_out: &[Range<usize>]) -> io::Result<ReservedMemory> {
        /// What pages are no larger than.
        const PAGE: usize = 1 << 16;
        let zeros = std::fs::File::open("/dev/zero")?;
        // SAFETY: nobody can change what is mapped privately, and zeros stay what they are.
        let room = unsafe { MmapOptions::new().len(length).map_copy_read_only(&zeros) }?;
        let starts = std::iter::once(0).chain(left_out.iter().map(|range| range.end));
        let ends = left_out.iter().map(|range| range.start).chain([length]);
        for (start, end) in starts.zip(ends).filter(|(start, end)| start < end) {
            let pages = start / PAGE * PAGE..end.next_multiple_of(PAGE).min(length);
            protect(&room, pages, READ | WRITE)?;
        }
        Ok(ReservedMemory::Parts(room))
    }

    /// Whether the system knows huge pages.
    pub(crate) fn asks_for_huge_pages(&self) -> bool {
        match self {
            ReservedMemory::Whole(room) => room.advise(Advice::HugePage).is_ok(),
            ReservedMemory::Parts(room) => room.advise(Advice::HugePage).is_ok(),
        }
    }

    /// Where it begins.
    pub(crate) fn start(&self) -> *const u8 {
        match self {
            ReservedMemory::Whole(room) => room.as_ptr(),
            ReservedMemory::Parts(room) => room.as_ptr(),
        }
    }

    /// The same, to be written.
    pub(crate) fn start_mut(&mut self) -> *mut u8 {
        match self {
            ReservedMemory::Whole(room) => room.as_mut_ptr(),
            ReservedMemory::Parts(room) => room.as_ptr().cast_mut(),
        }
    }

    /// The copy, to be read only.
    pub(crate) fn written(self) -> io::Result<Mmap> {
        match self {
            ReservedMemory::Whole(room) => room.make_read_only(),
            ReservedMemory::Parts(room) => protect(&room, 0..room.len(), READ).map(|()| room),
        }
    }
}

const READ: i32 = 1;
const WRITE: i32 = 2;

/// Says what may be done with pages of a mapping.
fn protect(room: &Mmap, pages: Range<usize>, what: i32) -> io::Result<()> {
    unsafe extern "C" {
        fn mprotect(start: *mut std::ffi::c_void, bytes: usize, what: i32) -> i32;
    }
    let start = room[pages.clone()].as_ptr().cast_mut().cast();
    // SAFETY: the pages are the mapping's, and it is nobody else's.
    match unsafe { mprotect(start, pages.len(), what) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What has been promised of private memory that can be written.
    fn data() -> usize {
        let table = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = table.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
    }

    #[test]
    fn what_is_left_out_is_no_data() {
        // So much that nothing else in this process comes near.
        const MUCH: usize = 1 << 40;
        let before = data();
        let mut room = ReservedMemory::new(MUCH, &[100_000..MUCH / 2, MUCH / 2 + 1..MUCH - 3]).unwrap();
        assert!(data() < before + MUCH / 8, "{} bytes, and {before} before", data());
        for written in [0, 99_999, MUCH / 2, MUCH - 3, MUCH - 1] {
            // SAFETY: it is not left out.
            unsafe { room.start_mut().add(written).write(7) };
        }
        let copy = room.written().unwrap();
        assert_eq!([0, 99_999, 200_000, MUCH / 2, MUCH - 1].map(|at| copy[at]), [7, 7, 0, 7, 7]);
        assert!(ReservedMemory::new(1000, &[0..400, 400..1000]).is_ok(), "nothing is copied");
    }
}
