//! Results of tuning.

use crate::measure::tune::compare::OutputDifference;
use forge_device::tuning_space::{KernelLayout, TuningKey};

/// The result of one tuning problem.
#[derive(Clone, Debug)]
pub struct TuningResult {
    /// The key of the problem.
    pub subject: TuningKey,
    /// Its kernels.
    pub kernels: &'static [&'static str],
    /// The default layout.
    pub default: KernelLayout,
    /// The fastest layout; may be the default.
    pub best: KernelLayout,
    /// Times of all its dispatches in a pass, for each measured pass.
    pub times: Vec<LayoutTimes>,
    /// Number of layouts measured, the default included.
    pub tried: usize,
    /// Candidates whose output differs.
    pub wrong: Vec<Mismatch>,
}

/// Times of all dispatches of a problem in one pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayoutTimes {
    /// Positions that the last row attends to.
    pub positions: u32,
    /// Seconds with the default layout.
    pub default: f64,
    /// Seconds with the fastest layout.
    pub best: f64,
}

impl TuningResult {
    /// Seconds over all passes, with the default and with the fastest layout.
    pub fn seconds(&self) -> [f64; 2] {
        [self.times.iter().map(|times| times.default).sum(), self.times.iter().map(|times| times.best).sum()]
    }

    /// Whether a layout other than the default was chosen.
    pub fn has_faster_layout(&self) -> bool {
        self.best != self.default
    }
}

/// A candidate whose output differs.
#[derive(Clone, Debug)]
pub struct Mismatch {
    /// The candidate kernel.
    pub kernel: &'static str,
    /// The difference.
    pub difference: OutputDifference,
}
