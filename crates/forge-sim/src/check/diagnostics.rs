//! Messages of the faults that the checker finds. None of this code is on the fast path.

use crate::check::checker::{Checker, WRITES, site};
use crate::check::fault::{Fault, FaultKind};
use crate::compile::program::Program;
use crate::memory::shadow::{Cell, Conflict, EarlierAccess};
use crate::memory::threadgroup_memory::LIMIT;
use std::ffi::c_void;

impl Checker {
    fn program(&self) -> &Program {
        // SAFETY: the program outlives every dispatch of its kernels.
        unsafe { &*self.program }
    }

    /// Adds a fault of the running kernel at a code location.
    pub(crate) fn add(&mut self, kind: FaultKind, site: u32, message: String) {
        let line = self.program().line(site);
        let kernel = self.program().kernels()[self.kernel].signature.name.clone();
        self.faults.add(Fault { kind, kernel, line, message, count: 1 }, Some((self.kernel, site)));
    }

    fn line(&self, site: u32) -> String {
        match self.program().line(site) {
            0 => "an unknown line".to_owned(),
            line => format!("line {line}"),
        }
    }

    /// The running thread, for messages.
    pub(crate) fn thread_name(&self) -> String {
        format!("thread {} of threadgroup {}", self.device.thread, self.groups.len().saturating_sub(1))
    }

    /// The threadgroup of this dispatch that was running at this time.
    fn group_at(&self, clock: u32) -> usize {
        self.groups.partition_point(|start| *start <= clock).saturating_sub(1)
    }

    fn dispatch_at(&self, clock: u32) -> String {
        let index = self.dispatches.partition_point(|(start, _)| *start <= clock);
        self.dispatches.get(index.saturating_sub(1)).map_or_else(String::new, |(_, name)| name.clone())
    }

    #[cold]
    pub(crate) fn misaligned(&mut self, at: usize, code: u32, place: *const c_void) -> bool {
        let site = site(self.program, place);
        self.fault(FaultKind::Misaligned, site, |watch| {
            let size = (code & 255) as usize;
            let offset = at.wrapping_sub(watch.arena.base);
            let owner = watch.views.iter().find(|view| at.wrapping_sub(view.low) < view.reach);
            let what = match (owner, watch.arena.nearest(offset)) {
                (Some(view), _) => {
                    format!("byte {} of `{}`", at.wrapping_sub(view.start) as isize, view.name)
                }
                (None, Some(slot)) if offset < watch.arena.span => {
                    format!("byte {} of `{}`", offset.wrapping_sub(slot.offset) as isize, slot.name)
                }
                _ => "its own memory".to_owned(),
            };
            format!(
                "{} {} {size} bytes at {what}, which is not a multiple of {size}",
                watch.thread_name(),
                verb(code)
            )
        });
        false
    }

    #[cold]
    pub(crate) fn outside_arena(
        &mut self,
        offset: usize,
        size: usize,
        code: u32,
        place: *const c_void,
    ) -> bool {
        let site = site(self.program, place);
        self.fault(FaultKind::OutOfBounds, site, |watch| match watch.arena.nearest(offset) {
            Some(slot) => out_of_bounds(
                watch,
                code,
                size,
                offset as isize - slot.offset as isize,
                &slot.name,
                slot.bytes,
            ),
            None => {
                format!("{} {} threadgroup memory that it has not declared", watch.thread_name(), verb(code))
            }
        });
        true
    }

    #[cold]
    pub(crate) fn outside(&mut self, at: usize, size: usize, code: u32, place: *const c_void) -> bool {
        let site = site(self.program, place);
        let Some(view) = self.views.iter().position(|view| at.wrapping_sub(view.low) < view.reach) else {
            return false;
        };
        let (low, reach) = (self.views[view].low, self.views[view].reach);
        self.fault(FaultKind::OutOfBounds, site, |watch| {
            let view = &watch.views[view];
            out_of_bounds(watch, code, size, at.wrapping_sub(view.start) as isize, &view.name, view.bytes)
        });
        at - low + size <= reach
    }

    /// Checks an address outside all bindings: only the thread's own stack is valid.
    #[cold]
    pub(crate) fn outside_bindings(
        &mut self,
        at: usize,
        size: usize,
        code: u32,
        place: *const c_void,
    ) -> bool {
        if at >= self.stack.0 && at + size <= self.stack.1 {
            return true;
        }
        let site = site(self.program, place);
        self.fault(FaultKind::OutOfBounds, site, |watch| {
            let near = watch.views.iter().min_by_key(|view| view.start.abs_diff(at));
            let near = near.map_or_else(String::new, |view| {
                let distance = (at as i128) - (view.start as i128);
                format!(
                    "; `{}`, the nearest, has {} bytes and is {distance} bytes away",
                    view.name, view.bytes
                )
            });
            format!("{} {} {size} bytes far from anything bound{near}", watch.thread_name(), verb(code))
        });
        false
    }

