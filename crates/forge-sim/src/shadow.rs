//! What is remembered of each few bytes of memory: who wrote them last and who has read them since, and when.
//!
//! Time is a counter that moves at every barrier, every threadgroup and every dispatch. One number therefore says of
//! an access in which dispatch, in which threadgroup and between which barriers it happened, and two accesses are
//! ordered or not by comparing numbers:
//!
//! ```text
//!  previous      interval       dispatch        group          barrier       clock
//! ----|--------------|--------------|--------------|--------------|-------------|----> now
//!     | a barrier    | another      | another      | ordered by   | other simd- |
//!     | command      | dispatch:    | threadgroup: | a barrier of | group: race;|
//!     | was needed   | hazard       | race         | the group    | own: ordered|
//! ```

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};

/// The time of what the host wrote: before everything.
pub(crate) const HOST: u32 = 1;

const THREAD: u16 = 1023;
/// Several lanes of a simdgroup have read since its last barrier.
const MANY_LANES: u16 = 1 << 10;
/// Several simdgroups have read since the group's last barrier.
const MANY_SIMDGROUPS: u16 = 1 << 11;
/// The access was atomic.
const ATOMIC: u16 = 1 << 12;

/// What is remembered of one granule.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Cell {
    /// When it was written last; 0 never.
    pub(crate) wrote: u32,
    /// When it was read last.
    pub(crate) read: u32,
    /// When a threadgroup other than the last to read it had read it.
    pub(crate) read_before: u32,
    /// Place in the code of the last write.
    pub(crate) wrote_at: u32,
    /// Place in the code of the last read.
    pub(crate) read_at: u32,
    writer: u16,
    reader: u16,
}

impl Cell {
    /// The thread of its threadgroup that wrote last.
    pub(crate) fn writer(&self) -> u16 {
        self.writer & THREAD
    }

    /// A thread of its threadgroup that read last.
    pub(crate) fn reader(&self) -> u16 {
        self.reader & THREAD
    }

    /// As after a write by the host.
    pub(crate) fn by_host() -> Cell {
        Cell { wrote: HOST, ..Cell::default() }
    }
}

/// The time as one thread sees it, for one kind of memory.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Now {
    /// The last barrier that the thread has passed, alone with its simdgroup or with all.
    pub(crate) clock: u32,
    /// The last barrier of the threadgroup.
    pub(crate) barrier: u32,
    /// The start of the threadgroup.
    pub(crate) group: u32,
    /// The start of the dispatch.
    pub(crate) dispatch: u32,
    /// The last barrier command.
    pub(crate) interval: u32,
    /// The barrier command before it.
    pub(crate) previous: u32,
    /// The thread.
    pub(crate) thread: u16,
}

/// How two accesses conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// They do not.
    None,
    /// They would, if the last barrier command were not there.
    Spared,
    /// Two threads of a threadgroup.
    Thread,
    /// Two threadgroups.
    Group,
    /// Two dispatches.
    Dispatch,
}

/// What another access did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Other {
    /// It wrote.
    Wrote,
    /// It read.
    Read,
    /// It read, and it was an earlier threadgroup or dispatch than the last to read.
    ReadBefore,
}

impl Now {
    /// How an access at `clock` by `who` relates to one by this thread now, if either writes.
    #[inline(always)]
    fn relation(&self, clock: u32, who: u16) -> Conflict {
        if clock < self.interval {
            return if clock >= self.previous { Conflict::Spared } else { Conflict::None };
        }
        if clock < self.dispatch {
            return Conflict::Dispatch;
        }
        if clock < self.group {
            return Conflict::Group;
        }
        if clock < self.barrier {
            return Conflict::None;
        }
        if who & MANY_SIMDGROUPS != 0 || (who & THREAD) / 32 != self.thread / 32 {
            return Conflict::Thread;
        }
        if clock < self.clock {
            return Conflict::None;
        }
        if who & MANY_LANES != 0 || who & THREAD != self.thread { Conflict::Thread } else { Conflict::None }
    }

    /// Notes a write, and says with what it clashes.
    #[inline(always)]
    pub(crate) fn write(&self, cell: &mut Cell, at: u32, atomic: bool) -> (Conflict, Other) {
        let mut found = (Conflict::None, Other::Wrote);
        if cell.wrote >= self.previous && !(atomic && cell.writer & ATOMIC != 0) {
            found.0 = self.relation(cell.wrote, cell.writer);
        }
        if found.0 <= Conflict::Spared && cell.read >= self.previous && !(atomic && cell.reader & ATOMIC != 0)
        {
            let clash = self.relation(cell.read, cell.reader);
            if clash > found.0 {
                found = (clash, Other::Read);
            }
        }
        if found.0 <= Conflict::Spared
            && cell.read_before >= self.previous
            && cell.read_before < self.group
            && !atomic
        {
            let clash = self.relation(cell.read_before, 0);
            if clash > found.0 {
                found = (clash, Other::ReadBefore);
            }
        }
        cell.wrote = self.clock;
        cell.wrote_at = at;
        cell.writer = self.thread | if atomic { ATOMIC } else { 0 };
        found
    }

