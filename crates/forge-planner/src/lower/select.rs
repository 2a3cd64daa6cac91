//! Converts fused operations to steps: selects and renders kernels, packs weights, allocates scratch buffers.

use crate::formats::Formats;
use crate::fuse::list::Value;
use crate::fuse::rules::Lists;
use crate::lower::reasons::reasons;
use crate::lower::requirements::{cache_format, context, mixed_caches, shared_windows};
use crate::lower::section::{Draft, Place, Source};
use crate::options::Options;
use crate::plan::regime::{DECODE_ROWS, MAX_KV_SPLITS, Regime, SMALL_BATCH_MAX, Schedule};
use crate::plan::{Function, Plan, RowsOf, Scratch, Section, Variant};
use forge_ir::{Apply, BodyId, Diagnostic, Graph, StateId};
use forge_kernels::Spec;
use std::collections::BTreeMap;

/// Builds the plan without scratch offsets and barriers.
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
        chunk: options.chunk.max(SMALL_BATCH_MAX + 1),
        mla_expand: None,
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
        stream_is_quantized: false,
    };
    select.faults = shared_windows(graph);
    select.faults.extend(mixed_caches(graph));
    select.stream = select.scratch("stream", graph.model.hidden, RowsOf::Row);
    select.partials = select.most_partials();
    select.stream_is_quantized = select.quantizes_stream();
    let mut section_of: BTreeMap<BodyId, usize> = BTreeMap::new();
    let applications: Vec<(Place, &Apply)> = places(graph).collect();
    for (index, (place, apply)) in applications.iter().enumerate() {
        let section = *section_of.entry(apply.body).or_insert_with(|| select.section(*place, apply));
        select.bind(section, (*place, apply), applications.get(index + 1).copied());
    }
    select.plan.scratch[select.stream].lifetimes.clear();
    if let Some(per_layer_inputs) = select.per_layer_inputs() {
        select.plan.scratch[per_layer_inputs].lifetimes.clear();
    }
    select.lives_from_section_to_section();
    if select.faults.is_empty() { Ok(select.plan) } else { Err(select.faults) }
}

/// All applications with their place in the model.
pub(crate) fn places(graph: &Graph) -> impl Iterator<Item = (Place, &Apply)> {
    let place = |index| match index {
        0 => Place::Prologue,
        _ if index <= graph.layers.len() => Place::Layer(index - 1),
        _ => Place::Epilogue,
    };
    graph.applications().enumerate().map(move |(index, apply)| (place(index), apply))
}

/// Name of the scratch buffer of the per-layer inputs.
pub(crate) const PER_LAYER_INPUTS: &str = "per_layer_inputs";

pub(crate) struct Select<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) formats: &'a Formats,
    pub(crate) options: &'a Options,
    pub(crate) lists: &'a Lists,
    pub(crate) plan: Plan,
    /// Source of each field, for every section.
    pub(crate) sources: Vec<Vec<Source>>,
    pub(crate) faults: Vec<Diagnostic>,
    /// States that are used as caches so far.
    pub(crate) caches: Vec<StateId>,
    /// Scratch buffer of the residual stream.
    pub(crate) stream: usize,
    /// Number of partial sums of squares that every producer of a deferred norm writes.
    pub(crate) partials: usize,
    /// Whether sections of a decode batch pass on the residual stream in quantized form, too.
    pub(crate) stream_is_quantized: bool,
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
            per_layer_input_columns: None,
            recurrent_states: Vec::new(),
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
            quantized: BTreeMap::new(),
        };
        let lists = self.lists;
        // The batch schedule comes first, so functions that serve any number of rows get the plain name.
        for (schedule, lists) in [(Schedule::Batch, &lists.batch), (Schedule::Decode, &lists.decode)] {
            let list = &lists[apply.body.0];
            draft.schedule = schedule;
            draft.buffers = BTreeMap::from([(Value::INPUT, self.stream)]);
            draft.gained = BTreeMap::new();
            draft.quantized = BTreeMap::new();
            for (operation, reason) in list.operations.iter().zip(reasons(list, &self.options.disabled)) {
                let first = draft.section.steps(schedule).len();
                self.operation(&mut draft, list, operation);
                if schedule == Schedule::Decode {
                    draft.give_reasons(first, reason);
                }
            }
            if place == Place::Prologue {
                self.quantize_stream(&mut draft, list);
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

    /// The scratch buffer of the per-layer inputs, if the prologue writes them.
    pub(crate) fn per_layer_inputs(&self) -> Option<usize> {
        self.plan.scratch.iter().position(|scratch| scratch.name == PER_LAYER_INPUTS)
    }

    /// The scratch buffer with this name and shape; created if there is none.
    pub(crate) fn scratch(&mut self, name: &str, width: usize, per: RowsOf) -> usize {
        let same = |scratch: &Scratch| {
            let base = scratch.name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '_');
            base == name && (scratch.width, scratch.per) == (width, per)
        };
        if let Some(index) = self.plan.scratch.iter().position(same) {
            return index;
        }
        let name = self.unused(name, |plan, name| plan.scratch.iter().any(|scratch| scratch.name == *name));
        let rows = match per {
            RowsOf::Pass => 1,
            RowsOf::DecodeRow | RowsOf::Wanted => DECODE_ROWS,
            RowsOf::Row => self.plan.chunk,
            RowsOf::Position => self.plan.mla_expand.map_or(0, |mla_expand| mla_expand.tile),
            RowsOf::Split => MAX_KV_SPLITS,
        };
        let (offset, bytes, lifetimes) = (0, 0, Vec::new());
        self.plan.scratch.push(Scratch { name, width, per, rows, offset, bytes, lifetimes });
        self.plan.scratch.len() - 1
    }

    /// The function with these kernels, in their measured layouts if available; rendered if there is none
    /// yet.
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
            // A kernel that serves any number of rows may be requested for one regime first and for others
            // later.
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
                Spec::AttendSplit(attend) if attend.layout.quantizes => format!("{name}_quantized"),
                Spec::AttendSplit(_) => format!("{name}_split"),
                Spec::AttendTiled(_) => format!("{name}_tiled"),
                Spec::Linear(linear) => format!("{name}_{}", linear.layout.rows.name()),
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
