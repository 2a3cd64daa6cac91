//! Faults found by the kernel checker, counted per kind, kernel and line.

use serde::Serialize;
use std::collections::HashMap;
use std::fmt;

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// An access outside a buffer or an array.
    OutOfBounds,
    /// A write through a read-only binding.
    ReadOnly,
    /// A read of uninitialized memory.
    NeverWritten,
    /// A misaligned access.
    Misaligned,
    /// A data race between two threads of a threadgroup.
    Race,
    /// A data race between two threadgroups of a dispatch.
    GroupRace,
    /// A data race between two dispatches without a barrier between them.
    Hazard,
    /// A barrier or a simdgroup operation that not all threads reach.
    Divergence,
    /// More threadgroup memory than the limit.
    ThreadgroupMemory,
    /// A dispatch that does not match its kernel.
    Launch,
    /// A division by zero, or a kernel that does not terminate.
    Arithmetic,
}

impl FaultKind {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::OutOfBounds => "out_of_bounds",
            FaultKind::ReadOnly => "read_only",
            FaultKind::NeverWritten => "never_written",
            FaultKind::Misaligned => "misaligned",
            FaultKind::Race => "race",
            FaultKind::GroupRace => "group_race",
            FaultKind::Hazard => "hazard",
            FaultKind::Divergence => "divergence",
            FaultKind::ThreadgroupMemory => "threadgroup_memory",
            FaultKind::Launch => "launch",
            FaultKind::Arithmetic => "arithmetic",
        }
    }
}

/// A fault at a line of `kernels.metal`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// FaultKind of the fault.
    pub kind: FaultKind,
    /// The running kernel.
    pub kernel: String,
    /// The line in `kernels.metal`; 0 for a fault of the host.
    pub line: usize,
    /// Description of the first occurrence.
    pub message: String,
    /// Number of occurrences.
    pub count: u64,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} line {}: {}", self.kind.name(), self.kernel, self.line, self.message)?;
        if self.count > 1 {
            write!(f, " ({} times)", self.count)?;
        }
        Ok(())
    }
}

/// A collection of faults.
#[derive(Default)]
pub(crate) struct Faults {
    found: Vec<Fault>,
    by_line: HashMap<(FaultKind, String, usize), usize>,
    by_site: HashMap<(FaultKind, usize, u32), usize>,
}

impl Faults {
    /// Counts a fault that is already recorded for this kernel and code location; otherwise returns false.
    pub(crate) fn seen(&mut self, kind: FaultKind, kernel: usize, site: u32) -> bool {
        let Some(index) = self.by_site.get(&(kind, kernel, site)) else { return false };
        self.found[*index].count += 1;
        true
    }

    /// Adds a fault with its code location.
    pub(crate) fn add(&mut self, fault: Fault, site: Option<(usize, u32)>) {
        let key = (fault.kind, fault.kernel.clone(), fault.line);
        let kind = fault.kind;
        let index = match self.by_line.get(&key) {
            Some(index) => {
                self.found[*index].count += 1;
                *index
            }
            None => {
                self.found.push(fault);
                self.by_line.insert(key, self.found.len() - 1);
                self.found.len() - 1
            }
        };
        if let Some((kernel, site)) = site {
            self.by_site.insert((kind, kernel, site), index);
        }
    }

    /// All faults, in order of first occurrence.
    pub(crate) fn all(&self) -> &[Fault] {
        &self.found
    }

    /// Removes and returns all faults.
    pub(crate) fn take(&mut self) -> Vec<Fault> {
        self.by_line.clear();
        self.by_site.clear();
        std::mem::take(&mut self.found)
    }
}