    /// Notes a read, and says with what it clashes.
    #[inline(always)]
    pub(crate) fn read(&self, cell: &mut Cell, at: u32, atomic: bool) -> Conflict {
        let mut clash = Conflict::None;
        if cell.wrote >= self.previous && !(atomic && cell.writer & ATOMIC != 0) {
            clash = self.relation(cell.wrote, cell.writer);
        }
        if cell.read < self.group {
            cell.read_before = cell.read;
        } else if cell.read >= self.barrier {
            if (cell.reader & THREAD) / 32 != self.thread / 32 {
                cell.reader |= MANY_SIMDGROUPS;
            } else if cell.read == self.clock && cell.reader & THREAD != self.thread {
                cell.reader |= MANY_LANES;
            }
            if !atomic {
                cell.reader &= !ATOMIC;
            }
            if cell.reader & MANY_SIMDGROUPS != 0 || cell.read == self.clock {
                return clash;
            }
        }
        cell.read = self.clock;
        cell.read_at = at;
        cell.reader = self.thread | if atomic { ATOMIC } else { 0 };
        clash
    }
}

impl PartialOrd for Conflict {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some((*self as u8).cmp(&(*other as u8)))
    }
}

/// What is remembered of a buffer. Granules are of 4 bytes until an access smaller than that is seen.
pub(crate) struct Shadow {
    /// One for each granule.
    pub(crate) cells: Vec<Cell>,
    /// log2 of a granule's bytes.
    pub(crate) shift: u32,
}

impl Shadow {
    /// Of `bytes` bytes that nothing has written.
    pub(crate) fn new(bytes: usize) -> Shadow {
        Shadow { cells: zeroed(bytes.div_ceil(4)), shift: 2 }
    }

    /// Grows to hold `bytes` bytes.
    pub(crate) fn reach(&mut self, bytes: usize) {
        let cells = bytes.div_ceil(4) << (2 - self.shift);
        if self.cells.len() < cells {
            self.cells.resize(cells, Cell::default());
        }
    }

    /// Makes granules small enough for an access at `offset` of `size` bytes.
    #[cold]
    pub(crate) fn refine(&mut self, offset: usize, size: usize) {
        let shift = (offset | size).trailing_zeros().min(self.shift);
        let parts = 1usize << (self.shift - shift);
        let mut cells = zeroed(self.cells.len() * parts);
        for (coarse, fine) in self.cells.iter().zip(cells.chunks_exact_mut(parts)) {
            if coarse.wrote | coarse.read != 0 {
                fine.fill(*coarse);
            }
        }
        (self.cells, self.shift) = (cells, shift);
    }

    /// The cells of an access.
    #[inline(always)]
    pub(crate) fn at(&mut self, offset: usize, size: usize) -> &mut [Cell] {
        if (offset | size) & ((1 << self.shift) - 1) != 0 {
            self.refine(offset, size);
        }
        let first = offset >> self.shift;
        let count = size >> self.shift;
        &mut self.cells[first..first + count]
    }

    /// Notes that the host has written.
    pub(crate) fn host_writes(&mut self, offset: usize, size: usize) {
        self.at(offset, size).fill(Cell::by_host());
    }

    /// Forgets when, and remembers only what has been written.
    pub(crate) fn age(&mut self) {
        for cell in &mut self.cells {
            if cell.wrote | cell.read != 0 {
                *cell = if cell.wrote == 0 { Cell::default() } else { Cell::by_host() };
            }
        }
    }
}

/// Cells of zeros in memory that the system gives only once it is touched.
fn zeroed(count: usize) -> Vec<Cell> {
    if count == 0 {
        return Vec::new();
    }
    let layout = Layout::array::<Cell>(count).unwrap_or_else(|_| Layout::new::<Cell>());
    // SAFETY: the layout is not empty, all zeros is a cell, and the vector has the layout's own length.
    unsafe {
        let memory = alloc_zeroed(layout);
        if memory.is_null() || layout.size() < count * size_of::<Cell>() {
            handle_alloc_error(layout);
        }
        Vec::from_raw_parts(memory.cast::<Cell>(), count, count)
    }
}
