//! Steps of norms: separate, or added to the residual stream.

use crate::fuse::list::{Fused, Gain, Kind, NormAdd, Operation, Value};
use crate::lower::section::{Draft, Place};
use crate::lower::select::Select;
use crate::plan::regime::Schedule;
use crate::plan::{BatchColumn, Operand};
use forge_ir::{Layout, ParamId};
use forge_kernels::Spec;

impl Select<'_> {
    pub(crate) fn layer_norm(
        &mut self,
        draft: &mut Draft<'_>,
        list: &Fused,
        operation: &Operation,
        (gain, bias, epsilon): (ParamId, Option<ParamId>, f32),
        from: usize,
    ) {
        let width = list.widths[operation.output.0];
        let gather = gathers(draft, operation);
        let gain = self.vector(draft, &[gain], Layout::Rows, "");
        let bias = bias.map(|bias| self.vector(draft, &[bias], Layout::Rows, ""));
        let name = if draft.place == Place::Epilogue { "final_normed" } else { "normed" };
        let to = self.target(draft, list, operation, name);
        let spec = Spec::LayerNorm(forge_ops::LayerNorm { width, epsilon, bias: bias.is_some(), gather });
        let plus = if bias.is_some() { " + bias" } else { "" };
        let (name, general) = match gather {
            true => ("final_norm", format!("y = gain · layer_norm(x[wanted]){plus}")),
            false => ("norm", format!("y = gain · layer_norm(x){plus}")),
        };
        let function = self.function(name, &general, &[(draft.regimes(), spec)]);
        let field = |field: usize| draft.section.fields[field].name.clone();
        let plus = bias.map_or_else(String::new, |bias| format!(" + {}", field(bias)));
        let (from_name, to_name) = (self.scratch_name(from), self.scratch_name(to));
        let mut formula = format!("{to_name} = {} · layer_norm({from_name}){plus}", field(gain));
        if gather {
            formula += WANTED;
        }
        let mut arguments =
            vec![("x", Operand::Scratch(from)), ("gain", Operand::Field(gain)), ("y", Operand::Scratch(to))];
        arguments.extend(bias.map(|bias| ("bias", Operand::Field(bias))));
        if gather {
            arguments.push(("wanted", Operand::Batch(BatchColumn::Wanted)));
        }
        draft.step(&operation.name, &formula, function, &arguments);
    }

    pub(crate) fn norm(
        &mut self,
        draft: &mut Draft<'_>,
        list: &Fused,
        operation: &Operation,
        (gain, parts, epsilon): (Option<ParamId>, usize, f32),
        from: usize,
    ) {
        let width = list.widths[operation.output.0];
        let gather = gathers(draft, operation);
        let field = gain.map(|gain| self.vector(draft, &[gain], Layout::Rows, ""));
        // Normalized queries are still needed when keys are normalized, and one norm of the stream when there
        // is another. They need separate buffers.
        let is_for_attention = list
            .readers(operation.output)
            .any(|reader| matches!(reader.kind, Kind::Rope { .. } | Kind::Append { .. } | Kind::Attend(_)));
        let is_alone = !is_for_attention && !another_is_needed(list, operation);
        let to = match (draft.place, parts) {
            (Place::Epilogue, _) => self.target(draft, list, operation, "final_normed"),
            (_, 1) if is_alone => self.target(draft, list, operation, "normed"),
            _ => self.target(draft, list, operation, &operation.name),
        };
        // The input may be the first columns of a wider row.
        let pitch = self.columns(draft, list, operation.inputs[0]).pitch;
        let spec = Spec::RmsNorm(forge_ops::RmsNorm {
            width: width / parts,
            parts,
            epsilon,
            gain: gain.is_some(),
            gather,
            pitch: (pitch > width).then_some(pitch),
        });
        let times = if gain.is_some() { "gain · " } else { "" };
        let (name, general) = match (gather, parts) {
            (true, _) => ("final_norm", format!("y = {times}x[wanted] / rms(x[wanted])")),
            (false, 1) => ("norm", format!("y = {times}x / rms(x)")),
            (false, _) => ("head_norm", format!("y = {times}x / rms(x), per head")),
        };
        let function = self.function(name, &general, &[(draft.regimes(), spec)]);
        let times =
            field.map_or_else(String::new, |field| format!("{} · ", draft.section.fields[field].name));
        let to_name = self.scratch_name(to);
        let from_name =
            self.columns_name(draft, list, operation.inputs[0]).unwrap_or_else(|| self.scratch_name(from));
        let mut formula = format!("{to_name} = {times}{from_name} / rms({from_name})");
        if gather {
            formula += WANTED;
        } else if parts > 1 {
            formula += ", per head";
        }
        let mut arguments = vec![("x", Operand::Scratch(from)), ("y", Operand::Scratch(to))];
        arguments.extend(field.map(|field| ("gain", Operand::Field(field))));
        if gather {
            arguments.push(("wanted", Operand::Batch(BatchColumn::Wanted)));
        }
        draft.step(&operation.name, &formula, function, &arguments);
    }

    /// Adds the norm of a branch to the residual stream, or to a sum that becomes it, in place.
    pub(crate) fn norm_add(
        &mut self,
        draft: &mut Draft<'_>,
        list: &Fused,
        operation: &Operation,
        norm: &NormAdd,
        from: usize,
    ) {
        let width = list.widths[operation.output.0];
        let stream = self.in_place(draft, list, operation);
        let [gain, factor] = [norm.gain, norm.factor]
            .map(|param| param.map(|param| self.vector(draft, &[param], Layout::Rows, "")));
        let spec = Spec::NormAdd(forge_ops::NormAdd {
            width,
            epsilon: norm.epsilon,
            gain: gain.is_some(),
            factor: factor.is_some(),
            squares: norm.next_norm.map(|gain| self.squares(gain)),
        });
        let left = match norm.next_norm {
            None => "",
            Some(Gain::Folded) => "; squares_out = Σ stream²",
            Some(_) => "; gained = gain · stream; squares_out = Σ stream²",
        };
        let general = match (gain.is_some(), factor.is_some()) {
            (true, true) => "stream = factor · (stream + norm_gain · x / rms(x))",
            (true, false) => "stream += norm_gain · x / rms(x)",
            (false, true) => "stream = factor · (stream + x / rms(x))",
            (false, false) => "stream += x / rms(x)",
        };
        let name = if norm.next_norm.is_some() { "norm_add_one" } else { "norm_add" };
        let function = self.function(name, &format!("{general}{left}"), &[(draft.regimes(), spec)]);
        let name_of = |field: usize| draft.section.fields[field].name.clone();
        let (x, y) = (self.scratch_name(from), self.scratch_name(stream));
        let times = gain.map_or_else(String::new, |gain| format!("{} · ", name_of(gain)));
        let mut formula = match factor {
            Some(factor) => format!("{y} = {} · ({y} + {times}{x} / rms({x}))", name_of(factor)),
            None => format!("{y} += {times}{x} / rms({x})"),
        };
        let mut arguments = vec![("x", Operand::Scratch(from)), ("stream", Operand::Scratch(stream))];
        arguments.extend(gain.map(|gain| ("norm_gain", Operand::Field(gain))));
        arguments.extend(factor.map(|factor| ("factor", Operand::Field(factor))));
        if let Some(gain) = norm.next_norm {
            let (words, more) = self.squares_outputs(draft, operation.output, width, gain, &y);
            formula += &words;
            arguments.extend(more);
        }
        draft.step(&operation.name, &formula, function, &arguments);
    }
}

/// Suffix of a norm's formula if it reads only some rows.
const WANTED: &str = ", for the rows that need logits";

/// Whether the operation, or a later one, reads an earlier norm of the row.
fn another_is_needed(list: &Fused, operation: &Operation) -> bool {
    let place = list.definition(operation.output).unwrap_or_default();
    let (before, rest) = list.operations.split_at(place);
    let norms = before.iter().filter(|other| matches!(other.kind, Kind::Norm { parts: 1, .. }));
    norms.into_iter().any(|norm| rest.iter().any(|other| other.inputs.contains(&norm.output)))
}

/// Whether a norm gathers the rows that need logits from the rows of the pass.
fn gathers(draft: &Draft<'_>, operation: &Operation) -> bool {
    draft.place == Place::Epilogue && draft.schedule == Schedule::Batch && operation.inputs == [Value::INPUT]
}
