//! Fused operations become steps: kernels are chosen and rendered, weights packed, scratch buffers named.

use crate::fused::{Ending, Fused, Kind, Operation, Value};
use crate::options::Options;
use crate::plan::{
    Application, Argument, BatchColumn, Condition, FEW, Field, FieldKind, Function, MAX_SPLITS, Operand, Plan, Regime,
    Scratch, Section, State, Step, Variant,
};
use forge_ir::{Apply, Body, Diagnostic, Format, Graph, Layout, Op, Packed, ParamId, ParamKind, WeightId};
use forge_kernels::{Knobs, Spec, spec};
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
    let mut section_of = BTreeMap::new();
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
        crate::Quant::Keep => {
            graph.weights.iter().filter(|weight| weight.shape.len() == 2).all(|weight| weight.format == Format::F32)
        }
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
            Diagnostic::new("F0503", format!("the model was made for {made_for} positions, and {asked} were asked for"))
                .note("past the positions it was made for, a model gives wrong text: --max-context at most this"),
        ]),
        Some(asked) => Ok(asked),
        None => Ok(made_for),
    }
}

/// Where a section stands, which decides what its parameters are called and what its input is.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Prologue,
    Layer(usize),
    Epilogue,
}

struct Select<'a> {
    graph: &'a Graph,
    options: &'a Options,
    plan: Plan,
    faults: Vec<Diagnostic>,
}

/// A section under construction.
struct Draft<'a> {
    place: Place,
    body: &'a Body,
    apply: &'a Apply,
    index: usize,
    section: Section,
    /// The scratch buffer of each value.
    buffers: BTreeMap<Value, usize>,
}

impl<'a> Select<'a> {
    fn section(&mut self, place: Place, list: &Fused, apply: &'a Apply, stream: usize) -> usize {
        let body = self.graph.body(apply);
        let index = self.plan.sections.len();
        let name = self.unused(&body.name, |plan, name| plan.sections.iter().any(|section| section.name == *name));
        let section = Section { name, fields: Vec::new(), state: None, steps: Vec::new() };
        let buffers = BTreeMap::from([(Value(0), stream)]);
        let mut draft = Draft { place, body, apply, index, section, buffers };
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
        let kernels = self.plan.functions[function].variants.iter().map(|variant| &self.plan.kernels[variant.kernel]);
        kernels.flat_map(|kernel| &kernel.decl.buffers).any(|buffer| buffer.name == parameter && buffer.written)
    }

    /// The formats of an application's matrices.
    fn formats(&self, apply: &Apply, list: &Fused) -> Vec<Format> {
        let body = self.graph.body(apply);
        let fields = field_params(list).into_iter();
        fields
            .map(|(params, _)| {
                let parts: Vec<WeightId> = params.iter().filter_map(|param| apply.weight(body, *param)).collect();
                self.options.matrix_format(self.graph, &parts)
            })
            .collect()
    }

