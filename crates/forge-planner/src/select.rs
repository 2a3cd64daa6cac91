//! Fused operations become steps: kernels are chosen and rendered, weights packed, scratch buffers named.

use crate::chips::Chip;
use crate::formats::Formats;
use crate::fused::{Ending, ExpertsSum, Kind, Project, Summed, Value};
use crate::options::Options;
use crate::plan::{Function, Life, Operand, Per, Plan, Scratch, Section, Variant};
use crate::reasons::reasons;
use crate::regime::{FEW, MAX_SHARES, Regime, Schedule};
use crate::rules::Lists;
use crate::section::{Draft, Place, Source};
use crate::subject::{ExpertsProduct, Layout, Product, Subject, Which};
use forge_ir::{Apply, BLOCK, Body, BodyId, Diagnostic, Format, Graph, Op, State, StateId, WeightId};
use forge_kernels::Spec;
use forge_kernels::spec::{self, Knobs};
use std::collections::BTreeMap;

/// A plan whose scratch has no offsets and whose steps do not wait yet.
pub(crate) fn select(
    graph: &Graph,
    formats: &Formats,
    options: &Options,
    lists: &Lists,
) -> Result<Plan, Vec<Diagnostic>> {
    let plan = Plan {
        model: graph.model.clone(),
        weights: Vec::new(),
        cache: cache_format(graph, formats, options)?,
        context: context(graph, options)?,
        slots: options.slots.max(1),
        chunk: options.chunk.max(FEW + 1),
        unfold: None,
        scratch: Vec::new(),
        arena_bytes: 0,
        arena_floor: 0,
        kernels: Vec::new(),
        functions: Vec::new(),
        sections: Vec::new(),
        applications: Vec::new(),
    };
    let mut select = Select {
        graph,
        formats,
        options,
        lists,
        plan,
        sources: Vec::new(),
        faults: Vec::new(),
        caches: Vec::new(),
        stream: 0,
        partials: 0,
    };
    select.faults = shared_windows(graph);
    select.faults.extend(mixed_caches(graph));
    select.stream = select.scratch("stream", graph.model.hidden, Per::Row);
    select.partials = select.most_partials();
    let mut section_of: BTreeMap<BodyId, usize> = BTreeMap::new();
    let applications: Vec<(Place, &Apply)> = places(graph).collect();
    for (index, (place, apply)) in applications.iter().enumerate() {
        let section = *section_of.entry(apply.body).or_insert_with(|| select.section(*place, apply));
        select.bind(section, (*place, apply), applications.get(index + 1).copied());
    }
    select.plan.scratch[select.stream].lifetimes.clear();
    if let Some(aside) = select.aside() {
        select.plan.scratch[aside].lifetimes.clear();
    }
    select.lives_from_section_to_section();
    if select.faults.is_empty() { Ok(select.plan) } else { Err(select.faults) }
}

/// Every application, and where it stands.
fn places(graph: &Graph) -> impl Iterator<Item = (Place, &Apply)> {
    let place = |index| match index {
        0 => Place::Prologue,
        _ if index <= graph.layers.len() => Place::Layer(index - 1),
        _ => Place::Epilogue,
    };
    graph.applications().enumerate().map(move |(index, apply)| (place(index), apply))
}

/// The faults of layers that share a cache and see windows of different lengths, as what it keeps is what they see; or that
/// share one beside layers that have none.
fn shared_windows(graph: &Graph) -> Vec<Diagnostic> {
    let sees = |apply: &Apply| {
        let window = |op: &Op| match op {
            Op::Attention { window, .. } => Some(window.unwrap_or(usize::MAX)),
            _ => None,
        };
        graph.body(apply).nodes.iter().filter_map(|node| window(&node.op)).max()
    };
    let mut faults = Vec::new();
    for state in (0..graph.states.len()).map(StateId) {
        let mut windows = graph.layers.iter().filter(|apply| apply.states.contains(&state)).map(sees);
        let first = windows.next();
        let shared = windows.clone().count() > 0;
        if shared && graph.states.iter().any(|state| matches!(state, State::Memory(_) | State::Tail(_))) {
            let message = "layers share keys and values where others remember otherwise";
            faults.push(Diagnostic::new("F0506", message).note("forge has no program for both in one model"));
        } else if windows.any(|window| Some(window) != first) {
            let message = "layers that share keys and values see windows of different lengths";
            faults.push(Diagnostic::new("F0506", message));
        }
    }
    faults
}

