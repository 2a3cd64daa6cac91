//! Per-thread statistics and API violations of the emulator.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Numbers of committed commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Command buffers.
    pub command_buffers: usize,
    /// Dispatches in these command buffers.
    pub dispatches: usize,
    /// Barriers in these command buffers.
    pub barriers: usize,
}

thread_local! {
    static VIOLATIONS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static COUNTS: Cell<Counts> = const { Cell::new(Counts { command_buffers: 0, dispatches: 0, barriers: 0 }) };
    static LIVE_OBJECTS: RefCell<BTreeMap<&'static str, usize>> = const { RefCell::new(BTreeMap::new()) };
    static MAX_BUFFER_LENGTH: Cell<usize> = const { Cell::new(8 << 30) };
    static EXECUTES_KERNELS: Cell<bool> = const { Cell::new(true) };
}

/// Removes and returns all violations so far.
pub fn take_violations() -> Vec<String> {
    VIOLATIONS.take()
}

/// The numbers of committed commands so far.
pub fn counts() -> Counts {
    COUNTS.get()
}

/// The number of live objects of each class.
pub fn live_objects() -> BTreeMap<&'static str, usize> {
    LIVE_OBJECTS.with_borrow(|live_objects| {
        live_objects.iter().filter(|(_, count)| **count > 0).map(|(class, count)| (*class, *count)).collect()
    })
}

/// Enables or disables execution of kernels. Without it, commands are only validated and counted. Enabled by default.
pub fn execute(executes_kernels: bool) {
    EXECUTES_KERNELS.set(executes_kernels);
}

/// Sets the maximum buffer length in bytes. The default exceeds what any test model needs.
pub fn set_max_buffer_length(bytes: usize) {
    MAX_BUFFER_LENGTH.set(bytes);
}

pub(crate) fn max_buffer_length() -> usize {
    MAX_BUFFER_LENGTH.get()
}

pub(crate) fn executes_kernels() -> bool {
    EXECUTES_KERNELS.get()
}

pub(crate) fn report_violation(what: String) {
    VIOLATIONS.with_borrow_mut(|all| all.push(what));
}

pub(crate) fn committed(dispatches: usize, barriers: usize) {
    let before = COUNTS.get();
    COUNTS.set(Counts {
        command_buffers: before.command_buffers + 1,
        dispatches: before.dispatches + dispatches,
        barriers: before.barriers + barriers,
    });
}

pub(crate) fn object_created(class: &'static str) {
    LIVE_OBJECTS.with_borrow_mut(|live_objects| *live_objects.entry(class).or_default() += 1);
}

pub(crate) fn object_freed(class: &'static str) {
    LIVE_OBJECTS.with_borrow_mut(|live_objects| *live_objects.entry(class).or_default() -= 1);
}
