//! Limits of expert kernels.

use crate::context::{DEFAULT_MEMORY, Tile};
use crate::error::KernelError;
use crate::limits::{Limits, fits_word};
use crate::spec::{ExpertsGroup, ExpertsInner, ExpertsJoin, ExpertsSum, ExpertsTiles, Route, Summed};
use crate::spec::{MOST_CHOSEN, MOST_EXPERTS};
use forge_ir::{Format, Gating, Record};

impl Limits<'_> {
    pub(crate) fn route(&self, route: &Route) -> Result<(), KernelError> {
        self.choice(route.experts, route.chosen)?;
        self.finite("the factor", route.factor)?;
        self.choice(route.experts.saturating_add(route.shared), route.routes())?;
        let weighs = !route.gated || route.shared > 0;
        self.holds("the number of shared experts", route.shared, weighs, || {
            "at least 1, since a logit weights them".to_owned()
        })?;
        let Some(groups) = route.groups else { return Ok(()) };
        self.holds(
            "the number of groups of experts",
            groups.count,
            (1..=32).contains(&groups.count) && route.experts.is_multiple_of(groups.count),
            || format!("a divisor of the number of experts, {}, and at most 32, one per lane", route.experts),
        )?;
        let size = route.experts / groups.count;
        let fits = (1..=groups.count).contains(&groups.kept) && groups.kept * size >= route.chosen;
        self.holds("the number of kept groups", groups.kept, fits, || {
            format!("at most {}, with at least {} experts in them", groups.count, route.chosen)
        })?;
        self.holds(
            "the number of experts that score a group",
            groups.best,
            (1..=size.min(2)).contains(&groups.best),
            || format!("1 or 2, and at most the group's size, {size}"),
        )
    }

    fn choice(&self, experts: usize, chosen: usize) -> Result<(), KernelError> {
        self.positive("the number of experts", experts)?;
        self.positive("the number of experts per row", chosen)?;
        self.holds("the number of experts", experts, experts <= MOST_EXPERTS, || {
            format!("at most {MOST_EXPERTS}, 32 per lane")
        })?;
        self.holds("the number of experts per row", chosen, chosen <= experts.min(MOST_CHOSEN), || {
            format!("at most {}, one per lane", experts.min(MOST_CHOSEN))
        })
    }

    /// Shared experts are included in the experts per row.
    fn shared(&self, shared: usize, chosen: usize) -> Result<(), KernelError> {
        self.holds("the number of shared experts", shared, shared <= chosen, || {
            format!("at most the number of experts per row, {chosen}")
        })
    }

    /// Matrices do not overlap and are aligned for vector loads.
    fn record(
        &self,
        record: usize,
        (format, outputs, inputs): (Format, usize, usize),
    ) -> Result<(), KernelError> {
        let matrix = format.matrix_bytes(outputs, inputs) as usize;
        let fits = record >= matrix && record.is_multiple_of(Record::ALIGNMENT);
        self.holds("the stride of expert matrices in bytes", record, fits, || {
            format!("a multiple of {}, and at least the size of a matrix, {matrix}", Record::ALIGNMENT)
        })
    }

    fn few_simdgroups(&self, simdgroups: usize) -> Result<(), KernelError> {
        self.positive("simdgroups", simdgroups)?;
        self.holds("simdgroups", simdgroups, simdgroups <= 32, || "at most 32".to_owned())
    }

    pub(crate) fn experts_inner(&self, inner: &ExpertsInner) -> Result<(), KernelError> {
        self.choice(inner.experts, inner.chosen)?;
        self.shared(inner.shared, inner.chosen)?;
        self.positive("the number of outputs", inner.outputs)?;
        self.positive("the number of inputs", inner.inputs)?;
        self.indexable("the number of outputs", inner.outputs, inner.inputs, inner.format)?;
        self.record(inner.record, (inner.format, inner.outputs, inner.inputs))?;
        let even = || "even: gate and up rows alternate".to_owned();
        self.gated(inner.outputs, inner.gating)?;
        self.few_simdgroups(inner.simdgroups)?;
        let rows = inner.rows_per_simdgroup;
        self.holds("rows_per_simdgroup", rows, rows > 0 && rows.is_multiple_of(2) && rows <= 64, even)?;
        if let Some(norm) = inner.norm {
            self.positive("the number of partial sums of squares", norm.partials)?;
            self.finite("epsilon", norm.epsilon)?;
        }
        let Some(route) = &inner.route else { return Ok(()) };
        self.route(route)?;
        let routed = (route.experts.saturating_add(route.shared), route.routes(), route.shared);
        let same = routed == (inner.experts, inner.chosen, inner.shared);
        self.holds("the number of routed experts", route.experts, same, || {
            let (own, chosen, shared) = (inner.experts - inner.shared, inner.chosen, inner.shared);
            format!("{own}, with {chosen} experts per row of which {shared} are shared")
        })
    }

    fn gated(&self, outputs: usize, gating: Gating) -> Result<(), KernelError> {
        let even = || "even: gate and up rows alternate".to_owned();
        self.holds("the number of outputs", outputs, outputs.is_multiple_of(2), even)?;
        let Gating::Clamped { limit, sharpness } = gating else { return Ok(()) };
        self.finite("the clamp limit of gate and up", limit)?;
        self.finite("the sharpness of gates", sharpness)
    }

    pub(crate) fn experts_group(&self, group: &ExpertsGroup) -> Result<(), KernelError> {
        self.choice(group.experts, group.chosen)?;
        self.side("tile_rows", group.tile_rows)
    }

    pub(crate) fn experts_tiles(&self, tiles: &ExpertsTiles) -> Result<(), KernelError> {
        self.choice(tiles.experts, tiles.chosen)?;
        self.shared(tiles.shared, tiles.chosen)?;
        self.positive("the number of outputs", tiles.outputs)?;
        self.positive("the number of inputs", tiles.inputs)?;
        self.indexable("the number of outputs", tiles.outputs, tiles.inputs, tiles.format)?;
        self.record(tiles.record, (tiles.format, tiles.outputs, tiles.inputs))?;
        if let Some(gating) = tiles.gating {
            self.gated(tiles.outputs, gating)?;
        }
        self.side("tile_rows", tiles.tile_rows)?;
        self.side("tile_outputs", tiles.tile_outputs)?;
        let tile = Tile::of([tiles.tile_rows, tiles.tile_outputs], 1, tiles.operand);
        // All results replace the tile at once.
        let bytes = tile.bytes().max(4 * tiles.tile_rows * (tiles.tile_outputs + 4));
        let fits = bytes <= DEFAULT_MEMORY;
        self.holds("the threadgroup memory of tile_rows and tile_outputs", bytes, fits, || {
            format!("at most {DEFAULT_MEMORY} bytes: use a smaller tile")
        })
    }

    pub(crate) fn experts_join(&self, join: &ExpertsJoin) -> Result<(), KernelError> {
        self.choice(join.chosen, join.chosen)?;
        self.positive("the width", join.width)?;
        let numbers = join.chosen.saturating_mul(join.width);
        self.holds("the width", join.width, fits_word(numbers), || {
            "small enough that the elements of all experts of a row are indexed in 32 bits".to_owned()
        })
    }

    pub(crate) fn experts_sum(&self, sum: &ExpertsSum) -> Result<(), KernelError> {
        self.choice(sum.experts, sum.chosen)?;
        self.shared(sum.shared, sum.chosen)?;
        self.positive("the number of outputs", sum.outputs)?;
        self.positive("the number of inputs", sum.inputs)?;
        self.indexable("the number of outputs", sum.outputs, sum.inputs, sum.format)?;
        self.record(sum.record, (sum.format, sum.outputs, sum.inputs))?;
        let inputs = sum.chosen.saturating_mul(sum.inputs);
        self.holds("the number of inputs", sum.inputs, fits_word(inputs), || {
            "small enough that the inputs of all experts of a row are indexed in 32 bits".to_owned()
        })?;
        self.few_simdgroups(sum.simdgroups)?;
        let rows = sum.rows_per_simdgroup;
        self.holds("rows_per_simdgroup", rows, (1..=32).contains(&rows), || {
            "at most 32: each lane writes one row".to_owned()
        })?;
        let Summed::AddSquares(squares) = sum.ending else { return Ok(()) };
        let finished = rows * sum.simdgroups;
        self.holds("the number of outputs of a threadgroup", finished, finished <= 32, || {
            "at most 32, which one simdgroup writes: use fewer simdgroups".to_owned()
        })?;
        let groups = sum.outputs.div_ceil(finished);
        self.holds(
            "the number of partial sums of squares",
            squares.partials,
            squares.partials >= groups,
            || format!("at least the number of threadgroups, {groups}"),
        )
    }
}