/// The fault of layers that keep latents beside layers that keep something else.
fn mixed_caches(graph: &Graph) -> Option<Diagnostic> {
    let latents = graph.states.iter().filter(|state| matches!(state, State::Latents(_))).count();
    let message = "some layers keep latents, and others remember otherwise";
    (latents > 0 && latents < graph.states.len())
        .then(|| Diagnostic::new("F0506", message).note("forge has no program for both in one model"))
}

fn cache_format(graph: &Graph, formats: &Formats, options: &Options) -> Result<Format, Vec<Diagnostic>> {
    let caches = graph.states.iter().filter_map(|state| match state {
        State::Cache(cache) => Some(cache),
        State::Latents(_) | State::Tail(_) | State::Memory(_) => None,
    });
    let has_latents = graph.states.iter().any(|state| matches!(state, State::Latents(_)));
    let odd = caches.into_iter().find(|cache| !cache.width.is_multiple_of(BLOCK));
    match options.cache {
        None if formats.are_exact() => Ok(Format::F32),
        None => Ok(Format::F16),
        Some(format @ (Format::F32 | Format::F16)) => Ok(format),
        Some(Format::Q8_0) if has_latents => Err(vec![
            Diagnostic::new("F0502", "latents cannot be cached as q8_0: they are the values of all heads at once")
                .note("the cache can be kept in halves: --kv f16"),
        ]),
        Some(Format::Q8_0) => match odd {
            None => Ok(Format::Q8_0),
            Some(cache) => Err(vec![
                Diagnostic::new(
                    "F0502",
                    format!(
                        "keys and values cannot be cached as q8_0: heads of {} channels are no multiple of {BLOCK}, \
                         which share a scale",
                        cache.width
                    ),
                )
                .note("the cache can be kept in halves: --kv f16"),
            ]),
        },
        Some(format) => Err(vec![
            Diagnostic::new("F0502", format!("keys and values cannot be cached as {format}"))
                .note("the cache is kept as f32, f16 or q8_0: --kv f16"),
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
const LONGEST_CONTEXT: usize = u32::MAX as usize / MAX_SHARES;

/// What the scratch buffer of the aside is called.
pub(crate) const ASIDE: &str = "aside";

pub(crate) struct Select<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) formats: &'a Formats,
    pub(crate) options: &'a Options,
    pub(crate) lists: &'a Lists,
    pub(crate) plan: Plan,
    /// For every section, what is bound to each of its fields.
    pub(crate) sources: Vec<Vec<Source>>,
    pub(crate) faults: Vec<Diagnostic>,
    /// The states that are kept so far.
    pub(crate) caches: Vec<StateId>,
    /// The scratch buffer of the residual stream.
    pub(crate) stream: usize,
    /// Partial sums of squares that every producer of a deferred norm leaves.
    pub(crate) partials: usize,
}

impl<'a> Select<'a> {
    fn section(&mut self, place: Place, apply: &'a Apply) -> usize {
        let body = self.graph.body(apply);
        let index = self.plan.sections.len();
        let name =
            self.unused(&body.name, |plan, name| plan.sections.iter().any(|section| section.name == *name));
        let section = Section {
            name,
            fields: Vec::new(),
            state: None,
            takes: None,
            memories: Vec::new(),
            decode: Vec::new(),
            batch: Vec::new(),
        };
        let mut draft = Draft {
            place,
            body,
            apply,
            section,
            sources: Vec::new(),
            schedule: Schedule::Batch,
            buffers: BTreeMap::new(),
            gained: BTreeMap::new(),
        };
        let lists = self.lists;
        // The steps of many rows come first: what serves any number of rows gets the plainer name.
        for (schedule, lists) in [(Schedule::Batch, &lists.batch), (Schedule::Decode, &lists.decode)] {
            let list = &lists[apply.body.0];
            draft.schedule = schedule;
            draft.buffers = BTreeMap::from([(Value::INPUT, self.stream)]);
            draft.gained = BTreeMap::new();
            for (operation, reason) in list.operations.iter().zip(reasons(list, &self.options.disabled)) {
                let first = draft.section.steps(schedule).len();
                self.operation(&mut draft, list, operation);
                if schedule == Schedule::Decode {
                    draft.give_reasons(first, reason);
                }
            }
            if place == Place::Epilogue {
                self.argmax(&mut draft, list);
                self.sample(&mut draft, list);
            }
            self.lifetimes(&draft, index);
        }
        self.plan.sections.push(draft.section);
        self.sources.push(draft.sources);
        index
    }

    /// A buffer that a step writes begins a life; one that is read lives on until then, also if it is added to.
    fn lifetimes(&mut self, draft: &Draft<'_>, section: usize) {
        let steps = draft.section.steps(draft.schedule);
        for (index, step) in steps.iter().enumerate() {
            for argument in &step.arguments {
                if let Operand::Scratch(scratch) = argument.operand {
                    let begins = self.plan.writes(step.function, &argument.parameter)
                        && !self.plan.adds_to(step.function, &argument.parameter);
                    // What a loop hands on to itself is alive throughout.
                    let begin = match self.plan.carries(step.function, &argument.parameter) {
                        true => steps.iter().position(|other| other.condition == step.condition),
                        false => None,
                    };
                    self.alive(scratch, (draft.schedule, section, begin.unwrap_or(index)), begins);
                    self.alive(scratch, (draft.schedule, section, index), false);
                }
            }
        }
        // The host reads logits after the pass.
        let logits = self.plan.scratch.iter().position(|scratch| scratch.name == "logits");
        if let (Place::Epilogue, Some(last), Some(logits)) = (draft.place, steps.len().checked_sub(1), logits)
        {
            self.alive(logits, (draft.schedule, section, last), false);
        }
    }

    fn alive(&mut self, scratch: usize, (schedule, section, step): (Schedule, usize, usize), written: bool) {
        let lifetimes = &mut self.plan.scratch[scratch].lifetimes;
        let here = |life: &&mut Life| (life.schedule, life.section) == (schedule, section);
        match lifetimes.iter_mut().rev().find(here) {
            Some(life) if !written => life.last = step,
            _ => lifetimes.push(Life { schedule, section, first: step, last: step }),
        }
    }

    /// What deferred norms read is written by one section for the next: it is alive throughout.
    fn lives_from_section_to_section(&mut self) {
        let whole = |(section, data): (usize, &Section)| {
            let last = data.decode.len().saturating_sub(1);
            Life { schedule: Schedule::Decode, section, first: 0, last }
        };
        let lives: Vec<Life> = self.plan.sections.iter().enumerate().map(whole).collect();
        let handed_on = |scratch: &&mut Scratch| ["gained", "squares"].contains(&scratch.name.as_str());
        for scratch in self.plan.scratch.iter_mut().filter(handed_on) {
            scratch.lifetimes = lives.clone();
        }
    }

    /// Partial sums that the producer with the most threadgroups leaves, up to whole vectors. All others fill up with
    /// zeros: a reader need not know who wrote.
    fn most_partials(&self) -> usize {
        // Whoever has a whole row leaves one.
        let mut most = 1;
        for (_, apply) in places(self.graph) {
            let body = self.graph.body(apply);
            for operation in &self.lists.decode[apply.body.0].operations {
                match &operation.kind {
                    Kind::Project(project) if matches!(project.ending, Ending::AddSquares(_)) => {
                        let (format, outputs, inputs) = self.matrix_shape(body, apply, project);
                        let knobs = self.knobs(spec::Rows::One, (format, outputs, inputs), project.ending);
                        most = most.max(outputs.div_ceil(knobs.outputs_of_group()));
                    }
                    Kind::ExpertsSum(sum) if matches!(sum.ending, Summed::AddSquares(_)) => {
                        let Some(down) = apply.weight(body, sum.down) else { continue };
                        let weight = &self.graph.weights[down.0];
                        let outputs = weight.rows() / weight.matrices();
                        let shape = (self.formats.of(&[down]), outputs, weight.columns());
                        let stacks = [Some(down), sum.shared.and_then(|shared| apply.weight(body, shared))];
                        let experts = stacks
                            .into_iter()
                            .flatten()
                            .map(|stack| self.graph.weights[stack.0].matrices())
                            .sum();
                        let (rows, simdgroups) = self.sum_knobs(experts, shape, sum);
                        most = most.max(outputs.div_ceil(rows * simdgroups));
                    }
                    _ => {}
                }
            }
        }
        most.next_multiple_of(4)
    }

    /// Format, rows and columns of a projection's matrix.
    pub(crate) fn matrix_shape(
        &self,
        body: &Body,
        apply: &Apply,
        project: &Project,
    ) -> (Format, usize, usize) {
        let weights: Vec<WeightId> =
            project.parts.iter().filter_map(|part| apply.weight(body, part.0)).collect();
        let rows = weights.iter().map(|id| self.graph.weights[id.0].rows()).sum();
        let columns = weights.first().map_or(0, |id| self.graph.weights[id.0].columns());
        (self.formats.of(&weights), rows, columns)
    }

    /// The layout of a subject, if it was measured.
    fn measured(&self, subject: &Subject) -> Option<Layout> {
        self.options.tuned.as_ref()?.layout(subject)
    }

    /// The kernel as it was measured to be best, or as it is.
    fn laid_out(&self, spec: &Spec) -> Spec {
        let measured = Subject::of(spec).and_then(|(subject, _)| self.measured(&subject));
        measured.and_then(|layout| layout.lay_out(spec)).unwrap_or_else(|| spec.clone())
    }

    /// What kernels are laid out for.
    pub(crate) fn chip(&self) -> &'static Chip {
        self.options.chip.unwrap_or_else(Chip::common)
    }

    pub(crate) fn knobs(
        &self,
        rows: spec::Rows,
        (format, outputs, inputs): (Format, usize, usize),
        ending: Ending,
    ) -> Knobs {
        let leaves = matches!(ending, Ending::AddSquares(_) | Ending::Best);
        let product = Product { rows, format, outputs, inputs, leaves };
        // Whoever asks for a cache that rounds nothing does not want an x that is rounded.
        let exact = self.plan.cache == Format::F32;
        match self.measured(&Subject::Projection(product)) {
            Some(Layout::Projection(measured)) if !(measured.codes && exact) => measured,
            _ => {
                let chip = self.chip();
                Knobs::for_chip(
                    chip.family,
                    chip.cores as usize,
                    rows,
                    format,
                    [outputs, inputs],
                    leaves,
                    exact,
                )
            }
        }
    }

    /// The scratch buffer of what the prologue leaves for the layers, if it leaves anything.
    pub(crate) fn aside(&self) -> Option<usize> {
        self.plan.scratch.iter().position(|scratch| scratch.name == ASIDE)
    }

    /// What a kernel of heads' matrices computes at once.
    pub(crate) fn heads_knob(&self, format: Format, shape: [usize; 3], turned: bool) -> usize {
        let chip = self.chip();
        spec::EachHead::each_for(chip.cores as usize, format, shape, turned)
    }

    /// Rows of a simdgroup, and simdgroups of a threadgroup, of kernels of experts that compute so many outputs of so many
    /// inputs for a row.
    pub(crate) fn experts_knobs(
        &self,
        (format, outputs, inputs): (Format, usize, usize),
        leaves: bool,
    ) -> (usize, usize) {
        let chip = self.chip();
        Knobs::of_experts(chip.family, chip.cores as usize, format, outputs, inputs, leaves)
    }

    /// The same of a sum: all experts of a row are one row. What was measured is told here, too, as others go by what it leaves.
    pub(crate) fn sum_knobs(
        &self,
        experts: usize,
        (format, outputs, inputs): (Format, usize, usize),
        sum: &ExpertsSum,
    ) -> (usize, usize) {
        let leaves = matches!(sum.ending, Summed::AddSquares(_));
        let (product, rows) = (Which::Down, if leaves { spec::Rows::One } else { spec::Rows::Few });
        let chosen = sum.chosen;
        let product = ExpertsProduct { product, rows, format, experts, chosen, outputs, inputs, leaves };
        if let Some(Layout::Experts(measured)) = self.measured(&Subject::Experts(product)) {
            return (measured.rows_per_simdgroup, measured.simdgroups);
        }
        self.experts_knobs((format, outputs, sum.chosen * inputs), leaves)
    }

    /// The scratch buffer of that name with so many numbers for each, made if there is none.
    pub(crate) fn scratch(&mut self, name: &str, width: usize, per: Per) -> usize {
        let same = |scratch: &Scratch| {
            let base = scratch.name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '_');
            base == name && (scratch.width, scratch.per) == (width, per)
        };
        if let Some(index) = self.plan.scratch.iter().position(same) {
            return index;
        }
        let name = self.unused(name, |plan, name| plan.scratch.iter().any(|scratch| scratch.name == *name));
        let rows = match per {
            Per::Pass => 1,
            Per::Row => self.plan.chunk,
            Per::Wanted => FEW,
            Per::Position => self.plan.unfold.map_or(0, |unfold| unfold.share),
            Per::Share => MAX_SHARES,
        };
        let (offset, bytes, lifetimes) = (0, 0, Vec::new());
        self.plan.scratch.push(Scratch { name, width, per, rows, offset, bytes, lifetimes });
        self.plan.scratch.len() - 1
    }

    /// The function made of these kernels, as they are laid out by measurement if by any, rendered if there is none yet.
    pub(crate) fn function(&mut self, name: &str, formula: &str, variants: &[(&[Regime], Spec)]) -> usize {
        let variants: Vec<(&[Regime], Spec)> =
            variants.iter().map(|(regimes, spec)| (*regimes, self.laid_out(spec))).collect();
        let same = |function: &Function| {
            let specs = function.variants.iter().map(|variant| &self.plan.kernels[variant.kernel].spec);
            specs.eq(variants.iter().map(|variant| &variant.1))
                && (variants.len() == 1
                    || function.variants.iter().zip(&variants).all(|(a, b)| a.regimes == b.0))
        };
        if let Some(index) = self.plan.functions.iter().position(same) {
            // One kernel that serves any number of rows may be met first for some and then for others.
            for (variant, (regimes, _)) in self.plan.functions[index].variants.iter_mut().zip(&variants) {
                variant.regimes.extend(
                    regimes
                        .iter()
                        .filter(|regime| !variant.regimes.contains(regime))
                        .copied()
                        .collect::<Vec<_>>(),
                );
                variant.regimes.sort_unstable();
            }
            return index;
        }
        let name =
            self.unused(name, |plan, name| plan.functions.iter().any(|function| function.name == *name));
        let mut function = Function { name: name.clone(), formula: formula.to_owned(), variants: Vec::new() };
        for (regimes, spec) in &variants {
            let kernel_name = match spec {
                _ if variants.len() == 1 => name.clone(),
                Spec::AttendSplit(_) => format!("{name}_split"),
                Spec::AttendTiled(_) => format!("{name}_tiled"),
                _ => format!("{name}_{}", regimes[0].name()),
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
}
