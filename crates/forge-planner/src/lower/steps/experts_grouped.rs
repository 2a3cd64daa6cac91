//! Steps of the grouped expert GEMM for many rows: sorting rows by expert, and tiled matrix kernels. Pairs
//! and tiles are in one buffer each, which the first step writes.

use crate::fuse::list::{ExpertsSum, Fused, Kind, Operation};
use crate::lower::section::Draft;
use crate::lower::select::Select;
use crate::lower::steps::experts::EXPERT_SLOTS;
use crate::plan::regime::Regime;
use crate::plan::{Condition, Operand, RowsOf};
use forge_ir::Layout;
use forge_kernels::{Spec, spec};
use forge_ops::{Format, Gating};

impl Select<'_> {
    /// Adds the step that sorts rows by expert.
    pub(crate) fn group(&mut self, draft: &mut Draft<'_>, (experts, chosen): (usize, usize), routes: usize) {
        let [tile_rows, _] = spec::ExpertsTileLayout::tile_for(experts, chosen, self.plan.chunk);
        let spec = Spec::ExpertsGroup(forge_ops::ExpertsGroup { experts, chosen, tile_rows });
        let general =
            "pairs = rows and their places, sorted by expert; tiles = up to a tile of pairs of one expert";
        let function = self.function("experts_group", general, &[(GROUPED, spec)]);
        let mut arguments = vec![("routes", Operand::Scratch(routes))];
        arguments.extend(self.of_tiles(experts, chosen));
        let formula = format!("pairs, tiles = the rows of each expert in {}", self.scratch_name(routes));
        self.many(draft, "routed_rows", &formula, function, &arguments);
    }

    /// Adds the step that computes each expert's result before weighting; returns its buffer.
    pub(crate) fn each(
        &mut self,
        draft: &mut Draft<'_>,
        (field, from): (usize, usize),
        shape: ([usize; 6], Format),
        sum: &ExpertsSum,
    ) -> usize {
        let ([experts, chosen, _, outputs, ..], _) = shape;
        let each = self.scratch("routed_each", chosen * outputs, RowsOf::Row);
        let spec = self.tiles(shape, sum.bias.is_some(), (None, false));
        let plus = if sum.bias.is_some() { " + bias" } else { "" };
        let general = format!("for each expert of a row: y = weight · x{plus}");
        let function = self.function("experts_each", &general, &[(GROUPED, spec)]);
        let mut arguments = vec![
            ("weight", Operand::Field(field)),
            EXPERT_SLOTS,
            ("x", Operand::Scratch(from)),
            ("y", Operand::Scratch(each)),
        ];
        arguments.extend(self.of_tiles(experts, chosen));
        arguments.extend(
            sum.bias.map(|bias| ("bias", Operand::Field(self.vector(draft, &[bias], Layout::Rows, "")))),
        );
        let (each_name, from) = (self.scratch_name(each), self.scratch_name(from));
        let formula = format!("for each expert in routes: {each_name} = W · {from}{plus}");
        self.many(draft, "routed_each", &formula, function, &arguments);
        each
    }

    /// Adds a step that only runs in passes of many rows.
    pub(crate) fn many(
        &self,
        draft: &mut Draft<'_>,
        name: &str,
        formula: &str,
        function: usize,
        arguments: &[(&str, Operand)],
    ) {
        draft.step(name, formula, function, arguments);
        if let Some(step) = draft.section.steps_mut(draft.schedule).last_mut() {
            step.condition = Condition::Many;
        }
    }

    pub(crate) fn tiles(
        &self,
        ([experts, chosen, shared, outputs, inputs, record], format): ([usize; 6], Format),
        bias: bool,
        (gating, bounded): (Option<Gating>, bool),
    ) -> Spec {
        let [tile_rows, tile_outputs] = spec::ExpertsTileLayout::tile_for(experts, chosen, self.plan.chunk);
        Spec::ExpertsTiles(spec::Kernel {
            op: forge_ops::ExpertsTiles {
                format,
                experts,
                chosen,
                shared,
                outputs,
                inputs,
                record,
                bias,
                gating,
                tile_rows,
            },
            layout: spec::ExpertsTileLayout { operand: self.operand(format, bounded), tile_outputs },
        })
    }

    /// Buffers of pairs and tiles, as arguments. They are sized for the largest pass.
    pub(crate) fn of_tiles(&mut self, experts: usize, chosen: usize) -> [(&'static str, Operand); 2] {
        let chunk = self.plan.chunk;
        let [tile_rows, _] = spec::ExpertsTileLayout::tile_for(experts, chosen, chunk);
        let tiles = forge_ops::ExpertsGroup { experts, chosen, tile_rows }.tiles(chunk);
        let (pairs, tiles) =
            (self.scratch("pairs", chosen, RowsOf::Row), self.scratch("tiles", 3 * tiles, RowsOf::Pass));
        [("pairs", Operand::Scratch(pairs)), ("tiles", Operand::Scratch(tiles))]
    }
}

/// Regimes with the grouped GEMM, which reads each expert's matrices once for all of its rows.
///
/// It reads fewer bytes from two rows on. Ungrouped, `rows` rows with top-k of E experts read `rows · k`
/// matrices; grouped, they read at most about E (1 - (1 - k / E)^rows). For 17 rows that is 8 instead of 34
/// (2 of 8), 85 instead of 136 (8 of 128), 146 instead of 170 (10 of 512). But a tile with one or two rows
/// computes 16, which a small batch does not recover.
const GROUPED: &[Regime] = &[Regime::Many];

/// Whether this operation uses the grouped GEMM. Operations with fused routing or a deferred norm are for one
/// row. The pairs must be those of the last experts before it.
pub(crate) fn is_grouped(draft: &Draft<'_>, list: &Fused, operation: &Operation) -> bool {
    if GROUPED.iter().any(|regime| !draft.regimes().contains(regime)) {
        return false;
    }
    let end = list.operations.iter().position(|other| other.output == operation.output);
    let before = &list.operations[..end.map_or(0, |end| end + 1)];
    let requests_experts = |operation: &&Operation| matches!(operation.kind, Kind::ExpertsInner(_));
    let Some(last) = before.iter().rfind(requests_experts) else { return false };
    let own = last.output == operation.output || operation.inputs.first() == Some(&last.output);
    own && matches!(&last.kind, Kind::ExpertsInner(inner) if inner.choice.is_none() && inner.norm.is_none())
}

/// One kernel for all regimes, or a separate one for many rows.
pub(crate) fn variants(
    draft: &Draft<'_>,
    spec: Spec,
    grouped: Option<Spec>,
) -> Vec<(&'static [Regime], Spec)> {
    match grouped {
        None => vec![(draft.regimes(), spec)],
        Some(grouped) => vec![(&[Regime::Few], spec), (GROUPED, grouped)],
    }
}
