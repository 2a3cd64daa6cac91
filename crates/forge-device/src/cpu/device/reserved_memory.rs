//! Destination of the weight copy: memory that is written once and is read-only afterwards.
//!
//! It reserves an address for every byte of the weight file, and memory only for the bytes that are copied.

use memmap2::{Advice, Mmap, MmapMut, MmapOptions};
use std::io;
use std::ops::Range;

/// Reserved memory of the weight copy.
pub(crate) enum ReservedMemory {
    /// All bytes are copied.
    Whole(MmapMut),
    /// Some bytes are left out: they map `/dev/zero` and take no memory.
    Parts(Mmap),
}

impl ReservedMemory {
    pub(crate) fn new(length: usize, left_out: &[Range<usize>]) -> io::Result<ReservedMemory> {
        if !left_out.is_empty() {
            return ReservedMemory::parts(length, left_out);
        }
        MmapOptions::new().len(length).no_reserve_swap().map_anon().map(ReservedMemory::Whole)
    }

    /// Reserves memory and makes only the copied ranges writable. The system counts private writable memory,
    /// touched or not, against RLIMIT_DATA and the overcommit limit.
    fn parts(length: usize, left_out: &[Range<usize>]) -> io::Result<ReservedMemory> {
        /// Upper bound of the page size.
        const PAGE: usize = 1 << 16;
        let zeros = std::fs::File::open("/dev/zero")?;
        // SAFETY: the mapping is private, and /dev/zero does not change.
        let memory = unsafe { MmapOptions::new().len(length).map_copy_read_only(&zeros) }?;
        let starts = std::iter::once(0).chain(left_out.iter().map(|range| range.end));
        let ends = left_out.iter().map(|range| range.start).chain([length]);
        for (start, end) in starts.zip(ends).filter(|(start, end)| start < end) {
            let pages = start / PAGE * PAGE..end.next_multiple_of(PAGE).min(length);
            protect(&memory, pages, READ | WRITE)?;
        }
        Ok(ReservedMemory::Parts(memory))
    }

    /// Requests huge pages; returns whether the system supports them.
    pub(crate) fn advise_huge_pages(&self) -> bool {
        match self {
            ReservedMemory::Whole(memory) => memory.advise(Advice::HugePage).is_ok(),
            ReservedMemory::Parts(memory) => memory.advise(Advice::HugePage).is_ok(),
        }
    }

    /// Address of the first byte.
    pub(crate) fn start(&self) -> *const u8 {
        match self {
            ReservedMemory::Whole(memory) => memory.as_ptr(),
            ReservedMemory::Parts(memory) => memory.as_ptr(),
        }
    }

    /// Writable address of the first byte.
    pub(crate) fn start_mut(&mut self) -> *mut u8 {
        match self {
            ReservedMemory::Whole(memory) => memory.as_mut_ptr(),
            ReservedMemory::Parts(memory) => memory.as_ptr().cast_mut(),
        }
    }

    /// Makes the copy read-only.
    pub(crate) fn written(self) -> io::Result<Mmap> {
        match self {
            ReservedMemory::Whole(memory) => memory.make_read_only(),
            ReservedMemory::Parts(memory) => protect(&memory, 0..memory.len(), READ).map(|()| memory),
        }
    }
}

const READ: i32 = 1;
const WRITE: i32 = 2;

/// Sets the protection of pages of a mapping.
fn protect(memory: &Mmap, pages: Range<usize>, what: i32) -> io::Result<()> {
    unsafe extern "C" {
        fn mprotect(start: *mut std::ffi::c_void, bytes: usize, what: i32) -> i32;
    }
    let start = memory[pages.clone()].as_ptr().cast_mut().cast();
    // SAFETY: the pages belong to the mapping, which is not shared.
    match unsafe { mprotect(start, pages.len(), what) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Private writable memory of this process, in bytes.
    fn data() -> usize {
        let table = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = table.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
    }

    #[test]
    fn excluded_ranges_are_not_allocated() {
        // More than anything else in this process allocates.
        const LENGTH: usize = 1 << 40;
        let before = data();
        let mut memory =
            ReservedMemory::new(LENGTH, &[100_000..LENGTH / 2, LENGTH / 2 + 1..LENGTH - 3]).unwrap();
        assert!(data() < before + LENGTH / 8, "{} bytes, and {before} before", data());
        for written in [0, 99_999, LENGTH / 2, LENGTH - 3, LENGTH - 1] {
            // SAFETY: the byte is not left out.
            unsafe { memory.start_mut().add(written).write(7) };
        }
        let copy = memory.written().unwrap();
        assert_eq!([0, 99_999, 200_000, LENGTH / 2, LENGTH - 1].map(|at| copy[at]), [7, 7, 0, 7, 7]);
        assert!(ReservedMemory::new(1000, &[0..400, 400..1000]).is_ok(), "nothing is copied");
    }
}
