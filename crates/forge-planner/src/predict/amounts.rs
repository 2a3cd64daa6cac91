//! The quantities that the cost of a kernel depends on.

use crate::plan::workload::Workload;
use forge_kernels::Spec;
use std::ops::Range;

/// The quantities of a workload that a kernel's cost depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Amounts {
    /// Rows.
    pub(crate) rows: u64,
    /// Distinct positions that the rows attend to.
    pub(crate) distinct_positions: u64,
    /// Positions attended to, summed over the rows.
    pub(crate) attended: u64,
    /// Distinct routed experts of all rows, at most.
    pub(crate) chosen: u64,
    /// Positions before the first row.
    pub(crate) before: u64,
    /// Positions before the current KV tile, in expanded MLA.
    pub(crate) positions_before_tile: u64,
    /// KV splits per row.
    pub(crate) splits: u64,
}

impl Amounts {
    /// The quantities of a kernel with this many rows, under a workload.
    pub(super) fn of(spec: &Spec, rows: u64, load: Workload, kv_range: Range<u64>) -> Amounts {
        let window = window(spec);
        let chosen = experts(spec).map_or(0, |Experts { free, chosen, .. }| free.min(rows as usize * chosen));
        Amounts {
            rows,
            distinct_positions: load.distinct_positions(window, &kv_range),
            attended: load.attended(window, &kv_range),
            chosen: chosen as u64,
            before: load.length.saturating_sub(load.rows_per_sequence()),
            positions_before_tile: kv_range.start,
            splits: load.splits,
        }
    }
}

/// Sliding window of an attention kernel; `None`: all positions so far.
pub(crate) fn window(spec: &Spec) -> Option<usize> {
    match spec {
        Spec::AttendSplit(attend) | Spec::AttendTiled(attend) => attend.op.window,
        _ => None,
    }
}

/// Experts of a kernel: number of routed experts (`free`), routed experts per row (`chosen`), and shared
/// experts.
pub(crate) struct Experts {
    pub(crate) free: usize,
    pub(crate) chosen: usize,
    pub(super) shared: usize,
}

/// The experts of a kernel that reads any.
pub(crate) fn experts(spec: &Spec) -> Option<Experts> {
    let (experts, chosen, shared) = match spec {
        Spec::ExpertsInner(inner) => (inner.op.experts, inner.op.chosen, inner.op.shared),
        Spec::ExpertsSum(sum) => (sum.op.experts, sum.op.chosen, sum.op.shared),
        Spec::ExpertsTiles(tiles) => (tiles.op.experts, tiles.op.chosen, tiles.op.shared),
        _ => return None,
    };
    Some(Experts { free: experts - shared, chosen: chosen - shared, shared })
}
