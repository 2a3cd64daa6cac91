//! Convolutions and delta rules as steps. What they remember of a slot has the same size however long its text is.

use crate::fused::{DeltaRule, Fused, Operation};
use crate::plan::{BatchColumn, Memory, Operand};
use crate::section::Draft;
use crate::select::Select;
use forge_ir::{Layout, ParamId};
use forge_kernels::{Spec, spec};

const SLOTS: (&str, Operand) = ("slots", Operand::Batch(BatchColumn::Slots));
const POSITIONS: (&str, Operand) = ("positions", Operand::Batch(BatchColumn::Positions));

impl Select<'_> {
    pub(super) fn convolve(
        &mut self,
        draft: &mut Draft<'_>,
        list: &Fused,
        operation: &Operation,
        (taps, tail): (ParamId, ParamId),
        from: usize,
    ) {
        let width = list.widths[operation.output.0];
        let Some(rows) = draft.body.tail(tail).map(|tail| tail.rows + 1) else { return };
        let name = draft.param_name(tail);
        let memory = draft.memory(Memory { name: name.clone(), shape: vec![rows, width] });
        let taps = self.vector(draft, &[taps], Layout::Rows, "");
        let to = self.target(draft, list, operation, &operation.name);
        let spec = Spec::Convolve(spec::Convolve { width, taps: rows });
        let general =
            "y = each channel's last values, those of the slot's tail and the row's own, times its taps";
        let function = self.function("convolve", general, &[(draft.regimes(), spec)]);
        let formula = format!(
            "{} = {} · the last {rows} rows of {};  {name} keeps them",
            self.scratch_name(to),
            draft.section.fields[taps].name,
            self.scratch_name(from),
        );
        let arguments = [
            ("x", Operand::Scratch(from)),
            ("taps", Operand::Field(taps)),
            SLOTS,
            POSITIONS,
            ("tail", memory),
            ("y", Operand::Scratch(to)),
        ];
        draft.step(&operation.name, &formula, function, &arguments);
    }

    pub(super) fn delta_rule(
        &mut self,
        draft: &mut Draft<'_>,
        list: &Fused,
        operation: &Operation,
        rule: &DeltaRule,
    ) {
        let Some(shape) = draft.body.memory(rule.memory).cloned() else { return };
        let forge_ir::Memory { heads, keys, values } = shape;
        let name = draft.param_name(rule.memory);
        let memory = draft.memory(Memory { name, shape: vec![heads, values, keys] });
        let [rate, bias] = [rule.rate, rule.bias].map(|param| self.vector(draft, &[param], Layout::Rows, ""));
        let inputs: Vec<usize> = operation
            .inputs
            .iter()
            .map(|value| draft.buffers.get(value).copied().unwrap_or(self.stream))
            .collect();
        let to = self.target(draft, list, operation, "heads");
        let key_heads = (list.widths[operation.inputs[1].0] / keys).max(1);
        let (scale, epsilon) = (rule.scale, rule.epsilon);
        let spec = Spec::DeltaRule(spec::DeltaRule { key_heads, heads, keys, values, scale, epsilon });
        let general =
            "memories decay, learn by key what they do not know of value;  heads = scale · memory · query";
        let function = self.function("delta_rule", general, &[(draft.regimes(), spec)]);
        let names = ["query", "key", "value", "time", "strength"].into_iter();
        let mut arguments: Vec<(&str, Operand)> =
            names.zip(inputs).map(|(name, buffer)| (name, Operand::Scratch(buffer))).collect();
        arguments.extend([
            ("rate", Operand::Field(rate)),
            ("bias", Operand::Field(bias)),
            SLOTS,
            POSITIONS,
            ("memory", memory),
            ("heads", Operand::Scratch(to)),
        ]);
        let mut formula = format!(
            "Memories decay, learn values by keys, and are asked;  heads = {scale} · memory · query."
        );
        if heads > key_heads {
            formula += &format!(" {} value heads share a key head.", heads / key_heads);
        }
        draft.step(&operation.name, &formula, function, &arguments);
    }
}
