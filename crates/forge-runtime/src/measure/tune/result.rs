//! What was measured of candidate layouts.

use crate::measure::tune::candidates::{Layout, TuningKey};
use crate::measure::tune::compare::Difference;

/// What came of a choice.
#[derive(Clone, Debug)]
pub struct TuningResult {
    /// The subject.
    pub subject: TuningKey,
    /// The kernels that are of it.
    pub kernels: &'static [&'static str],
    /// How the plan's are laid out.
    pub own: Layout,
    /// The fastest layout, which may be the plan's own.
    pub best: Layout,
    /// What all dispatches of a pass take with either, in each pass that was measured.
    pub times: Vec<Times>,
    /// Layouts that were measured, the plan's included.
    pub tried: usize,
    /// Layouts that compute something else.
    pub wrong: Vec<Mismatch>,
}

/// What all dispatches of a subject in a pass take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// Positions that the pass's last row sees.
    pub positions: u32,
    /// Seconds, as the plan has them.
    pub own: f64,
    /// Seconds with the fastest layout.
    pub best: f64,
}

impl TuningResult {
    /// Seconds in all passes, as the plan has it and with the fastest layout.
    pub fn seconds(&self) -> [f64; 2] {
        [self.times.iter().map(|times| times.own).sum(), self.times.iter().map(|times| times.best).sum()]
    }

    /// Whether another layout than the plan's was chosen.
    pub fn changes(&self) -> bool {
        self.best != self.own
    }
}

/// A layout that computes something else.
#[derive(Clone, Debug)]
pub struct Mismatch {
    /// The kernel.
    pub kernel: &'static str,
    /// By how much what.
    pub difference: Difference,
}
