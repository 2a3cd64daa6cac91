//! What the referee has to say: faults, each once for a kind, a kernel and a line, with how often it happened.

use serde::Serialize;
use std::collections::HashMap;
use std::fmt;

/// What sort of fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// An access beyond what a buffer or an array has.
    OutOfBounds,
    /// A write through a binding that is only to be read.
    ReadOnly,
    /// A read of bytes that nothing has written.
    NeverWritten,
    /// An access that is not aligned as its type needs.
    Misaligned,
    /// Two threads of a threadgroup touch the same bytes, one writes, and no barrier orders them.
    Race,
    /// Two threadgroups of a dispatch touch the same bytes, and one writes.
    GroupRace,
    /// Two dispatches touch the same bytes, one writes, and no barrier stands between them.
    Hazard,
    /// A barrier or an operation of a simdgroup that not all of its threads reach.
    Divergence,
    /// More threadgroup memory than there is.
    ThreadgroupMemory,
    /// A dispatch that does not fit its kernel.
    Launch,
    /// A division by zero, or a kernel that does not end.
    Arithmetic,
}

impl Kind {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Kind::OutOfBounds => "out_of_bounds",
            Kind::ReadOnly => "read_only",
            Kind::NeverWritten => "never_written",
            Kind::Misaligned => "misaligned",
            Kind::Race => "race",
            Kind::GroupRace => "group_race",
            Kind::Hazard => "hazard",
            Kind::Divergence => "divergence",
            Kind::ThreadgroupMemory => "threadgroup_memory",
            Kind::Launch => "launch",
            Kind::Arithmetic => "arithmetic",
        }
    }
}

/// A fault at a line of `kernels.metal`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// What sort it is.
    pub kind: Kind,
    /// The kernel that was running.
    pub kernel: String,
    /// The line in `kernels.metal`; 0 where the fault is the host's.
    pub line: usize,
    /// What happened the first time, in words.
    pub message: String,
    /// How often it happened.
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

/// Faults as they come in.
#[derive(Default)]
pub(crate) struct Faults {
    found: Vec<Fault>,
    by_line: HashMap<(Kind, String, usize), usize>,
    by_site: HashMap<(Kind, usize, u32), usize>,
}

impl Faults {
    /// Counts a fault that has been described already at this kernel and place in the code.
    pub(crate) fn seen(&mut self, kind: Kind, kernel: usize, site: u32) -> bool {
        let Some(index) = self.by_site.get(&(kind, kernel, site)) else { return false };
        self.found[*index].count += 1;
        true
    }

    /// Adds a fault, and remembers the place in the code that it came from.
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

    /// All that were found, in the order of their first time.
    pub(crate) fn all(&self) -> &[Fault] {
        &self.found
    }

    /// Takes all that were found.
    pub(crate) fn take(&mut self) -> Vec<Fault> {
        self.by_line.clear();
        self.by_site.clear();
        std::mem::take(&mut self.found)
    }
}
