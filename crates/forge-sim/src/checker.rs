//! The referee: hears of each access before it happens, finds out through which binding or array it goes, and
//! compares it with what the shadow remembers.

use crate::fault::{Faults, Kind};
use crate::program::Program;
use crate::shadow::{Cell, Conflict, Now, Other, Shadow};
use crate::threadgroup_memory::Arena;
use crate::traffic::{Counting, Traffic};
use serde::Serialize;
use std::ffi::c_void;

/// The code of an access has its size in the low byte, and these.
pub(crate) const WRITES: u32 = 256;
/// Its type's natural alignment is promised.
pub(crate) const ALIGNED: u32 = 512;
/// It is atomic.
pub(crate) const IS_ATOMIC: u32 = 1024;

/// A binding as the running kernel sees it.
pub(crate) struct View {
    /// Address of its first byte.
    pub(crate) start: usize,
    /// Its bytes.
    pub(crate) bytes: usize,
    /// Addresses that can be touched without harm: from here,
    pub(crate) low: usize,
    /// so many.
    pub(crate) reach: usize,
    /// Whether it may be written.
    pub(crate) written: bool,
    /// Whether it is device memory, and counted as such.
    pub(crate) device: bool,
    /// Its buffer's shadow, or null where nothing writes.
    pub(crate) shadow: *mut Shadow,
    /// Where it starts in its buffer.
    pub(crate) origin: usize,
    /// Writes before this time do not count.
    pub(crate) floor: u32,
    /// The kernel's name for it.
    pub(crate) name: String,
}

/// What one kernel has done, all dispatches together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Times it was dispatched.
    pub dispatches: u64,
    /// Threadgroups that ran.
    pub groups: u64,
    /// Loads and stores, each of up to 16 bytes.
    pub accesses: u64,
    /// Bytes loaded from device memory.
    pub loaded: u64,
    /// Bytes stored to device memory.
    pub stored: u64,
    /// How it uses device memory, as far as that was counted.
    pub traffic: Traffic,
    /// Bytes loaded from and stored to threadgroup memory.
    pub threadgroup: u64,
    /// Barriers that a threadgroup passed.
    pub barriers: u64,
    /// Operations that a simdgroup did together.
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

/// The state of the referee.
pub(crate) struct Checker {
    pub(crate) program: *const Program,
    /// The running kernel's number.
    pub(crate) kernel: usize,
    pub(crate) views: Vec<View>,
    last: usize,
    pub(crate) arena: Arena,
    /// The running thread's stack.
    pub(crate) stack: (usize, usize),
    /// The time for device memory.
    pub(crate) device: Now,
    /// The time for threadgroup memory.
    pub(crate) group: Now,
    pub(crate) counters: Counters,
    /// What the running dispatch asks of device memory, where somebody wants to know.
    pub(crate) counting: Option<Box<Counting>>,
    /// Accesses that one dispatch may make.
    pub(crate) budget: u64,
    pub(crate) faults: Faults,
    /// Start and kernel of each dispatch since the last barrier command.
    pub(crate) dispatches: Vec<(u32, String)>,
    /// Start of each threadgroup of this dispatch.
    pub(crate) groups: Vec<u32>,
    /// Whether something since the last barrier command needed it.
    pub(crate) spared: bool,
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
            device: Now::default(),
            group: Now::default(),
            counters: Counters::default(),
            counting: None,
            budget: u64::MAX,
            faults: Faults::default(),
            dispatches: Vec::new(),
            groups: Vec::new(),
            spared: false,
        }
    }

    /// Forgets the last dispatch's bindings and arrays.
    pub(crate) fn clear(&mut self) {
        self.views.clear();
        self.last = 0;
        self.arena.clear();
        self.counters = Counters::default();
    }

    /// Judges an access. Says whether it can be done at all: if not, the thread must not go on.
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
        self.elsewhere(at, size, code, place)
    }

    #[inline(always)]
    fn in_threadgroup(&mut self, offset: usize, size: usize, code: u32, place: *const c_void) -> bool {
        self.counters.threadgroup += size as u64;
        let Some(remembered) = self.arena.remembered(offset, size) else {
            return self.outside_arena(offset, size, code, place);
        };
        let now = self.group;
        let program = self.program;
        let site = site(program, place);
        let mut found: Option<(Conflict, Other, Cell)> = None;
        let mut unwritten = false;
        let atomic = code & IS_ATOMIC != 0;
        for cell in self.arena.shadow.at(remembered, size) {
            let before = *cell;
            if code & WRITES != 0 {
                let (clash, other) = now.write(cell, site, atomic);
                if clash > Conflict::Spared {
                    found = Some((clash, other, before));
                }
            } else {
                unwritten |= cell.wrote < now.group;
                let clash = now.read(cell, site, atomic);
                if clash > Conflict::Spared {
                    found = Some((clash, Other::Wrote, before));
                }
            }
        }
        if unwritten {
            self.unwritten_array(offset, size, site);
        }
        if let Some((clash, other, cell)) = found {
            self.race_in_array(offset, size, code, site, (clash, other, cell));
        }
        true
    }

    #[inline(always)]
    fn elsewhere(&mut self, at: usize, size: usize, code: u32, place: *const c_void) -> bool {
        let seen = |view: &View| at.wrapping_sub(view.low) < view.reach;
        if !self.views.get(self.last).is_some_and(seen) {
            match self.views.iter().position(seen) {
                Some(index) => self.last = index,
                None => return self.nowhere(at, size, code, place),
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
        let (mut found, mut spared, mut unwritten) = (None, false, false);
        // SAFETY: the shadow belongs to a buffer that outlives the dispatch, and nothing else touches it meanwhile.
        for cell in unsafe { (*view.shadow).at(view.origin + offset, size) } {
            let before = *cell;
            let (clash, other) = if code & WRITES != 0 {
                now.write(cell, site, atomic)
            } else {
                unwritten |= cell.wrote < view.floor;
                (now.read(cell, site, atomic), Other::Wrote)
            };
            if clash != Conflict::None {
                spared |= clash == Conflict::Spared;
                if clash != Conflict::Spared {
                    found = Some((clash, other, before));
                }
            }
        }
        self.spared |= spared;
        if unwritten {
            self.unwritten(offset, size, site);
        }
        if let Some(found) = found {
            self.race(offset, size, code, site, found);
        }
        true
    }

    /// The binding that the last access went through.
    pub(crate) fn last_view(&self) -> &View {
        &self.views[self.last]
    }

    /// Judges a copy of many bytes.
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

    /// Judges an atomic operation.
    pub(crate) fn atomic(&mut self, at: usize, size: usize, kind: u32, place: *const c_void) -> bool {
        let code = size as u32 | ALIGNED | IS_ATOMIC;
        (kind == 1 || self.access(at, code, place)) && (kind == 0 || self.access(at, code | WRITES, place))
    }

    /// Notes a fault; `describe` is asked only the first time that this place in the code has it.
    #[cold]
    pub(crate) fn fault(&mut self, kind: Kind, site: u32, describe: impl FnOnce(&Checker) -> String) {
        if !self.faults.seen(kind, self.kernel, site) {
            let message = describe(self);
            self.add(kind, site, message);
        }
    }
}

/// A place in the code as a number.
#[inline(always)]
pub(crate) fn site(program: *const Program, place: *const c_void) -> u32 {
    // SAFETY: the program outlives every dispatch of its kernels.
    unsafe { (*program).site(place) }
}