    fn operation(&mut self, draft: &mut Draft<'_>, list: &Fused, operation: &Operation, stream: usize) {
        let input = operation.inputs.first().copied().unwrap_or(Value(0));
        let from = draft.buffers.get(&input).copied().unwrap_or(stream);
        let from_name = self.plan.scratch[from].name.clone();
        let width = list.widths[operation.output.0];
        match &operation.kind {
            Kind::Node(Op::Embed { table }) => {
                let (field, format, rows, _) = self.matrix(draft, &[*table], Layout::Rows, "");
                let spec = Spec::Embed(spec::Embed { format, vocabulary: rows, width });
                let function = self.function("embed", "stream = table[ids]", &[(&Regime::ALL, spec)]);
                draft.buffers.insert(operation.output, stream);
                draft.step(&operation.name, "The rows' embeddings.", function, &[
                    ("table", Operand::Field(field)),
                    ("ids", Operand::Batch(BatchColumn::Ids)),
                    ("stream", Operand::Scratch(stream)),
                ]);
            }
            Kind::Node(Op::RmsNorm { gain, epsilon }) => {
                let gather = draft.place == Place::Epilogue && input == Value(0);
                let field = self.vector(draft, &[*gain], Layout::Rows, "");
                let to = match draft.place {
                    Place::Epilogue => self.scratch("final_normed", width, FEW),
                    _ => self.scratch("normed", width, self.plan.chunk),
                };
                draft.buffers.insert(operation.output, to);
                let spec = Spec::RmsNorm(spec::RmsNorm { width, epsilon: *epsilon, gather });
                let (name, formula) = match gather {
                    false => ("norm", "y = gain · x / rms(x)"),
                    true => ("final_norm", "y = gain · x[wanted] / rms(x[wanted])"),
                };
                let function = self.function(name, formula, &[(&Regime::ALL, spec)]);
                let gain_name = draft.section.fields[field].name.clone();
                let formula = match gather {
                    false => format!("normed = {gain_name} · {from_name} / rms({from_name})"),
                    true => format!("final_normed = {gain_name} · {from_name} / rms({from_name}), for the rows whose logits are wanted"),
                };
                let mut arguments =
                    vec![("x", Operand::Scratch(from)), ("gain", Operand::Field(field)), ("y", Operand::Scratch(to))];
                if gather {
                    arguments.push(("wanted", Operand::Batch(BatchColumn::Wanted)));
                }
                draft.step(&operation.name, &formula, function, &arguments);
            }
            Kind::Project { parts, layout, ending } => {
                self.project(draft, list, operation, (parts, *layout, *ending), from);
            }
            Kind::Slice { .. } => {
                draft.buffers.insert(operation.output, from);
            }
            Kind::RotateAppend { query_heads, rotation, cache } => {
                let Some(state) = self.state(draft, *cache) else { return };
                let to = self.scratch("q", width, self.plan.chunk);
                draft.buffers.insert(operation.output, to);
                let spec = Spec::RotateAppend(spec::RotateAppend {
                    query_heads: *query_heads,
                    key_heads: state.heads,
                    width: state.width,
                    cache: self.plan.cache,
                    rotation: rotation.clone(),
                    pairing: rotation.pairing,
                });
                let formula = "q = rotate(queries of qkv); cache[slots, positions] = rotate(keys), values";
                let function = self.function("rotate", formula, &[(&Regime::ALL, spec)]);
                draft.step(&operation.name, "Turn q and k by their positions; append k and v to the cache.", function, &[
                    ("qkv", Operand::Scratch(from)),
                    ("slots", Operand::Batch(BatchColumn::Slots)),
                    ("positions", Operand::Batch(BatchColumn::Positions)),
                    ("q", Operand::Scratch(to)),
                    ("keys", Operand::Keys),
                    ("values", Operand::Values),
                ]);
            }
            Kind::Attend { query_heads, scale, cache } => {
                let Some(state) = self.state(draft, *cache) else { return };
                self.attend(draft, operation, (*query_heads, *scale, state), from);
            }
            Kind::Node(op) => {
                let what = format!("{op:?}");
                let what = what.split([' ', '(', '{']).next().unwrap_or_default().to_lowercase();
                self.faults.push(
                    Diagnostic::new("F0501", format!("no kernel computes {what} as {}.{} uses it", draft.section.name, operation.name))
                        .note("the planner joins it with its neighbours in the patterns of crates/forge-planner/src/rules, and none fits here"),
                );
            }
        }
    }

