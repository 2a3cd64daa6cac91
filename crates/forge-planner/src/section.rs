//! A section under construction: its fields, its steps, and which buffer holds which value.

use crate::fused::{Fused, Kind, Value};
use crate::plan::{Argument, Condition, Field, Operand, Section, Step};
use forge_ir::{Apply, Body, Layout, Op, ParamId, ParamKind, WeightId};
use std::collections::BTreeMap;

/// Where a section stands, which decides what its parameters are called and what its input is.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Place {
    Prologue,
    Layer(usize),
    Epilogue,
}

/// A section under construction.
pub(crate) struct Draft<'a> {
    pub(crate) place: Place,
    pub(crate) body: &'a Body,
    pub(crate) apply: &'a Apply,
    pub(crate) section: Section,
    /// The scratch buffer of each value.
    pub(crate) buffers: BTreeMap<Value, usize>,
}

/// The parameters behind each field of a section, in the order in which [`Select::section`] makes them.
pub(crate) fn field_params(list: &Fused) -> Vec<(Vec<ParamId>, Layout)> {
    let mut fields = Vec::new();
    for operation in &list.operations {
        match &operation.kind {
            Kind::Node(Op::Embed { table: param } | Op::RmsNorm { gain: param, .. }) => {
                fields.push((vec![*param], Layout::Rows));
            }
            Kind::Project { parts, layout, .. } => {
                fields.push((parts.iter().map(|part| part.0).collect(), *layout));
                let biases: Vec<ParamId> = parts.iter().filter_map(|part| part.1).collect();
                if !biases.is_empty() {
                    fields.push((biases, *layout));
                }
            }
            _ => {}
        }
    }
    fields
}

impl Draft<'_> {
    pub(crate) fn step(&mut self, name: &str, formula: &str, function: usize, arguments: &[(&str, Operand)]) {
        let argument = |(parameter, operand): &(&str, Operand)| Argument {
            parameter: (*parameter).to_owned(),
            operand: *operand,
        };
        self.section.steps.push(Step {
            name: name.to_owned(),
            formula: formula.to_owned(),
            function,
            arguments: arguments.iter().map(argument).collect(),
            condition: Condition::Always,
            waits: false,
            waits_for: Vec::new(),
        });
    }

    pub(crate) fn field(&mut self, field: Field) -> usize {
        self.section.fields.push(field);
        self.section.fields.len() - 1
    }

    pub(crate) fn param_name(&self, param: ParamId) -> String {
        self.body.params.get(param.0).map(|param| param.name.clone()).unwrap_or_default()
    }

    /// What a weight is called in the weight file and in generated code.
    pub(crate) fn role(&self, params: &[ParamId], name: &str) -> String {
        match (self.place, params) {
            (Place::Prologue, _) => self.body.name.clone(),
            (Place::Epilogue, [param]) if self.param_name(*param) == "gain" => "final_gain".to_owned(),
            (_, [param]) if name.is_empty() => self.param_name(*param),
            _ => name.to_owned(),
        }
    }

    pub(crate) fn weights(&self, params: &[ParamId]) -> Vec<WeightId> {
        params.iter().filter_map(|param| self.apply.weight(self.body, *param)).collect()
    }

    /// `2048 query, 1024 key, 1024 value rows`, or nothing for a single part.
    pub(crate) fn comment(&self, params: &[ParamId], layout: Layout, unit: &str) -> String {
        if params.len() < 2 {
            return String::new();
        }
        let size = |param: &ParamId| match self.body.params.get(param.0).map(|param| &param.kind) {
            Some(ParamKind::Weight(shape)) => shape.first().copied().unwrap_or(0),
            _ => 0,
        };
        match layout {
            Layout::Rows => {
                let parts: Vec<String> = params
                    .iter()
                    .map(|param| format!("{} {}", size(param), self.param_name(*param)))
                    .collect();
                format!("{} {unit}", parts.join(", "))
            }
            Layout::Alternate => {
                let parts: Vec<String> = params.iter().map(|param| self.param_name(*param)).collect();
                format!("{} {unit} alternate", parts.join(" and "))
            }
        }
    }
}
