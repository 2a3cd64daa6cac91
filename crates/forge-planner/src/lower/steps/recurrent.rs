//! Steps of recurrent layers: causal convolution and gated delta rule. Their state has a fixed size per slot.

use crate::fuse::list::{Convolve, DeltaRule, Fused, Operation};
use crate::lower::section::Draft;
use crate::lower::select::Select;
use crate::plan::regime::Regime;
use crate::plan::{BatchColumn, Condition, Operand, RecurrentState, RowsOf};
use forge_ir::{Diagnostic, Layout, ParamId};
use forge_kernels::{Spec, spec};

const SLOTS: (&str, Operand) = ("slots", Operand::Batch(BatchColumn::Slots));
const POSITIONS: (&str, Operand) = ("positions", Operand::Batch(BatchColumn::Positions));

impl Select<'_> {
    pub(crate) fn convolve(
        &mut self,
        draft: &mut Draft<'_>,
        list: &Fused,
        operation: &Operation,
        convolve: &Convolve,
        from: usize,
    ) {
        let width = list.widths[operation.output.0];
        let pitch = list.widths[operation.inputs[0].0];
        let Some(Convolution { rows, taps, conv_state, kept }) = self.convolution(draft, convolve, width)
        else {
            return;
        };
        let to = self.target(draft, list, operation, &operation.name);
        let activation = convolve.activation;
        let spec = Spec::Convolve(forge_ops::CausalConv { width, taps: rows, pitch, activation });
        let general = "y = causal depthwise convolution of the conv state and the row";
        let function = self.function("convolve", general, &[(draft.regimes(), spec)]);
        let sum = format!(
            "{} · the last {rows} rows of {}",
            draft.section.fields[taps].name,
            self.scratch_name(from)
        );
        let sum = activation.map_or(sum.clone(), |activation| format!("{}({sum})", activation.name()));
        let formula = format!("{} = {sum};  {kept} is updated", self.scratch_name(to));
        let arguments = [
            ("x", Operand::Scratch(from)),
            ("taps", Operand::Field(taps)),
            SLOTS,
            POSITIONS,
            ("conv_state", conv_state),
            ("y", Operand::Scratch(to)),
        ];
        draft.step(&operation.name, &formula, function, &arguments);
    }

    /// Weights of a convolution with this many channels as a field, and its conv state.
    fn convolution(
        &mut self,
        draft: &mut Draft<'_>,
        convolve: &Convolve,
        width: usize,
    ) -> Option<Convolution> {
        let taps: Vec<ParamId> = convolve.parts.iter().map(|part| part.0).collect();
        let first = convolve.parts.first()?.1;
        let rows = draft.body.conv_state(first)?.rows + 1;
        let alike = |(_, conv_state): &(ParamId, ParamId)| {
            draft.body.conv_state(*conv_state).is_some_and(|it| it.rows + 1 == rows)
        };
        if !convolve.parts.iter().all(alike) {
            let at = format!("{}.{}", draft.section.name, draft.param_name(first));
            let fault = Diagnostic::new(
                "F0501",
                format!("{at} has another length than other convolutions of the layer"),
            );
            self.faults.push(fault.note("forge needs the same number of taps for queries, keys and values"));
            return None;
        }
        let (name, kept) = match convolve.parts.len() {
            1 => (String::new(), draft.param_name(first)),
            _ => ("taps".to_owned(), "conv_state".to_owned()),
        };
        let conv_state =
            draft.recurrent_state(RecurrentState { name: kept.clone(), shape: vec![rows, width] });
        Some(Convolution { rows, taps: self.vector(draft, &taps, Layout::Rows, &name), conv_state, kept })
    }

    pub(crate) fn delta_rule(
        &mut self,
        draft: &mut Draft<'_>,
        list: &Fused,
        operation: &Operation,
        rule: &DeltaRule,
    ) {
        let Some(shape) = draft.body.recurrent_state(rule.recurrent_state).cloned() else { return };
        let forge_ir::RecurrentState { heads, keys, values } = shape;
        let key_heads = key_heads(list, operation, rule, &shape);
        let (scale, epsilon) = (rule.scale, rule.epsilon);
        let gated = rule.gated.map(|gated| gated.epsilon);
        let spec = forge_ops::DeltaRule { key_heads, heads, keys, values, scale, epsilon, gated };
        let (channels, pitch) = (spec.channels(), spec.inputs());
        let name = draft.param_name(rule.recurrent_state);
        let recurrent_state =
            draft.recurrent_state(RecurrentState { name, shape: vec![heads, values, keys] });
        let prologue =
            rule.prologue.as_ref().and_then(|convolve| self.convolution(draft, convolve, spec.channels()));
        let mut vector = |param| Operand::Field(self.vector(draft, &[param], Layout::Rows, ""));
        let (a_log, dt_bias) = (vector(rule.a_log), vector(rule.dt_bias));
        let gain = rule.gated.map(|gated| vector(gated.gain));
        let buffer = |value| Operand::Scratch(draft.buffers.get(value).copied().unwrap_or(self.stream));
        let inputs: Vec<Operand> = operation.inputs.iter().map(buffer).collect();
        let to = self.target(draft, list, operation, "heads");

        let names: &[&str] = match (rule.gated, &prologue) {
            (None, _) => &["query", "key", "value", "dt", "beta"],
            (Some(_), None) => &["convolved", "inputs"],
            (Some(_), Some(_)) => &["inputs"],
        };
        let mut arguments: Vec<(&str, Operand)> = names.iter().copied().zip(inputs).collect();
        arguments.extend([
            ("a_log", a_log),
            ("dt_bias", dt_bias),
            SLOTS,
            POSITIONS,
            ("recurrent_state", recurrent_state),
        ]);
        arguments.extend(gain.map(|gain| ("gain", gain)));
        arguments.push(("heads", Operand::Scratch(to)));

        let general_rule =
            "decay the state, update it with key and value (delta rule);  heads = scale · state · query";
        let through = if gated.is_some() { ", normalized and gated" } else { "" };
        let mut formula = format!(
            "Decay the state, update it with keys and values;  heads = {scale} · state · query{through}."
        );
        if heads > key_heads {
            formula += &format!(" {} value heads share a key head.", heads / key_heads);
        }
        let regimes = draft.regimes();
        let chunks = chunks(regimes, &spec);
        let function = match prologue {
            None => {
                let general = format!("{general_rule}{through}");
                self.function(&draft.function_name("delta_rule"), &general, &variants(regimes, spec, chunks))
            }
            Some(Convolution { rows, taps, conv_state, kept }) => {
                let convolution = [("taps", Operand::Field(taps)), ("conv_state", conv_state)];
                let activation = rule.prologue.as_ref().and_then(|convolve| convolve.activation);
                let convolve = forge_ops::CausalConv { width: channels, taps: rows, pitch, activation };
                self.rows_of_shared_slots(draft, (convolve, &convolution), (spec, &arguments));
                arguments.extend(convolution);
                formula = format!("Convolve the last {rows} rows, kept in {kept}. {formula}");
                let general = format!("the last rows are convolved; {general_rule}{through}");
                let spec = Spec::DeltaStep(forge_ops::DeltaStep { rule: spec, taps: rows });
                self.function("delta_step", &general, &[(regimes, spec)])
            }
        };
        draft.step(&operation.name, &formula, function, &arguments);
        if rule.prologue.is_some() {
            draft.set_last_condition(Condition::SeparateSlots);
        }
        if chunks.is_some()
            && let (Some(gated), Some(gain)) = (rule.gated, gain)
            && let Some((_, inputs)) = arguments.iter().find(|(name, _)| *name == "inputs")
        {
            let (heads_name, epsilon) = (self.scratch_name(to), gated.epsilon);
            let first = channels;
            let spec = Spec::GatedRmsNorm(forge_ops::GatedRmsNorm { heads, values, pitch, first, epsilon });
            let general = "heads = gain · heads / rms(heads) · silu(gates), per head";
            let function = self.function("gated_rms_norm", general, &[(MANY, spec)]);
            let formula = format!("{heads_name} = gain · {heads_name} / rms({heads_name}) · silu(gates)");
            let arguments = [("inputs", *inputs), ("gain", gain), ("heads", Operand::Scratch(to))];
            self.many(draft, "gated_rms_norm", &formula, function, &arguments);
        }
    }

    /// Convolves and updates states row after row, where the delta rule has one threadgroup for each row and head.
    fn rows_of_shared_slots(
        &mut self,
        draft: &mut Draft<'_>,
        (convolve, convolution): (forge_ops::CausalConv, &[(&'static str, Operand)]),
        (rule, arguments): (forge_ops::DeltaRule, &[(&'static str, Operand)]),
    ) {
        let Some((_, inputs)) = arguments.iter().find(|(name, _)| *name == "inputs") else { return };
        let several = &draft.regimes()[1..];
        let convolved = self.scratch("convolved", convolve.width, RowsOf::DecodeRow);
        let convolved = Operand::Scratch(convolved);
        let general = "y = causal depthwise convolution of the conv state and the row";
        let function =
            self.function(&draft.function_name("convolve"), general, &[(several, Spec::Convolve(convolve))]);
        let mut of_convolve = vec![("x", *inputs), SLOTS, POSITIONS, ("y", convolved)];
        of_convolve.extend(convolution);
        let formula = "Convolve all rows in order, since rows of one slot are in each other's convolution.";
        draft.step("shared_convolve", formula, function, &of_convolve);
        draft.set_last_condition(Condition::SharedSlots);

        let general = "decay the state, update it with key and value (delta rule), row after row";
        let function =
            self.function(&draft.function_name("delta_rule"), general, &[(several, Spec::DeltaRule(rule))]);
        let mut of_rule = vec![("convolved", convolved)];
        of_rule.extend(arguments);
        let formula = "Apply the delta rule to all rows in order, since rows of one slot continue its state.";
        draft.step("shared_delta_rule", formula, function, &of_rule);
        draft.set_last_condition(Condition::SharedSlots);
    }
}

/// Regimes with the chunked delta rule: rows of a slot are processed several at a time. The state is then
/// updated once per chunk instead of once per row.
const MANY: &[Regime] = &[Regime::Many];

/// The chunk size for these regimes: many rows, if queries and keys of 8 rows fit in threadgroup memory.
fn chunks(regimes: &[Regime], rule: &forge_ops::DeltaRule) -> Option<spec::DeltaChunksKernel> {
    if !regimes.contains(&Regime::Many) {
        return None;
    }
    spec::DeltaChunksKernel::of(*rule)
}

/// One kernel for all regimes, or a separate one for many rows.
fn variants(
    regimes: &'static [Regime],
    rule: forge_ops::DeltaRule,
    chunks: Option<spec::DeltaChunksKernel>,
) -> Vec<(&'static [Regime], Spec)> {
    let rule = Spec::DeltaRule(rule);
    match chunks {
        None => vec![(regimes, rule)],
        Some(chunks) => vec![(&[Regime::Few], rule), (MANY, Spec::DeltaChunks(chunks))],
    }
}

/// What a convolution needs.
struct Convolution {
    /// Taps: rows that a result depends on.
    rows: usize,
    /// Field of its weights.
    taps: usize,
    conv_state: Operand,
    /// Name of the conv state.
    kept: String,
}

/// Number of key heads, from the widths of the rule's inputs.
fn key_heads(
    list: &Fused,
    operation: &Operation,
    rule: &DeltaRule,
    shape: &forge_ir::RecurrentState,
) -> usize {
    let forge_ir::RecurrentState { heads, keys, values } = *shape;
    let width = |index: usize| list.widths[operation.inputs[index].0];
    let of_keys = match (rule.gated, &rule.prologue) {
        (None, _) => width(1),
        (Some(_), None) => (width(0) - heads * values) / 2,
        (Some(_), Some(_)) => (width(0) - 2 * heads * (values + 1)) / 2,
    };
    (of_keys / keys).max(1)
}