    fn project(
        &mut self,
        draft: &mut Draft<'_>,
        list: &Fused,
        operation: &Operation,
        (parts, layout, ending): (&[(ParamId, Option<ParamId>)], Layout, Ending),
        from: usize,
    ) {
        let weights: Vec<ParamId> = parts.iter().map(|part| part.0).collect();
        let biases: Vec<ParamId> = parts.iter().filter_map(|part| part.1).collect();
        let name = if parts.len() > 1 { operation.name.clone() } else { draft.param_name(weights[0]) };
        let (field, format, outputs, inputs) = self.matrix(draft, &weights, layout, &name);
        let bias = (!biases.is_empty()).then(|| self.vector(draft, &biases, layout, &format!("{name}_bias")));
        let epilogue = match ending {
            Ending::Store => spec::Epilogue::Store,
            Ending::Add => spec::Epilogue::Add,
            Ending::Gate(activation) => spec::Epilogue::Gate(activation),
        };
        let width = list.widths[operation.output.0];
        let (to, rows) = match (ending, draft.place) {
            (Ending::Add, _) => {
                let stream = operation.inputs.get(1).and_then(|value| draft.buffers.get(value)).copied();
                (stream.unwrap_or(from), self.plan.chunk)
            }
            (_, Place::Epilogue) => (self.scratch("logits", width, FEW), FEW),
            (Ending::Gate(_), _) => (self.scratch("inner", width, self.plan.chunk), self.plan.chunk),
            (Ending::Store, _) => (self.scratch(&name, width, self.plan.chunk), self.plan.chunk),
        };
        draft.buffers.insert(operation.output, to);
        let spec = |regime: Regime| {
            let rows = match regime {
                Regime::One => spec::Rows::One,
                Regime::Few => spec::Rows::Few,
                Regime::Many => spec::Rows::Many,
            };
            let knobs = Knobs::default_for(rows, format, outputs, inputs);
            Spec::Project(spec::Project { rows, format, outputs, inputs, bias: bias.is_some(), epilogue, knobs })
        };
        let regimes: &[Regime] = if rows == FEW { &Regime::ALL[..2] } else { &Regime::ALL };
        let variants: Vec<(&[Regime], Spec)> =
            regimes.iter().enumerate().map(|(index, regime)| (&regimes[index..=index], spec(*regime))).collect();
        let plus = if bias.is_some() { " + bias" } else { "" };
        let general = match ending {
            Ending::Store => format!("y = weight · x{plus}"),
            Ending::Add => format!("y += weight · x{plus}"),
            Ending::Gate(_) => format!("gate, up = weight · x{plus}; y = silu(gate) · up"),
        };
        let function = self.function(&name, &general, &variants);
        let (from_name, to_name) = (&self.plan.scratch[from].name, &self.plan.scratch[to].name);
        let plus = if bias.is_some() { format!(" + {name}_bias") } else { String::new() };
        let formula = match ending {
            Ending::Store if name == "qkv" => format!("q, k, v = W · {from_name}{plus}"),
            Ending::Store => format!("{to_name} = W · {from_name}{plus}"),
            Ending::Add => format!("{to_name} += W · {from_name}{plus}"),
            Ending::Gate(_) => format!("gate, up = W · {from_name}{plus};  {to_name} = silu(gate) · up"),
        };
        let mut arguments =
            vec![("weight", Operand::Field(field)), ("x", Operand::Scratch(from)), ("y", Operand::Scratch(to))];
        arguments.extend(bias.map(|bias| ("bias", Operand::Field(bias))));
        draft.step(&name, &formula, function, &arguments);
    }

    fn attend(
        &mut self,
        draft: &mut Draft<'_>,
        operation: &Operation,
        (query_heads, scale, state): (usize, f32, State),
        from: usize,
    ) {
        let (key_heads, width, cache) = (state.heads, state.width, self.plan.cache);
        let partials = self.scratch("partials", query_heads * MAX_SPLITS * (width + 2), FEW);
        let heads = self.scratch("heads", query_heads * width, self.plan.chunk);
        draft.buffers.insert(operation.output, heads);
        let few = Spec::AttendSplit(spec::AttendSplit { query_heads, key_heads, width, cache, scale });
        let many = Spec::AttendTiled(spec::AttendTiled { query_heads, key_heads, width, cache, scale });
        let formula = "heads = softmax(scale · q · keysᵀ) · values, over the positions of each row's slot up to its own";
        let function = self.function("attend", formula, &[(&Regime::ALL[..2], few), (&Regime::ALL[2..], many)]);
        let shared = match query_heads / key_heads {
            1 => String::new(),
            group => format!("; {group} query heads share a key head"),
        };
        let comment = format!("heads = softmax({scale} · q · keysᵀ) · values{shared}.");
        draft.step(&operation.name, &comment, function, &[
            ("q", Operand::Scratch(from)),
            ("keys", Operand::Keys),
            ("values", Operand::Values),
            ("slots", Operand::Batch(BatchColumn::Slots)),
            ("positions", Operand::Batch(BatchColumn::Positions)),
            ("partials", Operand::Scratch(partials)),
            ("heads", Operand::Scratch(heads)),
        ]);
        let join = Spec::AttendJoin(spec::AttendJoin { query_heads, width });
        let formula = "heads = the splits' sums, each weighted by exp(its maximum - the largest)";
        let function = self.function("attend_join", formula, &[(&Regime::ALL[..2], join)]);
        let comment = "A long cache was split among threadgroups: join what they found.";
        draft.step("attend_join", comment, function, &[
            ("partials", Operand::Scratch(partials)),
            ("heads", Operand::Scratch(heads)),
        ]);
        if let Some(step) = draft.section.steps.last_mut() {
            step.condition = Condition::Split;
        }
    }

