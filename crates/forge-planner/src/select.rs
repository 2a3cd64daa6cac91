//! Fused operations become steps: kernels are chosen and rendered, weights packed, scratch buffers named.

use crate::fused::{Fused, Value};
use crate::options::Options;
use crate::plan::{
    Application, FEW, FieldKind, Function, MAX_SPLITS, Operand, Plan, Regime, Scratch, Section, Variant,
};
use crate::section::{Draft, Place, field_params};
use forge_ir::{Apply, BodyId, Diagnostic, Format, Graph, Packed, WeightId};
use forge_kernels::Spec;
use std::collections::BTreeMap;

/// A plan whose scratch has no offsets and whose steps do not wait yet.
pub(crate) fn select(graph: &Graph, options: &Options, lists: &[Fused]) -> Result<Plan, Vec<Diagnostic>> {
    let plan = Plan {
        model: graph.model.clone(),
        weights: Vec::new(),
        cache: cache_format(graph, options)?,
        context: context(graph, options)?,
        slots: options.slots.max(1),
        chunk: options.chunk.max(FEW + 1),
        scratch: Vec::new(),
        arena_bytes: 0,
        arena_floor: 0,
        kernels: Vec::new(),
        functions: Vec::new(),
        sections: Vec::new(),
        applications: Vec::new(),
    };
    let mut select = Select { graph, options, plan, faults: Vec::new() };
    let stream = select.scratch("stream", graph.model.hidden, select.plan.chunk);
    // Layers share a section if they share a body and their matrices are stored in the same formats.
    let mut section_of: BTreeMap<(BodyId, Vec<Format>), usize> = BTreeMap::new();
    for (index, apply) in graph.applications().enumerate() {
        let place = match index {
            0 => Place::Prologue,
            _ if index <= graph.layers.len() => Place::Layer(index - 1),
            _ => Place::Epilogue,
        };
        let list = &lists[apply.body.0];
        let formats = select.formats(apply, list);
        let section = *section_of
            .entry((apply.body, formats))
            .or_insert_with(|| select.section(place, list, apply, stream));
        select.bind(section, place, apply, list);
    }
    select.plan.scratch[stream].lifetimes.clear();
    if select.faults.is_empty() { Ok(select.plan) } else { Err(select.faults) }
}

fn cache_format(graph: &Graph, options: &Options) -> Result<Format, Vec<Diagnostic>> {
    let exact = match options.quant {
        crate::Quant::To(format) => format == Format::F32,
        crate::Quant::Keep => graph
            .weights
            .iter()
            .filter(|weight| weight.shape.len() == 2)
            .all(|weight| weight.format == Format::F32),
    };
    match options.cache {
        None if exact => Ok(Format::F32),
        None => Ok(Format::F16),
        Some(format @ (Format::F32 | Format::F16)) => Ok(format),
        Some(format) => Err(vec![
            Diagnostic::new("F0502", format!("keys and values cannot be cached as {format}"))
                .note("the cache is kept as f32 or f16: --kv f16"),
        ]),
    }
}

fn context(graph: &Graph, options: &Options) -> Result<usize, Vec<Diagnostic>> {
    let made_for = graph.model.context;
    match options.max_context {
        Some(0) => Err(vec![Diagnostic::new("F0503", "a context of 0 positions holds nothing")]),
        Some(asked) if asked > made_for => Err(vec![
            Diagnostic::new(
                "F0503",
                format!("the model was made for {made_for} positions, and {asked} were asked for"),
            )
            .note("past the positions it was made for, a model gives wrong text: --max-context at most this"),
        ]),
        // Kernels find a split's share of a cache as position * split, in 32 bits.
        None | Some(_) if options.max_context.unwrap_or(made_for) > LONGEST_CONTEXT => Err(vec![
            Diagnostic::new(
                "F0503",
                format!("a context of {made_for} positions is beyond what kernels count"),
            )
            .note(format!("choose a shorter one: --max-context {LONGEST_CONTEXT}")),
        ]),
        Some(asked) => Ok(asked),
        None => Ok(made_for),
    }
}

/// The most positions whose products with the number of splits fit 32 bits.
const LONGEST_CONTEXT: usize = u32::MAX as usize / MAX_SPLITS;

pub(crate) struct Select<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) options: &'a Options,
    pub(crate) plan: Plan,
    pub(crate) faults: Vec<Diagnostic>,
}

impl<'a> Select<'a> {
    fn section(&mut self, place: Place, list: &Fused, apply: &'a Apply, stream: usize) -> usize {
        let body = self.graph.body(apply);
        let index = self.plan.sections.len();
        let name =
            self.unused(&body.name, |plan, name| plan.sections.iter().any(|section| section.name == *name));
        let section = Section { name, fields: Vec::new(), state: None, steps: Vec::new() };
        let buffers = BTreeMap::from([(Value(0), stream)]);
        let mut draft = Draft { place, body, apply, section, buffers };
        for operation in &list.operations {
            self.operation(&mut draft, list, operation, stream);
        }
        if place == Place::Epilogue {
            self.argmax(&mut draft, list);
        }
        for (step_index, step) in draft.section.steps.iter().enumerate() {
            for argument in &step.arguments {
                if let Operand::Scratch(scratch) = argument.operand {
                    let written = self.writes(step.function, &argument.parameter);
                    self.alive(scratch, index, step_index, written);
                }
            }
        }
        // The host reads the head's results after the pass.
        if let (Place::Epilogue, Some(last)) = (place, draft.section.steps.len().checked_sub(1)) {
            for name in ["logits", "next"] {
                if let Some(scratch) = self.plan.scratch.iter().position(|scratch| scratch.name == name) {
                    self.alive(scratch, index, last, false);
                }
            }
        }
        self.plan.sections.push(draft.section);
        index
    }

