//! Converts each kind of operation to steps: kernels, arguments and formula.

pub(crate) mod attend;
pub(crate) mod experts;
pub(crate) mod experts_grouped;
pub(crate) mod linear;
pub(crate) mod mla;
pub(crate) mod mla_expanded;
pub(crate) mod norms;
pub(crate) mod operands;
pub(crate) mod quantize;
pub(crate) mod recurrent;

use crate::fuse::list::{Function, Fused, Gain, Kind, Operation, UnaryOp};
use crate::lower::section::Draft;
use crate::lower::select::Select;
use crate::lower::steps::linear::unary_text;
use crate::plan::{BatchColumn, Condition, Operand};
use forge_ir::{Diagnostic, Layout, ParamId};
use forge_kernels::Spec;

impl Select<'_> {
    pub(crate) fn operation(&mut self, draft: &mut Draft<'_>, list: &Fused, operation: &Operation) {
        let from = operation.inputs.first().and_then(|value| draft.buffers.get(value)).copied();
        let from = from.unwrap_or(self.stream);
        match &operation.kind {
            Kind::Embed { table, scale, next_norm } => {
                self.embed(draft, list, operation, (*table, *scale, *next_norm));
            }
            Kind::PositionEmbedding { table } => self.position_embedding(draft, list, operation, *table),
            Kind::LayerNorm { gain, bias, epsilon } => {
                self.layer_norm(draft, list, operation, (*gain, *bias, *epsilon), from);
            }
            Kind::Norm { gain, parts, epsilon } => {
                self.norm(draft, list, operation, (*gain, *parts, *epsilon), from);
            }
            Kind::NormAdd(norm) => self.norm_add(draft, list, operation, norm, from),
            Kind::Linear(linear) => self.linear(draft, list, operation, linear, from),
            Kind::Slice { .. } => {
                draft.buffers.insert(operation.output, from);
            }
            Kind::Rope { heads, rope } => {
                let width = list.widths[operation.output.0];
                let to = self.target(draft, list, operation, &operation.name);
                let spec =
                    Spec::Rope(forge_ops::Rope { heads: *heads, width: width / heads, rope: rope.clone() });
                let function =
                    self.function("rope_heads", "y = rope(x), per head", &[(draft.regimes(), spec)]);
                let formula = format!("{} = rope({})", self.scratch_name(to), self.scratch_name(from));
                draft.step(
                    &operation.name,
                    &formula,
                    function,
                    &[
                        ("x", Operand::Scratch(from)),
                        ("positions", Operand::Batch(BatchColumn::Positions)),
                        ("y", Operand::Scratch(to)),
                    ],
                );
            }
            Kind::Append { cache } => self.append(draft, operation, *cache),
            Kind::RopeAppend(prepare) => self.rope_append(draft, list, operation, prepare, from),
            Kind::Attend(attend) => self.attend(draft, list, operation, attend, from),
            Kind::PerHeadLinear(each) => self.per_head_linear(draft, list, operation, each),
            Kind::MlaAppend(append) => self.mla_append(draft, list, operation, append),
            Kind::MlaAttention(attend) => self.mla_attention(draft, list, operation, attend),
            Kind::Convolve(convolve) => self.convolve(draft, list, operation, convolve, from),
            Kind::DeltaRule(rule) => self.delta_rule(draft, list, operation, rule),
            Kind::Route(choice) => self.route(draft, list, operation, choice, from),
            Kind::ExpertsInner(inner) => self.experts_inner(draft, list, operation, inner, from),
            Kind::ExpertsSum(sum) => self.experts_sum(draft, list, operation, sum, from),
            Kind::Unplanned => {
                let at = format!("{}.{}", draft.section.name, operation.name);
                let fault = Diagnostic::new("F0501", format!("{at}: unsupported operation"));
                self.faults.push(fault.note("docs/models.md lists the supported models"));
            }
            Kind::Elementwise(function) => {
                self.elementwise(draft, list, operation, *function, None);
            }
            Kind::ScaleBy { factor } => {
                let factor = self.vector(draft, &[*factor], Layout::Rows, "");
                self.elementwise(draft, list, operation, Function::ScaleBy, Some(factor));
            }
            // The result is already in the buffer where it was computed.
            Kind::StorePerLayerInputs => {
                draft.buffers.insert(operation.output, from);
            }
            Kind::PerLayerInput => self.slice_per_layer_inputs(draft, list, operation),
        }
    }

    fn embed(
        &mut self,
        draft: &mut Draft<'_>,
        list: &Fused,
        operation: &Operation,
        (table, scale, next_norm): (ParamId, f32, Option<Gain>),
    ) {
        let width = list.widths[operation.output.0];
        // The residual stream starts with the first table's rows; later tables are separate values.
        let is_embedding = |other: &&Operation| matches!(other.kind, Kind::Embed { .. });
        let to = match list.operations.iter().find(is_embedding) {
            Some(first) if first.output != operation.output => {
                self.target(draft, list, operation, &operation.name)
            }
            _ => self.stream,
        };
        let (field, format, rows) = self.matrix(draft, &[table], Layout::Rows, None, "");
        let squares = next_norm.map(|gain| self.squares(gain));
        let spec =
            Spec::Embed(forge_ops::Embed { format, vocabulary: rows, width, scale, adds: false, squares });
        let name = if next_norm.is_some() { "embed_one" } else { "embed" };
        let times = if scale == 1.0 { String::new() } else { format!(" · {scale}") };
        let mut formula = format!("{} = table[ids]{times}", self.scratch_name(to));
        let mut arguments = vec![
            ("table", Operand::Field(field)),
            ("ids", Operand::Batch(BatchColumn::Ids)),
            ("stream", Operand::Scratch(to)),
        ];
        draft.buffers.insert(operation.output, to);
        if let Some(gain) = next_norm {
            let (left, more) = self.squares_outputs(draft, operation.output, width, gain, "stream");
            formula += &left;
            arguments.extend(more);
        }
        let function = self.function(name, &formula, &[(draft.regimes(), spec)]);
        let name = if to == self.stream { "embed" } else { &operation.name };
        draft.step(name, &formula, function, &arguments);
    }

    /// Position embeddings are added in place, so they can only be added to the residual stream.
    fn position_embedding(
        &mut self,
        draft: &mut Draft<'_>,
        list: &Fused,
        operation: &Operation,
        table: ParamId,
    ) {
        let width = list.widths[operation.output.0];
        let (field, format, rows) = self.matrix(draft, &[table], Layout::Rows, None, "");
        let is_stream = draft.buffers.get(&operation.inputs[0]) == Some(&self.stream);
        if !is_stream || list.uses(operation.inputs[0]) != 1 {
            let at = format!("{}.{}", draft.section.name, operation.name);
            self.faults.push(
                Diagnostic::new(
                    "F0501",
                    format!("{at}: position embeddings are not added to the residual stream"),
                )
                .note("forge supports them only as the first addition to token embeddings"),
            );
        }
        let (scale, squares) = (1.0, None);
        let spec =
            Spec::Embed(forge_ops::Embed { format, vocabulary: rows, width, scale, adds: true, squares });
        let general = "stream += table[positions]";
        let function = self.function("place", general, &[(draft.regimes(), spec)]);
        draft.buffers.insert(operation.output, self.stream);
        let arguments = [
            ("table", Operand::Field(field)),
            ("ids", Operand::Batch(BatchColumn::Positions)),
            ("stream", Operand::Scratch(self.stream)),
        ];
        draft.step(&operation.name, general, function, &arguments);
    }

    /// Columns of the per-layer inputs; the first column differs between layers.
    fn slice_per_layer_inputs(&mut self, draft: &mut Draft<'_>, list: &Fused, operation: &Operation) {
        let width = list.widths[operation.output.0];
        let Some(per_layer_inputs) = self.read_per_layer_inputs(draft, operation, width) else { return };
        let to = self.target(draft, list, operation, &operation.name);
        let spec = Spec::SliceColumns(forge_ops::SliceColumns {
            width,
            of: self.plan.scratch[per_layer_inputs].width,
        });
        let function =
            self.function("slice_columns", "y = columns of x from first on", &[(draft.regimes(), spec)]);
        let formula = format!("{} = this layer's columns of the per-layer inputs", self.scratch_name(to));
        let arguments = [("x", Operand::Scratch(per_layer_inputs)), ("y", Operand::Scratch(to))];
        draft.step(&operation.name, &formula, function, &arguments);
    }

    /// Buffer of the per-layer inputs, from which an operation reads its layer's columns.
    fn read_per_layer_inputs(
        &mut self,
        draft: &mut Draft<'_>,
        operation: &Operation,
        columns: usize,
    ) -> Option<usize> {
        let per_layer_inputs = self.per_layer_inputs()?;
        if draft.body.part_params().count() > 1 {
            let at = format!("{}.{}", draft.section.name, operation.name);
            let message = format!("{at}: the layer reads more than one range of the per-layer inputs");
            self.faults.push(Diagnostic::new("F0506", message).note("forge supports one range per layer"));
        }
        draft.section.per_layer_input_columns = Some(columns);
        Some(per_layer_inputs)
    }

    /// An elementwise function of one or two values, or of a value and a scalar weight.
    fn elementwise(
        &mut self,
        draft: &mut Draft<'_>,
        list: &Fused,
        operation: &Operation,
        function: Function,
        factor: Option<usize>,
    ) {
        let width = list.widths[operation.output.0];
        let to = self.target(draft, list, operation, &operation.name);
        let operands: Vec<usize> = operation
            .inputs
            .iter()
            .map(|value| draft.buffers.get(value).copied().unwrap_or(self.stream))
            .collect();
        let names: Vec<String> = operands.iter().map(|operand| self.scratch_name(*operand)).collect();
        let (name, general, formula) = match function {
            Function::Unary(each) => {
                let (name, general) = match each {
                    UnaryOp::Activate(_) => ("activate", "y = activation(a)"),
                    UnaryOp::Softcap(_) => ("cap", "y = cap(a, c), which is c · tanh(a / c)"),
                    UnaryOp::Scale(_) => ("scale", "y = c · a"),
                };
                (name, general, unary_text(each, &names[0]))
            }
            Function::Multiply => ("multiply", "y = a · b", format!("{} · {}", names[0], names[1])),
            Function::ScaleRows => {
                ("scale_rows", "y = a · b, a scalar b for each row", format!("{} · {}", names[0], names[1]))
            }
            Function::ScaleBy => {
                let factor = factor.map_or("1", |field| &draft.section.fields[field].name);
                ("scale_by", "y = b · a, b a scalar", format!("{factor} · {}", names[0]))
            }
            Function::Add => ("add", "y = a + b", format!("{} + {}", names[0], names[1])),
        };
        let spec = Spec::Elementwise(forge_ops::Elementwise { function, width });
        let function = self.function(name, general, &[(draft.regimes(), spec)]);
        let mut arguments: Vec<(&str, Operand)> = ["a", "b"]
            .into_iter()
            .zip(&operands)
            .map(|(name, buffer)| (name, Operand::Scratch(*buffer)))
            .collect();
        arguments.extend(factor.map(|factor| ("b", Operand::Field(factor))));
        arguments.push(("y", Operand::Scratch(to)));
        let formula = format!("{} = {formula}", self.scratch_name(to));
        draft.step(&operation.name, &formula, function, &arguments);
    }

    /// Adds argmax after the head.
    pub(crate) fn argmax(&mut self, draft: &mut Draft<'_>, list: &Fused) {
        let Some(last) = list.operations.last() else { return };
        let best =
            matches!(&last.kind, Kind::Linear(linear) if linear.ending == crate::fuse::list::Epilogue::Best);
        let candidates = self.plan.scratch.iter().position(|scratch| scratch.name == "candidates");
        let (name, general, spec, from) = match candidates.filter(|_| best) {
            Some(buffer) => {
                let candidates = self.plan.scratch[buffer].width / 2;
                let spec = Spec::ArgmaxCombine(forge_ops::ArgmaxCombine { candidates });
                ("argmax_combine", "ids = argmax of the candidates", spec, ("candidates", buffer))
            }
            None => {
                let Some(logits) = draft.buffers.get(&last.output).copied() else { return };
                let spec = Spec::Argmax(forge_ops::Argmax { vocabulary: self.graph.model.vocabulary });
                ("argmax", "ids = argmax(logits)", spec, ("logits", logits))
            }
        };
        let function = self.function(name, general, &[(draft.regimes(), spec)]);
        let arguments = [(from.0, Operand::Scratch(from.1)), ("ids", Operand::Batch(BatchColumn::Next))];
        draft.step(name, "next = the argmax token.", function, &arguments);
        draft.set_last_condition(Condition::Greedy);
    }

    /// Adds sampling, the alternative to argmax.
    pub(crate) fn sample(&mut self, draft: &mut Draft<'_>, list: &Fused) {
        let Some(last) = list.operations.last() else { return };
        let Some(logits) = draft.buffers.get(&last.output).copied() else { return };
        let spec = Spec::Sample(forge_ops::Sample { vocabulary: self.graph.model.vocabulary });
        let general = "ids = a token sampled from logits";
        let function = self.function("sample", general, &[(draft.regimes(), spec)]);
        let arguments = [
            ("logits", Operand::Scratch(logits)),
            ("draws", Operand::Batch(BatchColumn::Draws)),
            ("ids", Operand::Batch(BatchColumn::Next)),
        ];
        draft.step("sample", "next = a sampled token.", function, &arguments);
        draft.set_last_condition(Condition::Drawn);
    }
}