    #[cold]
    pub(crate) fn read_only(&mut self, offset: usize, size: usize, place: *const c_void) {
        let site = site(self.program, place);
        self.fault(FaultKind::ReadOnly, site, |watch| {
            let name = &watch.last_view().name;
            format!(
                "{} writes {size} bytes at byte {offset} of `{name}`, which is bound read-only",
                watch.thread_name()
            )
        });
    }

    #[cold]
    pub(crate) fn uninitialized_array(&mut self, offset: usize, size: usize, site: u32) {
        self.fault(FaultKind::NeverWritten, site, |watch| {
            let thread = watch.thread_name();
            watch.arena.nearest(offset).map_or_else(String::new, |slot| {
                let at = offset - slot.offset;
                format!(
                    "{thread} reads {size} bytes at byte {at} of `{}`, which no thread of it has written",
                    slot.name
                )
            })
        });
    }

    #[cold]
    pub(crate) fn unwritten(&mut self, offset: usize, size: usize, site: u32) {
        self.fault(FaultKind::NeverWritten, site, |watch| {
            let name = &watch.last_view().name;
            format!(
                "{} reads {size} bytes at byte {offset} of `{name}`, which nothing has written",
                watch.thread_name()
            )
        });
    }

    #[cold]
    pub(crate) fn race_in_array(
        &mut self,
        offset: usize,
        size: usize,
        code: u32,
        site: u32,
        found: (Conflict, EarlierAccess, Cell),
    ) {
        self.fault(FaultKind::Race, site, |watch| {
            let (at, name) = watch
                .arena
                .nearest(offset)
                .map_or((0, ""), |slot| (offset - slot.offset, slot.name.as_str()));
            watch.describe_race(at, size, code, name, found)
        });
    }

    #[cold]
    pub(crate) fn race(
        &mut self,
        offset: usize,
        size: usize,
        code: u32,
        site: u32,
        found: (Conflict, EarlierAccess, Cell),
    ) {
        let kind = match found.0 {
            Conflict::Group => FaultKind::GroupRace,
            Conflict::Dispatch => FaultKind::Hazard,
            _ => FaultKind::Race,
        };
        self.fault(kind, site, |watch| {
            watch.describe_race(offset, size, code, &watch.last_view().name, found)
        });
    }

    fn describe_race(
        &self,
        at: usize,
        size: usize,
        code: u32,
        name: &str,
        found: (Conflict, EarlierAccess, Cell),
    ) -> String {
        let (describe_race, other, cell) = found;
        let (clock, thread, place, done) = match other {
            EarlierAccess::Wrote => (cell.wrote, cell.writer(), cell.wrote_at, "wrote"),
            EarlierAccess::Read => (cell.read, cell.reader(), cell.read_at, "read"),
            EarlierAccess::ReadBefore => (cell.read_before, 0, 0, "read"),
        };
        let own = format!("{} {} {size} bytes at byte {at} of `{name}`", self.thread_name(), verb(code));
        let place = if place == 0 { String::new() } else { format!(" at {}", self.line(place)) };
        match describe_race {
            Conflict::Group => {
                format!(
                    "{own}, which threadgroup {} of the same dispatch {done}{place}",
                    self.group_at(clock)
                )
            }
            Conflict::Dispatch => format!(
                "{own}, which a dispatch of `{}` {done}{place}, and no barrier stands between the dispatches",
                self.dispatch_at(clock)
            ),
            _ => format!("{own}, which thread {thread} {done}{place}, and no barrier orders the two"),
        }
    }
}

fn verb(code: u32) -> &'static str {
    if code & WRITES != 0 { "writes" } else { "reads" }
}

fn out_of_bounds(watch: &Checker, code: u32, size: usize, offset: isize, name: &str, bytes: usize) -> String {
    format!(
        "{} {} {size} bytes at byte {offset} of `{name}`, which has {bytes} bytes",
        watch.thread_name(),
        verb(code)
    )
}

impl Checker {
    #[cold]
    pub(crate) fn over_limit(&mut self, used: usize) {
        let signature = &self.program().kernels()[self.kernel].signature;
        let (kernel, line) = (signature.name.clone(), signature.line);
        let message = format!("it declares {used} bytes of threadgroup memory; there are {LIMIT}");
        self.faults.add(Fault { kind: FaultKind::ThreadgroupMemory, kernel, line, message, count: 1 }, None);
    }
}