    /// A buffer that is written begins a life; one that is read lives on until then.
    fn alive(&mut self, scratch: usize, section: usize, step: usize, written: bool) {
        let lifetimes = &mut self.plan.scratch[scratch].lifetimes;
        match lifetimes.iter_mut().rev().find(|lifetime| lifetime.0 == section) {
            Some(lifetime) if !written => lifetime.2 = step,
            _ => lifetimes.push((section, step, step)),
        }
    }

    /// Whether any kernel of a function writes a parameter.
    fn writes(&self, function: usize, parameter: &str) -> bool {
        let kernels =
            self.plan.functions[function].variants.iter().map(|variant| &self.plan.kernels[variant.kernel]);
        kernels
            .flat_map(|kernel| &kernel.decl.buffers)
            .any(|buffer| buffer.name == parameter && buffer.written)
    }

    /// The formats of an application's matrices.
    fn formats(&self, apply: &Apply, list: &Fused) -> Vec<Format> {
        let body = self.graph.body(apply);
        let fields = field_params(list).into_iter();
        fields
            .map(|(params, _)| {
                let parts: Vec<WeightId> =
                    params.iter().filter_map(|param| apply.weight(body, *param)).collect();
                self.options.matrix_format(self.graph, &parts)
            })
            .collect()
    }

    /// The scratch buffer of that name, made if there is none of that width.
    pub(crate) fn scratch(&mut self, name: &str, width: usize, rows: usize) -> usize {
        let same = |scratch: &Scratch| {
            let base = scratch.name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '_');
            base == name && scratch.width == width && scratch.rows == rows
        };
        if let Some(index) = self.plan.scratch.iter().position(same) {
            return index;
        }
        let name = self.unused(name, |plan, name| plan.scratch.iter().any(|scratch| scratch.name == *name));
        self.plan.scratch.push(Scratch { name, width, rows, offset: 0, bytes: 0, lifetimes: Vec::new() });
        self.plan.scratch.len() - 1
    }

    /// The function made of these kernels, rendered if there is none yet.
    pub(crate) fn function(&mut self, name: &str, formula: &str, variants: &[(&[Regime], Spec)]) -> usize {
        let same = |function: &Function| {
            function.variants.len() == variants.len()
                && function
                    .variants
                    .iter()
                    .zip(variants)
                    .all(|(old, new)| old.regimes == new.0 && self.plan.kernels[old.kernel].spec == new.1)
        };
        if let Some(index) = self.plan.functions.iter().position(same) {
            return index;
        }
        let name =
            self.unused(name, |plan, name| plan.functions.iter().any(|function| function.name == *name));
        let mut function = Function { name: name.clone(), formula: formula.to_owned(), variants: Vec::new() };
        for (regimes, spec) in variants {
            let kernel_name = match spec {
                Spec::AttendSplit(_) => format!("{name}_split"),
                Spec::AttendTiled(_) => format!("{name}_tiled"),
                _ if regimes.len() == 1 && variants.len() > 1 => format!("{name}_{}", regimes[0].name()),
                _ => name.clone(),
            };
            match forge_kernels::render(&kernel_name, spec) {
                Ok(instance) => {
                    self.plan.kernels.push(instance);
                    let kernel = self.plan.kernels.len() - 1;
                    function.variants.push(Variant { regimes: regimes.to_vec(), kernel });
                }
                Err(error) => {
                    self.faults.push(Diagnostic::new("F0504", format!("kernel {kernel_name}: {error}")))
                }
            }
        }
        self.plan.functions.push(function);
        self.plan.functions.len() - 1
    }

    fn unused(&self, name: &str, taken: impl Fn(&Plan, &String) -> bool) -> String {
        let numbered = (2..).map(|number| format!("{name}_{number}"));
        std::iter::once(name.to_owned())
            .chain(numbered)
            .find(|name| !taken(&self.plan, name))
            .unwrap_or_default()
    }

    /// Packs an application's weights.
    fn bind(&mut self, section: usize, place: Place, apply: &Apply, list: &Fused) {
        let body = self.graph.body(apply);
        let prefix = match place {
            Place::Layer(layer) => format!("layers.{layer}."),
            Place::Prologue | Place::Epilogue => String::new(),
        };
        let mut weights = Vec::new();
        for (field, (params, layout)) in
            self.plan.sections[section].fields.clone().iter().zip(field_params(list))
        {
            let parts: Vec<WeightId> = params.iter().filter_map(|param| apply.weight(body, *param)).collect();
            let (format, shape) = match field.kind {
                FieldKind::Matrix { rows, columns, .. } => {
                    let format = self.options.matrix_format(self.graph, &parts);
                    (format, vec![rows, columns])
                }
                FieldKind::Vector { width } => (Format::F32, vec![width]),
            };
            let packed = Packed { name: format!("{prefix}{}", field.name), format, shape, layout, parts, gain: None };
            let same = |other: &Packed| {
                (&other.parts, other.layout, other.format) == (&packed.parts, packed.layout, packed.format)
            };
            let index = self.plan.weights.iter().position(same).unwrap_or_else(|| {
                self.plan.weights.push(packed.clone());
                self.plan.weights.len() - 1
            });
            weights.push(index);
        }
        self.plan.applications.push(Application { section, weights });
    }
}
