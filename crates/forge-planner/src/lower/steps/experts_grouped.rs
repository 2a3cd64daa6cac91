//! Rows that are taken expert by expert: which passes have them so, the steps beside those that every pass has, and the kernels of
//! tiles. Pairs and tiles lie in a buffer each, which the first of these steps writes and the others read.

use crate::fuse::list::{ExpertsSum, Fused, Kind, Operation};
use crate::lower::section::Draft;
use crate::lower::select::Select;
use crate::lower::steps::experts::SEATS;
use crate::plan::regime::Regime;
use crate::plan::{Condition, Operand, RowsOf};
use forge_ir::{Format, Gating, Layout};
use forge_kernels::{Spec, spec};

impl Select<'_> {
    /// The step that finds each expert's rows.
    pub(crate) fn group(&mut self, draft: &mut Draft<'_>, (experts, chosen): (usize, usize), routes: usize) {
        let [tile_rows, _] = spec::ExpertsTiles::tile_for(experts, chosen, self.plan.chunk);
        let spec = Spec::ExpertsGroup(spec::ExpertsGroup { experts, chosen, tile_rows });
        let general = "pairs = rows and their places, expert by expert; tiles = up to so many of one expert";
        let function = self.function("experts_group", general, &[(GROUPED, spec)]);
        let mut arguments = vec![("routes", Operand::Scratch(routes))];
        arguments.extend(self.of_tiles(experts, chosen));
        let formula = format!("pairs, tiles = the rows of each expert in {}", self.scratch_name(routes));
        self.many(draft, "routed_rows", &formula, function, &arguments);
    }

    /// What each expert of a row makes of it, before it is weighed: the buffer that the step writes.
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
        let general = format!("of each expert of a row y = weight · x{plus}");
        let function = self.function("experts_each", &general, &[(GROUPED, spec)]);
        let mut arguments = vec![
            ("weight", Operand::Field(field)),
            SEATS,
            ("x", Operand::Scratch(from)),
            ("y", Operand::Scratch(each)),
        ];
        arguments.extend(self.of_tiles(experts, chosen));
        arguments.extend(
            sum.bias.map(|bias| ("bias", Operand::Field(self.vector(draft, &[bias], Layout::Rows, "")))),
        );
        let (each_name, from) = (self.scratch_name(each), self.scratch_name(from));
        let formula = format!("of each expert in routes {each_name} = W · {from}{plus}");
        self.many(draft, "routed_each", &formula, function, &arguments);
        each
    }

    /// A step that only passes of many rows have.
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
        let [tile_rows, tile_outputs] = spec::ExpertsTiles::tile_for(experts, chosen, self.plan.chunk);
        Spec::ExpertsTiles(spec::ExpertsTiles {
            format,
            experts,
            chosen,
            shared,
            outputs,
            inputs,
            record,
            bias,
            gating,
            operand: self.operand(format, bounded),
            tile_rows,
            tile_outputs,
        })
    }

    /// The buffers of pairs and tiles, as arguments: as many tiles as the longest pass may have.
    pub(crate) fn of_tiles(&mut self, experts: usize, chosen: usize) -> [(&'static str, Operand); 2] {
        let chunk = self.plan.chunk;
        let [tile_rows, _] = spec::ExpertsTiles::tile_for(experts, chosen, chunk);
        let tiles = spec::ExpertsGroup { experts, chosen, tile_rows }.tiles(chunk);
        let (pairs, tiles) =
            (self.scratch("pairs", chosen, RowsOf::Row), self.scratch("tiles", 3 * tiles, RowsOf::Pass));
        [("pairs", Operand::Scratch(pairs)), ("tiles", Operand::Scratch(tiles))]
    }
}

/// The regime whose passes take rows expert by expert, so that each expert's matrices are read once for its rows.
///
/// By bytes it pays from two rows on: `rows` rows that read `chosen` of E experts each by themselves read `rows · chosen`
/// matrices, and all that any of them has are never more, about E (1 - (1 - chosen / E)^rows). At 17 rows that is 8 in place of
/// 34 (2 of 8), 85 of 136 (8 of 128), 146 of 170 (10 of 512). But a tile of an expert with one or two rows computes 16, which
/// a few rows do not make up for.
const GROUPED: &[Regime] = &[Regime::Many];

/// Whether the experts of this operation take rows so. Those that choose by themselves, or divide by a norm, are made for one
/// row; and pairs are those of the experts that were asked last.
pub(crate) fn is_grouped(draft: &Draft<'_>, list: &Fused, operation: &Operation) -> bool {
    if GROUPED.iter().any(|regime| !draft.regimes().contains(regime)) {
        return false;
    }
    let end = list.operations.iter().position(|other| other.output == operation.output);
    let before = &list.operations[..end.map_or(0, |end| end + 1)];
    let asks = |operation: &&Operation| matches!(operation.kind, Kind::ExpertsInner(_));
    let Some(last) = before.iter().rfind(asks) else { return false };
    let own = last.output == operation.output || operation.inputs.first() == Some(&last.output);
    own && matches!(&last.kind, Kind::ExpertsInner(inner) if inner.choice.is_none() && inner.norm.is_none())
}

/// A kernel for every number of rows, or one that leaves many rows to another.
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