    fn argmax(&mut self, draft: &mut Draft<'_>, list: &Fused) {
        let Some(logits) = list.operations.last().and_then(|operation| draft.buffers.get(&operation.output)) else {
            return;
        };
        let logits = *logits;
        let next = self.scratch("next", 1, FEW);
        let spec = Spec::Argmax(spec::Argmax { vocabulary: self.graph.model.vocabulary });
        let function = self.function("argmax", "ids = the index of the largest of logits", &[(&Regime::ALL[..2], spec)]);
        draft.step("argmax", "next = the likeliest token.", function, &[
            ("logits", Operand::Scratch(logits)),
            ("ids", Operand::Scratch(next)),
        ]);
    }

    fn state(&mut self, draft: &mut Draft<'_>, cache: ParamId) -> Option<State> {
        let Some(ParamKind::State(state)) = draft.body.params.get(cache.0).map(|param| &param.kind) else { return None };
        let state = State { heads: state.heads, width: state.width };
        draft.section.state = Some(state);
        Some(state)
    }

    /// The field of a matrix made of these parameters, with its format, rows and columns.
    fn matrix(&self, draft: &mut Draft<'_>, params: &[ParamId], layout: Layout, name: &str) -> (usize, Format, usize, usize) {
        let weights = draft.weights(params);
        let format = self.options.matrix_format(self.graph, &weights);
        let columns = weights.first().map_or(0, |id| self.graph.weights[id.0].columns());
        let rows = weights.iter().map(|id| self.graph.weights[id.0].rows()).sum();
        let name = draft.role(params, name);
        let comment = draft.comment(params, layout, "rows");
        let field = draft.field(Field { name, kind: FieldKind::Matrix { format, rows, columns }, comment });
        (field, format, rows, columns)
    }

    fn vector(&self, draft: &mut Draft<'_>, params: &[ParamId], layout: Layout, name: &str) -> usize {
        let width = draft.weights(params).iter().map(|id| self.graph.weights[id.0].columns()).sum();
        let name = draft.role(params, name);
        let comment = draft.comment(params, layout, "numbers");
        draft.field(Field { name, kind: FieldKind::Vector { width }, comment })
    }

