//! Shadow memory: the last write and the last reads of each granule of memory, with thread and time.
//!
//! Time is a counter that advances at every barrier, threadgroup and dispatch. A time therefore identifies the dispatch, the
//! threadgroup and the barrier interval of an access. Comparing times determines whether two accesses are ordered:
//!
//! ```text
//!  previous      interval       dispatch        group          barrier       clock
//! ----|--------------|--------------|--------------|--------------|-------------|----> now
//!     | a barrier    | another      | another      | ordered by   | other simd- |
//!     | command      | dispatch:    | threadgroup: | a barrier of | group: race;|
//!     | was needed   | hazard       | race         | the group    | own: ordered|
//! ```

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};

/// The time of all host writes: before everything else.
pub(crate) const HOST: u32 = 1;

const THREAD: u16 = 1023;
/// Flag: several lanes of a simdgroup have read since its last barrier.
const MANY_LANES: u16 = 1 << 10;
/// Flag: several simdgroups have read since the threadgroup's last barrier.
const MANY_SIMDGROUPS: u16 = 1 << 11;
/// Flag: the access was atomic.
const ATOMIC: u16 = 1 << 12;

/// The access history of one granule.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Cell {
    /// Time of the last write; 0 if never written.
    pub(crate) wrote: u32,
    /// Time of the last read.
    pub(crate) read: u32,
    /// Time of the last read by another threadgroup than the last reader.
    pub(crate) read_before: u32,
    /// Code location of the last write.
    pub(crate) wrote_at: u32,
    /// Code location of the last read.
    pub(crate) read_at: u32,
    writer: u16,
    reader: u16,
}

impl Cell {
    /// Index of the last writer in its threadgroup.
    pub(crate) fn writer(&self) -> u16 {
        self.writer & THREAD
    }

    /// Index of a last reader in its threadgroup.
    pub(crate) fn reader(&self) -> u16 {
        self.reader & THREAD
    }

    /// The state after a write by the host.
    pub(crate) fn by_host() -> Cell {
        Cell { wrote: HOST, ..Cell::default() }
    }
}

/// The times that determine ordering for one thread and one kind of memory.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Clocks {
    /// Last barrier of the thread: simdgroup or threadgroup.
    pub(crate) clock: u32,
    /// Last threadgroup barrier.
    pub(crate) barrier: u32,
    /// Start of the threadgroup.
    pub(crate) group: u32,
    /// Start of the dispatch.
    pub(crate) dispatch: u32,
    /// Last barrier command.
    pub(crate) interval: u32,
    /// The barrier command before the last.
    pub(crate) previous: u32,
    /// Index of the thread.
    pub(crate) thread: u16,
}

/// How two accesses conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// No conflict.
    None,
    /// No conflict, but only because of the last barrier command.
    OrderedByBarrier,
    /// Conflict of two threads of a threadgroup.
    Thread,
    /// Conflict of two threadgroups.
    Group,
    /// Conflict of two dispatches.
    Dispatch,
}

/// The earlier access of a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EarlierAccess {
    /// The last write.
    Wrote,
    /// The last read.
    Read,
    /// A read by an earlier threadgroup or dispatch than the last reader.
    ReadBefore,
}

impl Clocks {
    /// The conflict of an access at `clock` by `thread` with one by this thread now, if either writes.
    #[inline(always)]
    fn relation(&self, clock: u32, thread: u16) -> Conflict {
        if clock < self.interval {
            return if clock >= self.previous { Conflict::OrderedByBarrier } else { Conflict::None };
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
        if thread & MANY_SIMDGROUPS != 0 || (thread & THREAD) / 32 != self.thread / 32 {
            return Conflict::Thread;
        }
        if clock < self.clock {
            return Conflict::None;
        }
        if thread & MANY_LANES != 0 || thread & THREAD != self.thread {
            Conflict::Thread
        } else {
            Conflict::None
        }
    }

    /// Records a write and returns its conflict.
    #[inline(always)]
    pub(crate) fn write(&self, cell: &mut Cell, at: u32, atomic: bool) -> (Conflict, EarlierAccess) {
        let mut found = (Conflict::None, EarlierAccess::Wrote);
        if cell.wrote >= self.previous && !(atomic && cell.writer & ATOMIC != 0) {
            found.0 = self.relation(cell.wrote, cell.writer);
        }
        if found.0 <= Conflict::OrderedByBarrier
            && cell.read >= self.previous
            && !(atomic && cell.reader & ATOMIC != 0)
        {
            let conflict = self.relation(cell.read, cell.reader);
            if conflict > found.0 {
                found = (conflict, EarlierAccess::Read);
            }
        }
        if found.0 <= Conflict::OrderedByBarrier
            && cell.read_before >= self.previous
            && cell.read_before < self.group
            && !atomic
        {
            let conflict = self.relation(cell.read_before, 0);
            if conflict > found.0 {
                found = (conflict, EarlierAccess::ReadBefore);
            }
        }
        cell.wrote = self.clock;
        cell.wrote_at = at;
        cell.writer = self.thread | if atomic { ATOMIC } else { 0 };
        found
    }

    /// Records a read and returns its conflict.
    #[inline(always)]
    pub(crate) fn read(&self, cell: &mut Cell, at: u32, atomic: bool) -> Conflict {
        let mut conflict = Conflict::None;
        if cell.wrote >= self.previous && !(atomic && cell.writer & ATOMIC != 0) {
            conflict = self.relation(cell.wrote, cell.writer);
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
                return conflict;
            }
        }
        cell.read = self.clock;
        cell.read_at = at;
        cell.reader = self.thread | if atomic { ATOMIC } else { 0 };
        conflict
    }
}

impl PartialOrd for Conflict {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some((*self as u8).cmp(&(*other as u8)))
    }
}

/// The shadow memory of a buffer. Granules have 4 bytes until a smaller access occurs.
pub(crate) struct Shadow {
    /// One cell per granule.
    pub(crate) cells: Vec<Cell>,
    /// log2 of the granule size in bytes.
    pub(crate) shift: u32,
}

impl Shadow {
    /// The shadow of `bytes` uninitialized bytes.
    pub(crate) fn new(bytes: usize) -> Shadow {
        Shadow { cells: zeroed(bytes.div_ceil(4)), shift: 2 }
    }

    /// Grows to at least `bytes` bytes.
    pub(crate) fn grow(&mut self, bytes: usize) {
        let cells = bytes.div_ceil(4) << (2 - self.shift);
        if self.cells.len() < cells {
            self.cells.resize(cells, Cell::default());
        }
    }

    /// Splits granules for an access of `size` bytes at `offset`.
    #[cold]
    pub(crate) fn split_granules(&mut self, offset: usize, size: usize) {
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
            self.split_granules(offset, size);
        }
        let first = offset >> self.shift;
        let count = size >> self.shift;
        &mut self.cells[first..first + count]
    }

    /// Records a write by the host.
    pub(crate) fn host_writes(&mut self, offset: usize, size: usize) {
        self.at(offset, size).fill(Cell::by_host());
    }

    /// Discards times, but keeps which bytes are initialized.
    pub(crate) fn clear_times(&mut self) {
        for cell in &mut self.cells {
            if cell.wrote | cell.read != 0 {
                *cell = if cell.wrote == 0 { Cell::default() } else { Cell::by_host() };
            }
        }
    }
}

/// Zeroed cells, whose pages the system allocates on first access.
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
