//! Operands of steps: scratch buffers of values, fields of weights, and caches.

use crate::fuse::list::{Fused, Gain, Operation, Value};
use crate::lower::section::{Draft, Place, Source};
use crate::lower::select::{PER_LAYER_INPUTS, Select};
use crate::plan::kv_cache::Ring;
use crate::plan::{Field, FieldKind, Operand, RowsOf, State};
use forge_ir::{Diagnostic, Layout, Op, ParamId, WeightId};
use forge_ops::Format;

impl Select<'_> {
    /// Buffer of an operation's result. It is called `name` unless it is the body's output.
    pub(super) fn target(
        &mut self,
        draft: &mut Draft<'_>,
        list: &Fused,
        operation: &Operation,
        name: &str,
    ) -> usize {
        let width = list.widths[operation.output.0];
        let per = if draft.place == Place::Epilogue { RowsOf::Wanted } else { RowsOf::Row };
        let flows_out = list.flows_out(operation.output);
        let name = if list.is_per_layer_inputs(operation.output) { PER_LAYER_INPUTS } else { name };
        let to = match (flows_out, draft.place) {
            (true, Place::Epilogue) => self.scratch("logits", width, per),
            (true, _) => self.stream,
            // An intermediate sum must not be mistaken for the next residual stream.
            (false, _) if name == "stream" => {
                let sum = self.scratch("sum", width, per);
                if is_needed(draft, list, operation, sum) {
                    self.scratch("other_sum", width, per)
                } else {
                    sum
                }
            }
            (false, _) => self.scratch(name, width, per),
        };
        if is_needed(draft, list, operation, to) {
            let at = format!("{}.{}", draft.section.name, operation.name);
            let note = "residual additions have to be sequential; fusion `residual` makes them in place";
            self.faults.push(
                Diagnostic::new("F0501", format!("{at} would overwrite a value that is still needed"))
                    .note(note),
            );
        }
        draft.buffers.insert(operation.output, to);
        to
    }

    /// Buffer of the operation's last input, which it adds to. If it is the body's output, it must be the
    /// residual stream.
    pub(super) fn in_place(&mut self, draft: &mut Draft<'_>, list: &Fused, operation: &Operation) -> usize {
        let to = operation.inputs.last().and_then(|value| draft.buffers.get(value)).copied();
        let to = to.unwrap_or(self.stream);
        if list.flows_out(operation.output) && to != self.stream {
            let at = format!("{}.{}", draft.section.name, operation.name);
            let message = format!("{at} adds to {} instead of the residual stream", self.scratch_name(to));
            let note = "residual additions have to be all in place, or none";
            self.faults.push(Diagnostic::new("F0501", message).note(note));
        }
        draft.buffers.insert(operation.output, to);
        to
    }

    /// Input of a matmul that replaces `from`. With a deferred norm it is the row times the gain, or the row
    /// itself if the gain is folded.
    pub(super) fn normed_input(
        &mut self,
        draft: &Draft<'_>,
        list: &Fused,
        operation: &Operation,
        (norm, folded): (Option<f32>, Option<ParamId>),
        from: usize,
    ) -> usize {
        let input = operation.inputs[0];
        match (norm, folded) {
            (None, _) => from,
            // The section before has written the stream times this section's first gain.
            (Some(_), None) if input == Value::INPUT => {
                self.scratch("gained", list.widths[input.0], RowsOf::DecodeRow)
            }
            (Some(_), _) => draft.gained.get(&input).copied().unwrap_or(from),
        }
    }

    /// Outputs of the producer of `value` for its deferred norm: text for its formula, and arguments.
    pub(super) fn squares_outputs(
        &mut self,
        draft: &mut Draft<'_>,
        value: Value,
        width: usize,
        gain: Gain,
        name: &str,
    ) -> (String, Vec<(&'static str, Operand)>) {
        let squares = self.scratch("squares", self.partials, RowsOf::DecodeRow);
        let written = if draft.place == Place::Prologue { "squares" } else { "squares_out" };
        let mut arguments = vec![(written, Operand::Scratch(squares))];
        let field = match gain {
            Gain::Folded => None,
            Gain::Own(param) => Some(self.vector(draft, &[param], Layout::Rows, "")),
            Gain::Next => Some(self.next_gain(draft, width)),
        };
        let mut formula = String::new();
        if let Some(field) = field {
            let gained = self.scratch("gained", width, RowsOf::DecodeRow);
            draft.gained.insert(value, gained);
            arguments.push(("gain", Operand::Field(field)));
            arguments.push(("gained", Operand::Scratch(gained)));
            formula = format!(";  gained = {} · {name}", draft.section.fields[field].name);
        }
        (format!("{formula};  squares = Σ {name}²"), arguments)
    }

    pub(super) fn squares(&self, gain: Gain) -> forge_ops::Squares {
        forge_ops::Squares { partials: self.partials, gain: gain != Gain::Folded }
    }

    /// Field of the gain of the next application's norm.
    pub(super) fn next_gain(&self, draft: &mut Draft<'_>, width: usize) -> usize {
        let (name, comment) = match draft.place {
            Place::Prologue => ("first_gain", "gain of the first layer's norm"),
            _ => ("next_gain", "gain of the next norm"),
        };
        let kind = FieldKind::Vector { width };
        let field = Field { name: name.to_owned(), kind, comment: comment.to_owned(), of_next: true };
        draft.field(Source::NextGain, field)
    }

    pub(super) fn state(&mut self, draft: &mut Draft<'_>, cache: ParamId) -> Option<State> {
        let state = draft.body.cache(cache)?;
        // Several attentions may read the cache; it keeps the positions that any of them reads.
        let sees = draft.body.nodes.iter().filter_map(|node| match node.op {
            Op::Attention { cache: seen, window, .. } if seen == cache => Some(window.unwrap_or(usize::MAX)),
            _ => None,
        });
        let ring = sees.max().and_then(|window| Ring::of(window, self.plan.chunk, self.plan.context));
        let state = State { heads: state.heads, width: state.width, values: true, ring };
        draft.section.state = Some(state);
        Some(state)
    }

    /// Field of a matrix merged from these parameters, with its format and rows.
    pub(super) fn matrix(
        &self,
        draft: &mut Draft<'_>,
        params: &[ParamId],
        layout: Layout,
        folded: Option<ParamId>,
        name: &str,
    ) -> (usize, Format, usize) {
        let kind = |format, rows, columns| FieldKind::Matrix { format, rows, columns };
        self.field(draft, params, (layout, folded), name, kind)
    }

    /// A matrix field, its format, and the rows of all parts.
    pub(super) fn field(
        &self,
        draft: &mut Draft<'_>,
        params: &[ParamId],
        (layout, folded): (Layout, Option<ParamId>),
        name: &str,
        kind: impl Fn(Format, usize, usize) -> FieldKind,
    ) -> (usize, Format, usize) {
        let weights = draft.weights(params);
        let format = self.formats.of(&weights);
        let columns = weights.first().map_or(0, |id| self.graph.weights[id.0].columns());
        let rows_of = |id: &WeightId| {
            let weight = &self.graph.weights[id.0];
            let blocks = if layout == Layout::Blocks { weight.columns() / columns.max(1) } else { 1 };
            weight.rows() * blocks
        };
        let rows = weights.iter().map(rows_of).sum();
        let name = draft.role(params, name);
        let mut comment = draft.comment(params, layout, "rows");
        if let Some(gain) = folded {
            let times = format!("times {}", draft.param_name(gain));
            comment = if comment.is_empty() { times } else { format!("{comment}; {times}") };
        }
        let source = Source::Own { params: params.to_vec(), layout, folded };
        let kind = kind(format, rows, columns);
        let field = draft.field(source, Field { name, kind, comment, of_next: false });
        (field, format, rows)
    }

    pub(super) fn vector(
        &self,
        draft: &mut Draft<'_>,
        params: &[ParamId],
        layout: Layout,
        name: &str,
    ) -> usize {
        let width = draft.weights(params).iter().map(|id| self.graph.weights[id.0].columns()).sum();
        let name = draft.role(params, name);
        let comment = draft.comment(params, layout, "numbers");
        let source = Source::Own { params: params.to_vec(), layout, folded: None };
        draft.field(source, Field { name, kind: FieldKind::Vector { width }, comment, of_next: false })
    }

    pub(super) fn scratch_name(&self, index: usize) -> String {
        self.plan.scratch[index].name.clone()
    }
}

/// Whether the operation, or a later one, reads the buffer's value.
fn is_needed(draft: &Draft<'_>, list: &Fused, operation: &Operation, buffer: usize) -> bool {
    let rest = list.operations.iter().skip_while(|other| other.output != operation.output);
    let mut read = rest.flat_map(|other| &other.inputs);
    read.any(|value| draft.buffers.get(value) == Some(&buffer))
}
