//! What a kernel's dispatches cost, as sums of what a pass has more or less of: what a program knows of its own kernels, that
//! has no plan any more.
//!
//! Costs are such sums, but for little things: the list of tiles of experts grows by steps, and the few rows that a convolution
//! keeps are no more than its taps. Of these what the last row of a typical pass adds is taken for each.

use crate::plan::regime::{FEW, Regime};
use crate::plan::{Plan, Section, Step};
use crate::predict::cost::{Amounts, Cost, cost_of, experts, window};

/// So much once, for each row, for each position that is reached, for each that a row attends to, and for each expert chosen.
pub type LinearCost = [i64; 5];

/// What a kernel's dispatches cost. One threadgroup is taken to have a row's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelCost {
    /// Bytes read.
    pub read: LinearCost,
    /// Bytes written.
    pub written: LinearCost,
    /// Additions and multiplications.
    pub operations: LinearCost,
    /// Positions that a row sees; `None`: all so far.
    pub window: Option<usize>,
    /// Experts that there are to choose from, and those that a row chooses.
    pub experts: [usize; 2],
}

impl Plan {
    /// What the dispatches of a kernel cost, by its number.
    pub fn work(&self, kernel: usize) -> KernelCost {
        let spec = &self.kernels[kernel].spec;
        let experts = experts(spec).map_or([0; 2], |experts| [experts.free, experts.chosen]);
        let mut work =
            KernelCost { read: [0; 5], written: [0; 5], operations: [0; 5], window: window(spec), experts };
        let Some((section, step, regime)) = self.user(kernel) else { return work };
        let typical = match regime {
            Regime::One => 1,
            Regime::Few => FEW,
            Regime::Many => self.chunk,
        };
        let typical = Amounts {
            rows: typical as u64,
            reached: 1 << 20,
            attended: 1 << 20,
            chosen: 1 << 10,
            before: 1 << 20,
            // Most texts have one.
            shares_before: 0,
            splits: 1,
        };
        let cost = |amounts| cost_of(self, (section, step), &self.kernels[kernel], amounts);
        let costs = [
            typical,
            Amounts { rows: typical.rows - 1, ..typical },
            Amounts { reached: typical.reached - 1, ..typical },
            Amounts { attended: typical.attended - 1, ..typical },
            Amounts { chosen: typical.chosen - 1, ..typical },
        ]
        .map(cost);
        work.read = sum(costs.each_ref().map(Cost::read), typical);
        work.written = sum(costs.each_ref().map(Cost::written), typical);
        work.operations = sum(costs.each_ref().map(|cost| cost.operations), typical);
        work
    }

    /// A step that runs the kernel, and in which regime.
    fn user(&self, kernel: usize) -> Option<(&Section, &Step, Regime)> {
        let runs = |function: usize| {
            let variants = &self.functions[function].variants;
            variants.iter().find(|variant| variant.kernel == kernel)?.regimes.last().copied()
        };
        self.sections.iter().find_map(|section| {
            let mut steps = section.decode.iter().chain(&section.batch);
            steps.find_map(|step| runs(step.function).map(|regime| (section, step, regime)))
        })
    }
}

/// What is counted once and for each, of the count where there are so many, and of those where there is one less of each.
fn sum(counts: [u64; 5], Amounts { rows, reached, attended, chosen, .. }: Amounts) -> LinearCost {
    let [all, less @ ..] = counts.map(|count| count as i64);
    let [row, position, seen, expert] = less.map(|less| all - less);
    let counted =
        row * rows as i64 + position * reached as i64 + seen * attended as i64 + expert * chosen as i64;
    [all - counted, row, position, seen, expert]
}
