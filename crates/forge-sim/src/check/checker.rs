//! The access checker. It is called before each access, finds the binding or array, and compares the access with the shadow
//! memory.

use crate::check::fault::{FaultKind, Faults};
use crate::check::traffic::{Traffic, TrafficCounter};
use crate::compile::program::Program;
use crate::memory::shadow::{Cell, Clocks, Conflict, EarlierAccess, Shadow};
use crate::memory::threadgroup_memory::Arena;
use serde::Serialize;
use std::ffi::c_void;

/// Flag of an access code: a write. The low byte is the size.
pub(crate) const WRITES: u32 = 256;
/// Flag of an access code: the type's natural alignment is required.
pub(crate) const ALIGNED: u32 = 512;
/// Flag of an access code: an atomic operation.
pub(crate) const IS_ATOMIC: u32 = 1024;

/// A binding of the running kernel.
pub(crate) struct View {
    /// Address of the first byte.
    pub(crate) start: usize,
    /// Size in bytes.
    pub(crate) bytes: usize,
    /// Lowest mapped address.
    pub(crate) low: usize,
    /// Mapped bytes from `low`.
    pub(crate) reach: usize,
    /// Whether the kernel may write it.
    pub(crate) written: bool,
    /// Whether it is device memory.
    pub(crate) device: bool,
    /// Its buffer's shadow memory; null for a constant buffer.
    pub(crate) shadow: *mut Shadow,
    /// Offset in its buffer.
    pub(crate) origin: usize,
    /// Bytes written before this time count as uninitialized.
    pub(crate) floor: u32,
    /// Parameter name in the kernel.
    pub(crate) name: String,
}

/// Counters of one kernel, summed over dispatches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Dispatches.
    pub dispatches: u64,
    /// Threadgroups.
    pub groups: u64,
    /// Loads and stores, each of up to 16 bytes.
    pub accesses: u64,
    /// Bytes loaded from device memory.
    pub loaded: u64,
    /// Bytes stored to device memory.
    pub stored: u64,
    /// Device memory traffic, as far as counted.
    pub traffic: Traffic,
    /// Bytes loaded from and stored to threadgroup memory.
    pub threadgroup: u64,
    /// Barriers executed by threadgroups.
    pub barriers: u64,
    /// Simdgroup operations.
    pub simd: u64,
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        let Counters { dispatches, groups, accesses, loaded, stored, threadgroup, barriers, simd, traffic } =
            other;
        self.dispatches += dispatches;
        self.groups += groups;
        self.accesses += accesses;
        self.loaded += loaded;
        self.stored += stored;
        self.traffic += traffic;
        self.threadgroup += threadgroup;
        self.barriers += barriers;
        self.simd += simd;
    }
}

/// The state of the kernel checker.
pub(crate) struct Checker {
    pub(crate) program: *const Program,
    /// Index of the running kernel.
    pub(crate) kernel: usize,
    pub(crate) views: Vec<View>,
    last: usize,
    pub(crate) arena: Arena,
    /// Address range of the running thread's stack.
    pub(crate) stack: (usize, usize),
    /// Times for device memory.
    pub(crate) device: Clocks,
    /// Times for threadgroup memory.
    pub(crate) group: Clocks,
    pub(crate) counters: Counters,
    /// Traffic counter of the running dispatch, if enabled.
    pub(crate) counting: Option<Box<TrafficCounter>>,
    /// Maximum accesses of one dispatch.
    pub(crate) budget: u64,
    pub(crate) faults: Faults,
    /// Start and kernel of each dispatch since the last barrier command.
    pub(crate) dispatches: Vec<(u32, String)>,
    /// Start of each threadgroup of this dispatch.
    pub(crate) groups: Vec<u32>,
    /// Whether an access since the last barrier command needed it.
    pub(crate) would_conflict: bool,
}

impl Checker {
    pub(crate) fn new(arena: Arena) -> Checker {
        Checker {
            program: std::ptr::null(),
            kernel: 0,
            views: Vec::new(),
            last: 0,
            arena,
            stack: (0, 0),
            device: Clocks::default(),
            group: Clocks::default(),
            counters: Counters::default(),
            counting: None,
            budget: u64::MAX,
            faults: Faults::default(),
            dispatches: Vec::new(),
            groups: Vec::new(),
            would_conflict: false,
        }
    }

    /// Removes the last dispatch's bindings and arrays.
    pub(crate) fn clear(&mut self) {
        self.views.clear();
        self.last = 0;
        self.arena.clear();
        self.counters = Counters::default();
    }

    /// Checks an access. Returns false if it is impossible: then the thread must stop.
    #[inline(always)]
    pub(crate) fn access(&mut self, at: usize, code: u32, place: *const c_void) -> bool {
        let size = (code & 255) as usize;
        self.counters.accesses += 1;
        if code & ALIGNED != 0 && at & (size - 1) != 0 {
            return self.misaligned(at, code, place);
        }
        let offset = at.wrapping_sub(self.arena.base);
        if offset < self.arena.span {
            return self.in_threadgroup(offset, size, code, place);
        }
        self.in_bindings(at, size, code, place)
    }

