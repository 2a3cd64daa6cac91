//! Per-thread statistics and complaints of the emulator.

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
    static COMPLAINTS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static COUNTS: Cell<Counts> = const { Cell::new(Counts { command_buffers: 0, dispatches: 0, barriers: 0 }) };
    static LIVING: RefCell<BTreeMap<&'static str, usize>> = const { RefCell::new(BTreeMap::new()) };
    static LONGEST: Cell<usize> = const { Cell::new(8 << 30) };
    static EXECUTES: Cell<bool> = const { Cell::new(true) };
}

/// Removes and returns all complaints so far.
pub fn complaints() -> Vec<String> {
    COMPLAINTS.take()
}

/// The numbers of committed commands so far.
pub fn counts() -> Counts {
    COUNTS.get()
}

/// The number of live objects of each class.
pub fn living() -> BTreeMap<&'static str, usize> {
    LIVING.with_borrow(|living| {
        living.iter().filter(|(_, count)| **count > 0).map(|(class, count)| (*class, *count)).collect()
    })
}

/// Enables or disables execution of kernels. Without it, commands are only validated and counted. Enabled by default.
pub fn execute(executes: bool) {
    EXECUTES.set(executes);
}

/// Sets the maximum buffer length in bytes. The default exceeds what any test model needs.
pub fn limit_buffers(bytes: usize) {
    LONGEST.set(bytes);
}

pub(crate) fn longest() -> usize {
    LONGEST.get()
}

pub(crate) fn executes() -> bool {
    EXECUTES.get()
}

pub(crate) fn complain(what: String) {
    COMPLAINTS.with_borrow_mut(|all| all.push(what));
}

pub(crate) fn committed(dispatches: usize, barriers: usize) {
    let before = COUNTS.get();
    COUNTS.set(Counts {
        command_buffers: before.command_buffers + 1,
        dispatches: before.dispatches + dispatches,
        barriers: before.barriers + barriers,
    });
}

pub(crate) fn born(class: &'static str) {
    LIVING.with_borrow_mut(|living| *living.entry(class).or_default() += 1);
}

pub(crate) fn died(class: &'static str) {
    LIVING.with_borrow_mut(|living| *living.entry(class).or_default() -= 1);
}
