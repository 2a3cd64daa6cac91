//! Per-thread statistics and API violations of the emulator.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

/// Numbers of committed commands, and of other requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Command buffers.
    pub command_buffers: usize,
    /// Dispatches in these command buffers.
    pub dispatches: usize,
    /// Barriers in these command buffers.
    pub barriers: usize,
    /// Waits for a command buffer that had not completed.
    pub waits: usize,
    /// Pipelines that were compiled in the background.
    pub background_pipelines: usize,
    /// Requests to make residency sets resident.
    pub residency_requests: usize,
}

thread_local! {
    static VIOLATIONS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static COUNTS: Cell<Counts> = const { Cell::new(Counts {
        command_buffers: 0, dispatches: 0, barriers: 0, waits: 0, background_pipelines: 0, residency_requests: 0,
    }) };
    static LABELS: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
    static LIVE_OBJECTS: RefCell<BTreeMap<&'static str, usize>> = const { RefCell::new(BTreeMap::new()) };
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

/// The labels of all objects so far, each behind its class: `MTLBuffer weights`.
pub fn labels() -> Vec<String> {
    LABELS.with_borrow(|labels| labels.iter().cloned().collect())
}

pub(crate) fn labelled(class: &str, label: &str) {
    LABELS.with_borrow_mut(|labels| _ = labels.insert(format!("{class} {label}")));
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

pub(crate) fn executes_kernels() -> bool {
    EXECUTES_KERNELS.get()
}

pub(crate) fn report_violation(what: String) {
    VIOLATIONS.with_borrow_mut(|all| all.push(what));
}

pub(crate) fn committed(dispatches: usize, barriers: usize) {
    count(|counts| {
        counts.command_buffers += 1;
        counts.dispatches += dispatches;
        counts.barriers += barriers;
    });
}

pub(crate) fn count(add: impl FnOnce(&mut Counts)) {
    let mut counts = COUNTS.get();
    add(&mut counts);
    COUNTS.set(counts);
}

pub(crate) fn object_created(class: &'static str) {
    LIVE_OBJECTS.with_borrow_mut(|live_objects| *live_objects.entry(class).or_default() += 1);
}

pub(crate) fn object_freed(class: &'static str) {
    LIVE_OBJECTS.with_borrow_mut(|live_objects| *live_objects.entry(class).or_default() -= 1);
}
