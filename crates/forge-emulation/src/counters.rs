//! What a thread has done to the emulation: counted, and complained of.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// What has been committed so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Command buffers.
    pub command_buffers: usize,
    /// Dispatches in them.
    pub dispatches: usize,
    /// Barriers in them.
    pub barriers: usize,
}

thread_local! {
    static COMPLAINTS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static COUNTS: Cell<Counts> = const { Cell::new(Counts { command_buffers: 0, dispatches: 0, barriers: 0 }) };
    static LIVING: RefCell<BTreeMap<&'static str, usize>> = const { RefCell::new(BTreeMap::new()) };
    static LONGEST: Cell<usize> = const { Cell::new(8 << 30) };
    static EXECUTES: Cell<bool> = const { Cell::new(true) };
}

/// Takes what was wrong so far.
pub fn complaints() -> Vec<String> {
    COMPLAINTS.take()
}

/// What was committed so far.
pub fn counts() -> Counts {
    COUNTS.get()
}

/// How many objects there are of each class that has any.
pub fn living() -> BTreeMap<&'static str, usize> {
    LIVING.with_borrow(|living| {
        living.iter().filter(|(_, count)| **count > 0).map(|(class, count)| (*class, *count)).collect()
    })
}

/// Whether committed kernels are executed, as they are at first. Otherwise everything but that is done: for whoever counts.
pub fn execute(executes: bool) {
    EXECUTES.set(executes);
}

/// Has buffers be of at most so many bytes; at first that is more than any model of a test needs.
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
