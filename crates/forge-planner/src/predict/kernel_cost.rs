//! Cost of a kernel's dispatches as a linear function of the workload. Generated programs use it, because
//! they have no plan at run time.
//!
//! The cost is linear except for small terms: the tile list of grouped experts grows in steps, and a
//! convolution keeps at most as many rows as it has taps. These are linearized at the last row of a typical
//! pass.

use crate::plan::regime::Regime;
use crate::plan::{Plan, Section, Step};
use crate::predict::amounts::{Amounts, experts, window};
use crate::predict::cost::{Cost, cost_of};

/// Coefficients of a linear cost: constant, per row, per distinct KV position, per attended position, per
/// chosen expert.
pub type LinearCost = [i64; 5];

/// Cost of a kernel's dispatches, with one KV split per row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelCost {
    /// Bytes read.
    pub read: LinearCost,
    /// Bytes written.
    pub written: LinearCost,
    /// Additions and multiplications.
    pub operations: LinearCost,
    /// Sliding window in positions; `None`: all positions so far.
    pub window: Option<usize>,
    /// Number of routed experts, and routed experts per row.
    pub experts: [usize; 2],
}

impl Plan {
    /// Cost of the dispatches of a kernel, by its index.
    pub fn work(&self, kernel: usize) -> KernelCost {
        let spec = &self.kernels[kernel].spec;
        let experts = experts(spec).map_or([0; 2], |experts| [experts.free, experts.chosen]);
        let mut work =
            KernelCost { read: [0; 5], written: [0; 5], operations: [0; 5], window: window(spec), experts };
        let Some((section, step, regime)) = self.user(kernel) else { return work };
        let typical = regime.max_rows().unwrap_or(self.chunk);
        let typical = Amounts {
            rows: typical as u64,
            distinct_positions: 1 << 20,
            attended: 1 << 20,
            chosen: 1 << 10,
            before: 1 << 20,
            // Most contexts fit in one tile.
            positions_before_tile: 0,
            splits: 1,
        };
        let cost = |amounts| cost_of(self, (section, step), &self.kernels[kernel], amounts);
        let costs = [
            typical,
            Amounts { rows: typical.rows - 1, ..typical },
            Amounts { distinct_positions: typical.distinct_positions - 1, ..typical },
            Amounts { attended: typical.attended - 1, ..typical },
            Amounts { chosen: typical.chosen - 1, ..typical },
        ]
        .map(cost);
        work.read = sum(costs.each_ref().map(Cost::read), typical);
        work.written = sum(costs.each_ref().map(Cost::written), typical);
        work.operations = sum(costs.each_ref().map(|cost| cost.operations), typical);
        work
    }

    /// A step that runs the kernel, and its regime.
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

/// Coefficients from the counts at a workload and at workloads with one unit less of each quantity.
fn sum(counts: [u64; 5], Amounts { rows, distinct_positions, attended, chosen, .. }: Amounts) -> LinearCost {
    let [all, less @ ..] = counts.map(|count| count as i64);
    let [row, position, seen, expert] = less.map(|less| all - less);
    let counted = row * rows as i64
        + position * distinct_positions as i64
        + seen * attended as i64
        + expert * chosen as i64;
    [all - counted, row, position, seen, expert]
}
