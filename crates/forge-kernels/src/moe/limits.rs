//! Limits of expert kernels.

use crate::context::{DEFAULT_MEMORY, Tile};
use crate::error::KernelError;
use crate::limits::{Limits, fits_word};
use crate::spec::{ExpertsInnerKernel, ExpertsSumKernel, ExpertsTilesKernel, Operand};
use crate::spec::{MOST_CHOSEN, MOST_EXPERTS};
use forge_ir::Record;
use forge_ops::{Epilogue, ExpertsCombine, ExpertsGroup, Route};
use forge_ops::{Format, Gating};

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

    pub(crate) fn experts_inner(&self, inner: &ExpertsInnerKernel) -> Result<(), KernelError> {
        self.choice(inner.op.experts, inner.op.chosen)?;
        self.shared(inner.op.shared, inner.op.chosen)?;
        self.positive("the number of outputs", inner.op.outputs)?;
        self.positive("the number of inputs", inner.op.inputs)?;
        self.indexable("the number of outputs", inner.op.outputs, inner.op.inputs, inner.op.format)?;
        self.record(inner.op.record, (inner.op.format, inner.op.outputs, inner.op.inputs))?;
        let even = || "even: gate and up rows alternate".to_owned();
        self.gated(inner.op.outputs, inner.op.gating)?;
        self.few_simdgroups(inner.layout.simdgroups)?;
        let rows = inner.layout.rows_per_simdgroup;
        self.holds("rows_per_simdgroup", rows, rows > 0 && rows.is_multiple_of(2) && rows <= 64, even)?;
        if let Some(norm) = inner.op.norm {
            self.positive("the number of partial sums of squares", norm.partials)?;
            self.finite("epsilon", norm.epsilon)?;
        }
        let Some(route) = &inner.op.route else { return Ok(()) };
        self.route(route)?;
        let routed = (route.experts.saturating_add(route.shared), route.routes(), route.shared);
        let same = routed == (inner.op.experts, inner.op.chosen, inner.op.shared);
        self.holds("the number of routed experts", route.experts, same, || {
            let (own, chosen, shared) =
                (inner.op.experts - inner.op.shared, inner.op.chosen, inner.op.shared);
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

    pub(crate) fn experts_tiles(&self, tiles: &ExpertsTilesKernel) -> Result<(), KernelError> {
        self.choice(tiles.op.experts, tiles.op.chosen)?;
        self.shared(tiles.op.shared, tiles.op.chosen)?;
        self.positive("the number of outputs", tiles.op.outputs)?;
        self.positive("the number of inputs", tiles.op.inputs)?;
        self.indexable("the number of outputs", tiles.op.outputs, tiles.op.inputs, tiles.op.format)?;
        self.record(tiles.op.record, (tiles.op.format, tiles.op.outputs, tiles.op.inputs))?;
        if let Some(gating) = tiles.op.gating {
            self.gated(tiles.op.outputs, gating)?;
        }
        self.side("tile_rows", tiles.op.tile_rows)?;
        self.side("tile_outputs", tiles.layout.tile_outputs)?;
        let is_one_type = tiles.layout.operand != Operand::F16Weights;
        self.holds("the number of types in a tile", 2, is_one_type, || "1: use f32 or f16".to_owned())?;
        let tile = Tile::of([tiles.op.tile_rows, tiles.layout.tile_outputs], 1, tiles.layout.operand);
        // All results replace the tile at once.
        let bytes = tile.bytes().max(4 * tiles.op.tile_rows * (tiles.layout.tile_outputs + 4));
        let fits = bytes <= DEFAULT_MEMORY;
        self.holds("the threadgroup memory of tile_rows and tile_outputs", bytes, fits, || {
            format!("at most {DEFAULT_MEMORY} bytes: use a smaller tile")
        })
    }

    pub(crate) fn experts_combine(&self, combine: &ExpertsCombine) -> Result<(), KernelError> {
        self.choice(combine.chosen, combine.chosen)?;
        self.positive("the width", combine.width)?;
        let numbers = combine.chosen.saturating_mul(combine.width);
        self.holds("the width", combine.width, fits_word(numbers), || {
            "small enough that the elements of all experts of a row are indexed in 32 bits".to_owned()
        })
    }

    pub(crate) fn experts_sum(&self, sum: &ExpertsSumKernel) -> Result<(), KernelError> {
        self.choice(sum.op.experts, sum.op.chosen)?;
        self.shared(sum.op.shared, sum.op.chosen)?;
        self.positive("the number of outputs", sum.op.outputs)?;
        self.positive("the number of inputs", sum.op.inputs)?;
        self.indexable("the number of outputs", sum.op.outputs, sum.op.inputs, sum.op.format)?;
        self.record(sum.op.record, (sum.op.format, sum.op.outputs, sum.op.inputs))?;
        let inputs = sum.op.chosen.saturating_mul(sum.op.inputs);
        self.holds("the number of inputs", sum.op.inputs, fits_word(inputs), || {
            "small enough that the inputs of all experts of a row are indexed in 32 bits".to_owned()
        })?;
        self.few_simdgroups(sum.layout.simdgroups)?;
        let rows = sum.layout.rows_per_simdgroup;
        self.holds("rows_per_simdgroup", rows, (1..=32).contains(&rows), || {
            "at most 32: each lane writes one row".to_owned()
        })?;
        let squares = match sum.op.epilogue {
            Epilogue::AddSquares(squares) => squares,
            Epilogue::Store | Epilogue::Add => return Ok(()),
            Epilogue::Gate(_) | Epilogue::Multiply { .. } | Epilogue::Best { .. } => {
                return self.holds("the epilogue of a sum over experts", 1, false, || "a sum".to_owned());
            }
        };
        let finished = rows * sum.layout.simdgroups;
        self.holds("the number of outputs of a threadgroup", finished, finished <= 32, || {
            "at most 32, which one simdgroup writes: use fewer simdgroups".to_owned()
        })?;
        let groups = sum.op.outputs.div_ceil(finished);
        self.holds(
            "the number of partial sums of squares",
            squares.partials,
            squares.partials >= groups,
            || format!("at least the number of threadgroups, {groups}"),
        )
    }
}
