//! What kernels of experts can be made for.

use super::{Limits, fits_word};
use crate::error::KernelError;
use crate::spec::{ExpertsInner, ExpertsSum, Route, Summed};
use forge_ir::Gating;

/// The most experts: a lane has 32 keys in registers.
const MOST_EXPERTS: usize = 1024;

/// The most experts of a row: a lane weighs one.
const MOST_CHOSEN: usize = 32;

impl Limits<'_> {
    pub(super) fn route(&self, route: &Route) -> Result<(), KernelError> {
        self.choice(route.experts, route.chosen)?;
        self.finite("the factor", route.factor)?;
        let Some(groups) = route.groups else { return Ok(()) };
        self.holds(
            "the number of groups of experts",
            groups.count,
            (1..=32).contains(&groups.count) && route.experts.is_multiple_of(groups.count),
            || format!("a divisor of the experts, which are {}, and at most 32, one a lane", route.experts),
        )?;
        let size = route.experts / groups.count;
        let fits = (1..=groups.count).contains(&groups.kept) && groups.kept * size >= route.chosen;
        self.holds("the number of groups that are kept", groups.kept, fits, || {
            format!("at most {}, with {} experts or more", groups.count, route.chosen)
        })?;
        self.holds(
            "the number of experts that make a group's worth",
            groups.best,
            (1..=2).contains(&groups.best),
            || "1 or 2".to_owned(),
        )
    }

    fn choice(&self, experts: usize, chosen: usize) -> Result<(), KernelError> {
        self.positive("the number of experts", experts)?;
        self.positive("the number of experts of a row", chosen)?;
        self.holds("the number of experts", experts, experts <= MOST_EXPERTS, || {
            format!("at most {MOST_EXPERTS}, which are 32 a lane")
        })?;
        self.holds("the number of experts of a row", chosen, chosen <= experts.min(MOST_CHOSEN), || {
            format!("at most {}, one a lane", experts.min(MOST_CHOSEN))
        })
    }

    fn few_simdgroups(&self, simdgroups: usize) -> Result<(), KernelError> {
        self.positive("simdgroups", simdgroups)?;
        self.holds("simdgroups", simdgroups, simdgroups <= 32, || "at most 32".to_owned())
    }

    pub(super) fn experts_inner(&self, inner: &ExpertsInner) -> Result<(), KernelError> {
        self.choice(inner.experts, inner.chosen)?;
        self.positive("the number of outputs", inner.outputs)?;
        self.positive("the number of inputs", inner.inputs)?;
        let all = inner.experts.saturating_mul(inner.outputs);
        self.indexable("the number of outputs of all experts", all, inner.inputs, inner.format)?;
        let even = || "even: gate and up rows alternate".to_owned();
        self.holds("the number of outputs", inner.outputs, inner.outputs.is_multiple_of(2), even)?;
        if let Gating::Clamped { limit, sharpness } = inner.gating {
            self.finite("the limit of gates and ups", limit)?;
            self.finite("the sharpness of gates", sharpness)?;
        }
        self.few_simdgroups(inner.simdgroups)?;
        let rows = inner.rows_per_simdgroup;
        self.holds("rows_per_simdgroup", rows, rows > 0 && rows.is_multiple_of(2) && rows <= 64, even)?;
        if let Some(norm) = inner.norm {
            self.positive("the number of partial sums of squares", norm.partials)?;
            self.finite("epsilon", norm.epsilon)?;
        }
        let Some(route) = &inner.route else { return Ok(()) };
        self.route(route)?;
        let same = (route.experts, route.chosen, None) == (inner.experts, inner.chosen, route.groups);
        self.holds("the number of experts that are chosen from", route.experts, same, || {
            format!("{}, without groups: those need a kernel of their own", inner.experts)
        })
    }

    pub(super) fn experts_sum(&self, sum: &ExpertsSum) -> Result<(), KernelError> {
        self.choice(sum.experts, sum.chosen)?;
        self.positive("the number of outputs", sum.outputs)?;
        self.positive("the number of inputs", sum.inputs)?;
        let all = sum.experts.saturating_mul(sum.outputs);
        self.indexable("the number of outputs of all experts", all, sum.inputs, sum.format)?;
        let inputs = sum.chosen.saturating_mul(sum.inputs);
        self.holds("the number of inputs", sum.inputs, fits_word(inputs), || {
            "such that those of all experts of a row are counted in 32 bits".to_owned()
        })?;
        self.few_simdgroups(sum.simdgroups)?;
        let rows = sum.rows_per_simdgroup;
        self.holds("rows_per_simdgroup", rows, (1..=32).contains(&rows), || {
            "at most 32, one a lane, as a lane finishes a row".to_owned()
        })?;
        let Summed::AddSquares(squares) = sum.ending else { return Ok(()) };
        let finished = rows * sum.simdgroups;
        self.holds("the number of outputs of a threadgroup", finished, finished <= 32, || {
            "at most 32, as one simdgroup finishes them; lower simdgroups".to_owned()
        })?;
        let groups = sum.outputs.div_ceil(finished);
        self.holds(
            "the number of partial sums of squares",
            squares.partials,
            squares.partials >= groups,
            || format!("at least the number of threadgroups, which is {groups}"),
        )
    }
}