    #[inline(always)]
    fn in_threadgroup(&mut self, offset: usize, size: usize, code: u32, place: *const c_void) -> bool {
        self.counters.threadgroup += size as u64;
        let Some(shadow_offset) = self.arena.shadow_offset(offset, size) else {
            return self.outside_arena(offset, size, code, place);
        };
        let now = self.group;
        let program = self.program;
        let site = site(program, place);
        let mut found: Option<(Conflict, EarlierAccess, Cell)> = None;
        let mut unwritten = false;
        let atomic = code & IS_ATOMIC != 0;
        for cell in self.arena.shadow.at(shadow_offset, size) {
            let before = *cell;
            if code & WRITES != 0 {
                let (conflict, other) = now.write(cell, site, atomic);
                if conflict > Conflict::OrderedByBarrier {
                    found = Some((conflict, other, before));
                }
            } else {
                unwritten |= cell.wrote < now.group;
                let conflict = now.read(cell, site, atomic);
                if conflict > Conflict::OrderedByBarrier {
                    found = Some((conflict, EarlierAccess::Wrote, before));
                }
            }
        }
        if unwritten {
            self.uninitialized_array(offset, size, site);
        }
        if let Some((conflict, other, cell)) = found {
            self.race_in_array(offset, size, code, site, (conflict, other, cell));
        }
        true
    }

    #[inline(always)]
    fn in_bindings(&mut self, at: usize, size: usize, code: u32, place: *const c_void) -> bool {
        let seen = |view: &View| at.wrapping_sub(view.low) < view.reach;
        if !self.views.get(self.last).is_some_and(seen) {
            match self.views.iter().position(seen) {
                Some(index) => self.last = index,
                None => return self.outside_bindings(at, size, code, place),
            }
        }
        let view = &self.views[self.last];
        let offset = at.wrapping_sub(view.start);
        if offset >= view.bytes || offset + size > view.bytes {
            return self.outside(at, size, code, place);
        }
        if code & WRITES != 0 {
            self.counters.stored += size as u64;
            if !view.written {
                self.read_only(offset, size, place);
            }
        } else if view.device {
            self.counters.loaded += size as u64;
        }
        let view = &self.views[self.last];
        let now = self.device;
        let site = site(self.program, place);
        if let Some(counting) = &mut self.counting
            && view.device
        {
            let writes = code & WRITES != 0;
            counting.access((self.last, offset), (at, size), writes, (site, usize::from(now.thread)));
        }
        if view.shadow.is_null() {
            return true;
        }
        let atomic = code & IS_ATOMIC != 0;
        let (mut found, mut would_conflict, mut unwritten) = (None, false, false);
        // SAFETY: the shadow belongs to a buffer that outlives the dispatch, and nothing else touches it meanwhile.
        for cell in unsafe { (*view.shadow).at(view.origin + offset, size) } {
            let before = *cell;
            let (conflict, other) = if code & WRITES != 0 {
                now.write(cell, site, atomic)
            } else {
                unwritten |= cell.wrote < view.floor;
                (now.read(cell, site, atomic), EarlierAccess::Wrote)
            };
            if conflict != Conflict::None {
                would_conflict |= conflict == Conflict::OrderedByBarrier;
                if conflict != Conflict::OrderedByBarrier {
                    found = Some((conflict, other, before));
                }
            }
        }
        self.would_conflict |= would_conflict;
        if unwritten {
            self.unwritten(offset, size, site);
        }
        if let Some(found) = found {
            self.race(offset, size, code, site, found);
        }
        true
    }

    /// The binding of the last access.
    pub(crate) fn last_view(&self) -> &View {
        &self.views[self.last]
    }

    /// Checks an access of many bytes.
    pub(crate) fn range(&mut self, at: usize, size: usize, write: bool, place: *const c_void) -> bool {
        let code = if write { WRITES } else { 0 };
        let mut done = 0;
        while done < size {
            let step = match (size - done, (at + done) % 16) {
                (16.., 0) => 16,
                (4.., 0 | 4 | 8 | 12) => 4,
                _ => 1,
            };
            if !self.access(at + done, step as u32 | code, place) {
                return false;
            }
            done += step;
        }
        true
    }

    /// Checks an atomic operation.
    pub(crate) fn atomic(&mut self, at: usize, size: usize, kind: u32, place: *const c_void) -> bool {
        let code = size as u32 | ALIGNED | IS_ATOMIC;
        (kind == 1 || self.access(at, code, place)) && (kind == 0 || self.access(at, code | WRITES, place))
    }

    /// Records a fault; `describe` is only called for its first occurrence at this code location.
    #[cold]
    pub(crate) fn fault(&mut self, kind: FaultKind, site: u32, describe: impl FnOnce(&Checker) -> String) {
        if !self.faults.seen(kind, self.kernel, site) {
            let message = describe(self);
            self.add(kind, site, message);
        }
    }
}

/// The index of a code location.
#[inline(always)]
pub(crate) fn site(program: *const Program, place: *const c_void) -> u32 {
    // SAFETY: the program outlives every dispatch of its kernels.
    unsafe { (*program).site(place) }
}