    /// The scratch buffer of that name, made if there is none of that width.
    fn scratch(&mut self, name: &str, width: usize, rows: usize) -> usize {
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
    fn function(&mut self, name: &str, formula: &str, variants: &[(&[Regime], Spec)]) -> usize {
        let same = |function: &Function| {
            function.variants.len() == variants.len()
                && function.variants.iter().zip(variants).all(|(old, new)| {
                    old.regimes == new.0 && self.plan.kernels[old.kernel].spec == new.1
                })
        };
        if let Some(index) = self.plan.functions.iter().position(same) {
            return index;
        }
        let name = self.unused(name, |plan, name| plan.functions.iter().any(|function| function.name == *name));
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
                Err(error) => self.faults.push(Diagnostic::new("F0504", format!("kernel {kernel_name}: {error}"))),
            }
        }
        self.plan.functions.push(function);
        self.plan.functions.len() - 1
    }

    fn unused(&self, name: &str, taken: impl Fn(&Plan, &String) -> bool) -> String {
        let numbered = (2..).map(|number| format!("{name}_{number}"));
        std::iter::once(name.to_owned()).chain(numbered).find(|name| !taken(&self.plan, name)).unwrap_or_default()
    }

    /// Packs an application's weights.
    fn bind(&mut self, section: usize, place: Place, apply: &Apply, list: &Fused) {
        let body = self.graph.body(apply);
        let prefix = match place {
            Place::Layer(layer) => format!("layers.{layer}."),
            Place::Prologue | Place::Epilogue => String::new(),
        };
        let mut weights = Vec::new();
        for (field, (params, layout)) in self.plan.sections[section].fields.clone().iter().zip(field_params(list)) {
            let parts: Vec<WeightId> = params.iter().filter_map(|param| apply.weight(body, *param)).collect();
            let (format, shape) = match field.kind {
                FieldKind::Matrix { rows, columns, .. } => {
                    let format = self.options.matrix_format(self.graph, &parts);
                    (format, vec![rows, columns])
                }
                FieldKind::Vector { width } => (Format::F32, vec![width]),
            };
            let packed = Packed { name: format!("{prefix}{}", field.name), format, shape, layout, parts };
            let same = |other: &Packed| (&other.parts, other.layout, other.format) == (&packed.parts, packed.layout, packed.format);
            let index = self.plan.weights.iter().position(same).unwrap_or_else(|| {
                self.plan.weights.push(packed.clone());
                self.plan.weights.len() - 1
            });
            weights.push(index);
        }
        self.plan.applications.push(Application { section, weights });
    }
}

/// The parameters behind each field of a section, in the order in which [`Select::section`] makes them.
fn field_params(list: &Fused) -> Vec<(Vec<ParamId>, Layout)> {
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
    fn step(&mut self, name: &str, formula: &str, function: usize, arguments: &[(&str, Operand)]) {
        let argument = |(parameter, operand): &(&str, Operand)| Argument { parameter: (*parameter).to_owned(), operand: *operand };
        self.section.steps.push(Step {
            name: name.to_owned(),
            formula: formula.to_owned(),
            function,
            arguments: arguments.iter().map(argument).collect(),
            condition: Condition::Always,
            waits: false,
        });
    }

    fn field(&mut self, field: Field) -> usize {
        self.section.fields.push(field);
        self.section.fields.len() - 1
    }

    fn param_name(&self, param: ParamId) -> String {
        self.body.params.get(param.0).map(|param| param.name.clone()).unwrap_or_default()
    }

    /// What a weight is called in the weight file and in generated code.
    fn role(&self, params: &[ParamId], name: &str) -> String {
        match (self.place, params) {
            (Place::Prologue, _) => self.body.name.clone(),
            (Place::Epilogue, [param]) if self.param_name(*param) == "gain" => "final_gain".to_owned(),
            (_, [param]) if name.is_empty() => self.param_name(*param),
            _ => name.to_owned(),
        }
    }

    fn weights(&self, params: &[ParamId]) -> Vec<WeightId> {
        params.iter().filter_map(|param| self.apply.weight(self.body, *param)).collect()
    }

    /// `2048 query, 1024 key, 1024 value rows`, or nothing for a single part.
    fn comment(&self, params: &[ParamId], layout: Layout, unit: &str) -> String {
        if params.len() < 2 {
            return String::new();
        }
        let size = |param: &ParamId| match self.body.params.get(param.0).map(|param| &param.kind) {
            Some(ParamKind::Weight(shape)) => shape.first().copied().unwrap_or(0),
            _ => 0,
        };
        match layout {
            Layout::Rows => {
                let parts: Vec<String> =
                    params.iter().map(|param| format!("{} {}", size(param), self.param_name(*param))).collect();
                format!("{} {unit}", parts.join(", "))
            }
            Layout::Alternate => {
                let parts: Vec<String> = params.iter().map(|param| self.param_name(*param)).collect();
                format!("{} {unit} alternate", parts.join(" and "))
            }
        }
    }
}
