//! A section under construction: its fields, its steps, and the buffer of each value.

use crate::fuse::list::Value;
use crate::lower::reasons::{JOINS, SHARED};
use crate::lower::steps::quantize::Quantized;
use crate::plan::regime::{Regime, Schedule};
use crate::plan::{Argument, Condition, Field, Operand, RecurrentState, Section, Step};
use forge_ir::{Apply, Body, Layout, ParamId, ParamKind, WeightId};
use std::collections::BTreeMap;

/// Position of a section in the model. It determines parameter names and the section's input.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Place {
    Prologue,
    Layer(usize),
    Epilogue,
}

impl Place {
    /// Prefix of its weight names.
    pub(crate) fn prefix(self) -> String {
        match self {
            Place::Layer(layer) => format!("layers.{layer}."),
            Place::Prologue | Place::Epilogue => String::new(),
        }
    }
}

/// What an application binds to a field.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Source {
    /// Weights of the application itself, with an optional gain folded in.
    Own { params: Vec<ParamId>, layout: Layout, folded: Option<ParamId> },
    /// Gain of the first norm of the next application.
    NextGain,
}

/// A section under construction.
pub(crate) struct Draft<'a> {
    pub(crate) place: Place,
    pub(crate) body: &'a Body,
    pub(crate) apply: &'a Apply,
    pub(crate) section: Section,
    /// Source of each field.
    pub(crate) sources: Vec<Source>,
    /// Schedule whose steps are being added.
    pub(crate) schedule: Schedule,
    /// Scratch buffer of each value.
    pub(crate) buffers: BTreeMap<Value, usize>,
    /// Scratch buffer of each value multiplied by the gain of the deferred norm that reads it.
    pub(crate) gained: BTreeMap<Value, usize>,
    /// The value of each scratch buffer that was quantized last for a decode batch.
    pub(crate) quantized: BTreeMap<usize, (Value, Quantized)>,
}

impl Draft<'_> {
    pub(crate) fn step(&mut self, name: &str, formula: &str, function: usize, arguments: &[(&str, Operand)]) {
        let argument = |(parameter, operand): &(&str, Operand)| Argument {
            parameter: (*parameter).to_owned(),
            operand: *operand,
        };
        let step = Step {
            name: name.to_owned(),
            formula: formula.to_owned(),
            reason: None,
            function,
            arguments: arguments.iter().map(argument).collect(),
            condition: Condition::Always,
            of_tile: false,
            waits: false,
            waits_for: Vec::new(),
        };
        self.section.steps_mut(self.schedule).push(step);
    }

    /// Sets the condition of the last step.
    pub(crate) fn set_last_condition(&mut self, condition: Condition) {
        if let Some(step) = self.section.steps_mut(self.schedule).last_mut() {
            step.condition = condition;
        }
    }

    /// Sets the reason of the steps from `first` on.
    pub(crate) fn give_reasons(&mut self, first: usize, reason: Option<String>) {
        for step in &mut self.section.steps_mut(self.schedule)[first..] {
            step.reason = match step.condition {
                Condition::Split => Some(JOINS.to_owned()),
                Condition::SharedSlots => Some(SHARED.to_owned()),
                _ => reason.clone(),
            };
        }
    }

    /// Index of the field with this source; adds the field if there is none.
    pub(crate) fn field(&mut self, source: Source, field: Field) -> usize {
        if let Some(index) = self.sources.iter().position(|other| *other == source) {
            return index;
        }
        self.sources.push(source);
        self.section.fields.push(field);
        self.section.fields.len() - 1
    }

    /// The recurrent state with this name; adds it if there is none.
    pub(crate) fn recurrent_state(&mut self, recurrent_state: RecurrentState) -> Operand {
        let recurrent_states = &mut self.section.recurrent_states;
        let index = recurrent_states
            .iter()
            .position(|other| other.name == recurrent_state.name)
            .unwrap_or_else(|| {
                recurrent_states.push(recurrent_state);
                recurrent_states.len() - 1
            });
        Operand::RecurrentState(index)
    }

    /// Whether steps of the decode schedule are being added.
    pub(crate) fn is_decode(&self) -> bool {
        self.schedule == Schedule::Decode
    }

    /// Regimes for which this section's steps need kernels.
    pub(crate) fn regimes(&self) -> &'static [Regime] {
        match (self.schedule, self.place) {
            (Schedule::Decode, _) => {
                &[Regime::One, Regime::Two, Regime::Four, Regime::Eight, Regime::Sixteen]
            }
            (Schedule::Batch, Place::Epilogue) => &[Regime::Few],
            (Schedule::Batch, _) => &[Regime::Few, Regime::Many],
        }
    }

    /// Name of a step's function. Functions of decode steps end in `_decode`.
    pub(crate) fn function_name(&self, name: &str) -> String {
        match self.schedule {
            Schedule::Decode => format!("{name}_decode"),
            Schedule::Batch => name.to_owned(),
        }
    }

    pub(crate) fn param_name(&self, param: ParamId) -> String {
        self.body.params.get(param.0).map(|param| param.name.clone()).unwrap_or_default()
    }

    /// Name of a weight in the weight file and in generated code.
    pub(crate) fn role(&self, params: &[ParamId], name: &str) -> String {
        role(self.place, self.body, params, name)
    }

    pub(crate) fn weights(&self, params: &[ParamId]) -> Vec<WeightId> {
        params.iter().filter_map(|param| self.apply.weight(self.body, *param)).collect()
    }

    /// The shape of a weight.
    pub(crate) fn shape(&self, param: ParamId) -> &[usize] {
        match self.body.params.get(param.0).map(|param| &param.kind) {
            Some(ParamKind::Weight(shape)) => shape,
            _ => &[1],
        }
    }

    /// `2048 query, 1024 key, 1024 value rows`, or nothing for a single part.
    pub(crate) fn comment(&self, params: &[ParamId], layout: Layout, unit: &str) -> String {
        if params.len() < 2 {
            return String::new();
        }
        let size = |param: &ParamId| self.shape(*param)[0];
        match layout {
            Layout::Blocks => {
                let parts: Vec<String> = params.iter().map(|param| self.param_name(*param)).collect();
                format!("{} in blocks of columns", parts.join(", "))
            }
            Layout::Rows => {
                let parts: Vec<String> = params
                    .iter()
                    .map(|param| format!("{} {}", size(param), self.param_name(*param)))
                    .collect();
                format!("{} {unit}", parts.join(", "))
            }
            Layout::Alternate => {
                let pair = |pair: &[ParamId]| {
                    let names: Vec<String> = pair.iter().map(|param| self.param_name(*param)).collect();
                    names.join(" and ")
                };
                let pairs: Vec<String> = params.chunks(2).map(pair).collect();
                format!("{} {unit} alternate", pairs.join(", "))
            }
        }
    }
}

/// Name of a weight of a body at this place.
pub(crate) fn role(place: Place, body: &Body, params: &[ParamId], name: &str) -> String {
    let param_name =
        |param: &ParamId| body.params.get(param.0).map(|param| param.name.clone()).unwrap_or_default();
    match (place, params) {
        (Place::Prologue, [param]) if param_name(param) == "table" => body.name.clone(),
        (Place::Epilogue, [param]) if param_name(param) == "gain" => "final_gain".to_owned(),
        (_, [param]) if name.is_empty() => param_name(param),
        _ => name.to_owned(),
    }
}
