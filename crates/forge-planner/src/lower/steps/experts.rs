//! Steps of MoE layers. A row's routes are in one buffer: expert indices and the bits of their weights. The
//! router or the gate and up kernels write it, and the down kernel reads it.

use crate::fuse::list::{
    CombineInput, ExpertsInner, ExpertsSum, Fused, FusedRouting, Gain, Kind, Operation, Value,
};
use crate::lower::section::Draft;
use crate::lower::select::Select;
use crate::lower::steps::experts_grouped::{is_grouped, variants};
use crate::plan::regime::Regime;
use crate::plan::{FieldKind, Operand, RowsOf};
use forge_ir::{Layout, ParamId, Record, Routing};
use forge_kernels::{Spec, spec};
use forge_ops::{Format, Gating};

/// Slot table of the expert cache, an argument of every kernel that reads experts.
pub(crate) const EXPERT_SLOTS: (&str, Operand) = ("expert_slots", Operand::ExpertSlots);

impl Select<'_> {
    pub(crate) fn route(
        &mut self,
        draft: &mut Draft<'_>,
        list: &Fused,
        operation: &Operation,
        choice: &FusedRouting,
        from: usize,
    ) {
        let routing = &choice.routing;
        let logits = list.widths[operation.inputs[0].0];
        let routes = self.target(draft, list, operation, "routes");
        let spec = Spec::Route(route_spec(choice, logits));
        let more = if choice.shared > 0 { ", the shared experts" } else { "" };
        let general = format!("routes = the {} largest of logits{more}, and their weights", routing.chosen);
        let function = self.function("route", &general, &[(draft.regimes(), spec)]);
        let logits = self.scratch_name(from);
        let formula =
            format!("routes = the top {} experts by {logits}{more}, and their weights", routing.chosen);
        let mut arguments = vec![("logits", Operand::Scratch(from)), ("routes", Operand::Scratch(routes))];
        arguments.extend(self.of_experts(draft, routing));
        draft.step(&operation.name, &formula, function, &arguments);
    }

    /// Format, outputs and inputs of an expert's gate and up matrix.
    fn of_inner(&self, draft: &Draft<'_>, inner: &ExpertsInner) -> (Format, [usize; 2]) {
        let gate = draft.shape(inner.gate);
        (self.formats.of(&draft.weights(&inner.stacks())), [2 * gate[1], gate[2]])
    }

    /// Format, outputs and inputs of an expert's down matrix.
    fn of_sum(&self, draft: &Draft<'_>, sum: &ExpertsSum) -> (Format, [usize; 2]) {
        let down = draft.shape(sum.down);
        (self.formats.of(&draft.weights(&sum.stacks())), [down[1], down[2]])
    }

    /// Bytes of an expert's record: all matrices of the section.
    fn record(&self, draft: &Draft<'_>, list: &Fused) -> usize {
        let matrix = |operation: &Operation| match &operation.kind {
            Kind::ExpertsInner(inner) => Some(self.of_inner(draft, inner)),
            Kind::ExpertsSum(sum) => Some(self.of_sum(draft, sum)),
            _ => None,
        };
        Record::of(&list.operations.iter().filter_map(matrix).collect::<Vec<_>>()).bytes
    }

    /// Field of an expert matrix with this many outputs per expert, and the number of experts.
    fn stack(
        &self,
        draft: &mut Draft<'_>,
        (stacks, layout): (&[ParamId], (Layout, Option<ParamId>)),
        outputs: usize,
        name: &str,
    ) -> (usize, usize) {
        let kind = |format, rows, columns| FieldKind::Experts {
            experts: rows / outputs,
            format,
            rows: outputs,
            columns,
        };
        let (field, _, rows) = self.field(draft, stacks, layout, name, kind);
        (field, rows / outputs)
    }

    /// Weight vectors of a routing, as arguments.
    fn of_experts(&self, draft: &mut Draft<'_>, routing: &Routing) -> Vec<(&'static str, Operand)> {
        let vectors = [("correction", routing.correction), ("scale", routing.scale)];
        let there = vectors.into_iter().filter_map(|(name, param)| Some((name, param?)));
        there
            .map(|(name, param)| (name, Operand::Field(self.vector(draft, &[param], Layout::Rows, ""))))
            .collect()
    }

    pub(crate) fn experts_inner(
        &mut self,
        draft: &mut Draft<'_>,
        list: &Fused,
        operation: &Operation,
        inner: &ExpertsInner,
        from: usize,
    ) {
        let (format, [outputs, inputs]) = self.of_inner(draft, inner);
        let record = self.record(draft, list);
        let (field, experts) = self.stack(
            draft,
            (&inner.stacks(), (Layout::Alternate, inner.folded)),
            outputs,
            "routed_gate_up",
        );
        let shared = experts - draft.shape(inner.gate)[0];
        let x = self.normed_input(draft, list, operation, (inner.norm, inner.folded), from);
        let second = draft.buffers.get(&operation.inputs[1]).copied().unwrap_or(self.stream);
        let y = self.target(draft, list, operation, "routed_inner");
        let (rows_per_simdgroup, simdgroups) =
            self.experts_knobs((format, inner.chosen * outputs, inputs), false);
        let choice = inner.choice.as_ref();
        let grouped = is_grouped(draft, list, operation);
        if grouped {
            self.group(draft, (experts, inner.chosen), second);
        }
        let tiles = grouped.then(|| {
            let shape = ([experts, inner.chosen, shared, outputs, inputs, record], format);
            let bounded = self.bounded(list, operation);
            self.tiles(shape, inner.biases.is_some(), (Some(inner.gating), bounded))
        });
        let kernel = spec::Kernel {
            op: forge_ops::ExpertsInner {
                format,
                experts,
                chosen: inner.chosen,
                shared,
                outputs,
                inputs,
                record,
                norm: inner.norm.map(|epsilon| forge_ops::DeferredNorm { partials: self.partials, epsilon }),
                bias: inner.biases.is_some(),
                gating: inner.gating,
                route: choice.map(|(choice, _)| route_spec(choice, list.widths[operation.inputs[1].0])),
            },
            layout: spec::ExpertsLayout { rows_per_simdgroup, simdgroups },
        };
        let divided = if inner.norm.is_some() { " / rms" } else { "" };
        let (plus, plus_own) = match inner.biases {
            Some(_) => (" + bias", " + its bias"),
            None => ("", ""),
        };
        let gated = match inner.gating {
            Gating::Plain(activation) => format!("{}(gate) · up", activation.name()),
            Gating::Clamped { limit, sharpness } => {
                format!("a · sigmoid({sharpness} · a) · (b + 1) of gate and up clamped to {limit}")
            }
        };
        let found = match choice {
            Some((FusedRouting { shared: 0, .. }, _)) => "the top experts by",
            Some(_) => "the shared experts, and the top experts by",
            None => "",
        };
        let chosen = if choice.is_some() { format!("routes = {found} logits; ") } else { String::new() };
        let general =
            format!("{chosen}for each expert of a row: gate, up = weight · x{divided}{plus}; y = {gated}");
        let variants = if draft.is_decode() {
            let writes_partials = false;
            decode_variants(draft, |times| {
                Spec::ExpertsInner(kernel.with_layout(|it| it.for_decode_batch(times, writes_partials)))
            })
        } else {
            variants(draft, Spec::ExpertsInner(kernel), tiles)
        };
        let function = self.function(&draft.function_name("experts_inner"), &general, &variants);
        let (x_name, y_name) = (self.scratch_name(x), self.scratch_name(y));
        let mut arguments = vec![
            ("weight", Operand::Field(field)),
            EXPERT_SLOTS,
            ("x", Operand::Scratch(x)),
            ("y", Operand::Scratch(y)),
        ];
        let mut formula = format!(
            "for each expert in routes: gate, up = W · {x_name}{divided}{plus_own};  {y_name} = {gated}"
        );
        match choice {
            None => arguments.push(("routes", Operand::Scratch(second))),
            Some((choice, value)) => {
                let routes = self.routes(draft, list, *value);
                formula = format!("routes = {found} {};  {formula}", self.scratch_name(second));
                arguments.push(("logits", Operand::Scratch(second)));
                arguments.push(("routes", Operand::Scratch(routes)));
                arguments.extend(self.of_experts(draft, &choice.routing));
            }
        }
        if grouped {
            arguments.extend(self.of_tiles(experts, inner.chosen));
        }
        arguments.extend(inner.biases.map(|biases| {
            let bias = self.vector(draft, &biases, Layout::Alternate, "routed_gate_up_bias");
            ("bias", Operand::Field(bias))
        }));
        if inner.norm.is_some() {
            let squares = self.scratch("squares", self.partials, RowsOf::DecodeRow);
            arguments.push(("squares", Operand::Scratch(squares)));
        }
        draft.step(&operation.name, &formula, function, &arguments);
    }

    /// Buffer of routes that a kernel writes besides its result.
    fn routes(&mut self, draft: &mut Draft<'_>, list: &Fused, value: Value) -> usize {
        let routes = self.scratch("routes", list.widths[value.0], RowsOf::Row);
        draft.buffers.insert(value, routes);
        routes
    }

    pub(crate) fn experts_sum(
        &mut self,
        draft: &mut Draft<'_>,
        list: &Fused,
        operation: &Operation,
        sum: &ExpertsSum,
        from: usize,
    ) {
        let (format, [outputs, inputs]) = self.of_sum(draft, sum);
        let record = self.record(draft, list);
        let layout = if sum.shared.is_some() { Layout::Blocks } else { Layout::Rows };
        let (field, experts) = self.stack(draft, (&sum.stacks(), (layout, None)), outputs, "routed_down");
        let shared = experts - draft.shape(sum.down)[0];
        let buffer = |value: &Value| draft.buffers.get(value).copied();
        let routes = buffer(&operation.inputs[1]).unwrap_or(self.stream);
        let y = match sum.ending {
            CombineInput::Store => self.target(draft, list, operation, "routed"),
            CombineInput::Add | CombineInput::AddSquares(_) => self.in_place(draft, list, operation),
        };
        let (rows_per_simdgroup, simdgroups) = self.sum_knobs(experts, (format, outputs, inputs), sum);
        let grouped = is_grouped(draft, list, operation);
        let each = grouped.then(|| {
            let shape = ([experts, sum.chosen, shared, outputs, inputs, record], format);
            self.each(draft, (field, from), shape, sum)
        });
        let join = each.map(|_| {
            let adds = sum.ending != CombineInput::Store;
            Spec::ExpertsCombine(forge_ops::ExpertsCombine { chosen: sum.chosen, width: outputs, adds })
        });
        let kernel = spec::Kernel {
            op: forge_ops::ExpertsSum {
                format,
                experts,
                chosen: sum.chosen,
                shared,
                outputs,
                inputs,
                record,
                bias: sum.bias.is_some(),
                epilogue: match sum.ending {
                    CombineInput::Store => forge_ops::Epilogue::Store,
                    CombineInput::Add => forge_ops::Epilogue::Add,
                    CombineInput::AddSquares(gain) => forge_ops::Epilogue::AddSquares(self.squares(gain)),
                },
            },
            layout: spec::ExpertsLayout { rows_per_simdgroup, simdgroups },
        };
        let (assign, general_left) = match sum.ending {
            CombineInput::Store => ("=", ""),
            CombineInput::Add => ("+=", ""),
            CombineInput::AddSquares(Gain::Folded) => ("+=", "; squares_out = Σ y²"),
            CombineInput::AddSquares(_) => ("+=", "; gained = gain · y; squares_out = Σ y²"),
        };
        let (plus, plus_own) = if sum.bias.is_some() { (" + bias", " + its bias") } else { ("", "") };
        let general = format!("y {assign} Σ over routes of their weight · (weight · x{plus}){general_left}");
        let variants = if draft.is_decode() {
            let writes_partials = matches!(sum.ending, CombineInput::AddSquares(_));
            decode_variants(draft, |times| {
                Spec::ExpertsSum(kernel.with_layout(|layout| layout.for_decode_batch(times, writes_partials)))
            })
        } else {
            variants(draft, Spec::ExpertsSum(kernel), join)
        };
        let function = self.function(&draft.function_name("experts_sum"), &general, &variants);
        let (x_name, y_name) = (self.scratch_name(from), self.scratch_name(y));
        let mut formula =
            format!("{y_name} {assign} Σ over routes of their weight · (W · {x_name}{plus_own})");
        let mut arguments = vec![
            ("weight", Operand::Field(field)),
            EXPERT_SLOTS,
            ("routes", Operand::Scratch(routes)),
            ("x", Operand::Scratch(from)),
            ("y", Operand::Scratch(y)),
        ];
        arguments.extend(each.map(|each| ("each", Operand::Scratch(each))));
        arguments.extend(
            sum.bias.map(|bias| ("bias", Operand::Field(self.vector(draft, &[bias], Layout::Rows, "")))),
        );
        if let CombineInput::AddSquares(gain) = sum.ending {
            let (left, more) = self.squares_outputs(draft, operation.output, outputs, gain, &y_name);
            formula += &left;
            arguments.extend(more);
        }
        draft.step(&operation.name, &formula, function, &arguments);
    }
}

/// Kernels for one row, two rows and more rows of a decode pass, by how many times the outputs per simdgroup they have.
fn decode_variants(draft: &Draft<'_>, kernel: impl Fn(usize) -> Spec) -> Vec<(&'static [Regime], Spec)> {
    let regimes = draft.regimes();
    vec![(&regimes[..1], kernel(1)), (&regimes[1..2], kernel(2)), (&regimes[2..], kernel(4))]
}

fn route_spec(choice: &FusedRouting, logits: usize) -> forge_ops::Route {
    let FusedRouting { routing, shared, gated } = choice;
    forge_ops::Route {
        experts: logits - usize::from(*gated),
        chosen: routing.chosen,
        scores: routing.scores,
        correction: routing.correction.is_some(),
        groups: routing.groups,
        renormalize: routing.renormalize,
        factor: routing.factor,
        scale: routing.scale.is_some(),
        shared: *shared,
        gated: *gated,
    }
}
