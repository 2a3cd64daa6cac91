//! What `model.rs` and the crate's other texts are made of.

use crate::fields_text::{FieldText, ScratchText, align, fields, outer_fields, scratches};
use crate::render::CrateOptions;
use crate::report::cache_phrase;
use crate::steps_text::{Caller, StepText, steps};
use crate::{kernels_text, names};
use forge_ir::{Format, Latents};
use forge_kernels::spec::{ExpertsInner, LatentAttend};
use forge_kernels::{Spec, most_matrices, ptx};
use forge_planner::{
    Application, Condition, FEW, Load, MAX_SHARES, Operand, Plan, Ring, SPLIT_POSITIONS, Schedule, Section,
    Step, pass_cost,
};
use serde::Serialize;

#[derive(Serialize)]
pub(crate) struct Context {
    version: &'static str,
    command: String,
    binary: String,
    /// The crate's name as Rust code spells it.
    library: String,
    converses: bool,
    /// The texts for NVIDIA GPUs, from the oldest; none where the crate is not for them.
    cuda: &'static [ptx::Target],
    /// Whether there are other layouts to choose from.
    tunable: bool,
    model: ModelText,
    constants: Vec<Constant>,
    cache: CacheText,
    /// The first column of the aside that each layer takes, as an array.
    firsts: Option<String>,
    arena: ArenaText,
    decode: PassText,
    prefill: PassText,
    /// Steps of layers beyond the least, and why they are there.
    beyond: Vec<(String, String)>,
    formats: String,
    memory: MemoryText,
    #[serde(flatten)]
    kernels: kernels_text::Context,
    layer_sections: Vec<SectionText>,
    layer_type: String,
    /// Whether layers remember slots otherwise than by keys and values; then each has its own.
    remembers: bool,
    /// Whether some layers have experts.
    has_experts: bool,
    layers: Vec<LayerText>,
    outer_fields: Vec<FieldText>,
    prologue: SchedulesText,
    epilogue: SchedulesText,
    next_gains: Option<NextGains>,
    scratches: Vec<ScratchText>,
    split_positions: usize,
    /// Whether many rows may meet keys and values that are made of latents.
    unfolds: bool,
    weight_imports: String,
    kernel_weight_imports: String,
}

#[derive(Serialize)]
struct ModelText {
    name: String,
    architecture: String,
    #[serde(rename = "type")]
    type_name: String,
    summary: String,
    format_phrase: String,
    parameters: String,
    begin: String,
    end: String,
}

#[derive(Serialize)]
struct Constant {
    name: &'static str,
    value: String,
    doc: String,
}

#[derive(Serialize)]
struct CacheText {
    #[serde(rename = "type")]
    element: &'static str,
    /// The format, for people.
    format: &'static str,
    /// Elements that a head of a position has, in constants of the model.
    record: &'static str,
    /// Of one position of a slot, in layers that keep every position.
    bytes_per_position: String,
    /// What layers that do not keep instead, as an array.
    rings: String,
    /// Positions that each layer keeps at most, if there are rings.
    kept: Option<String>,
    /// What each layer remembers, as an array, where they do not all keep the same numbers.
    memory: Option<String>,
    /// Whether some layers remember what an earlier one does.
    shared: bool,
    /// Of a slot, however long its text is.
    memory_bytes: String,
    /// Whether it is of latents.
    latents: bool,
    /// Threadgroups of a row for each share of its cache, as a constant of the model.
    sharers: &'static str,
}

#[derive(Serialize)]
struct ArenaText {
    bytes: String,
    text: String,
}

#[derive(Serialize)]
struct PassText {
    dispatches: usize,
    barriers: usize,
    bytes_text: String,
    cost: String,
}

#[derive(Serialize)]
struct MemoryText {
    weights: String,
    per_position: String,
    scratch: String,
}

#[derive(Serialize)]
struct SectionText {
    #[serde(rename = "type")]
    type_name: String,
    function: String,
    fields: Vec<FieldText>,
    /// What it remembers of slots, if that is not keys and values.
    memories: Vec<MemoryField>,
    experts: Option<ExpertsText>,
    decode: ScheduleText,
    batch: ScheduleText,
}

/// The experts of a layer: how many, the fields that are their matrices, and the scratch buffer that says who has which.
#[derive(Serialize)]
struct ExpertsText {
    experts: String,
    chosen: String,
    shared: String,
    most: String,
    inner: String,
    sum: String,
    routes: String,
}

/// A field of what a layer remembers.
#[derive(Serialize)]
struct MemoryField {
    name: String,
    /// `4, 16, 16`
    shape: String,
    /// `4 * 16 * 16`
    numbers: String,
}

/// The steps of a section outside the layers.
#[derive(Serialize)]
struct SchedulesText {
    decode: Vec<StepText>,
    batch: Vec<StepText>,
}

/// The steps of a layer in one schedule, and how many they are.
#[derive(Serialize)]
struct ScheduleText {
    steps: Vec<StepText>,
    dispatches: usize,
    more_phrase: String,
}

/// What the gains are called that one application reads for the next.
#[derive(Serialize)]
struct NextGains {
    layer: String,
    last: String,
}

#[derive(Serialize)]
struct LayerText {
    #[serde(rename = "type")]
    type_name: String,
    /// Whether it has memories in the place of a cache.
    remembers: bool,
    /// Heads of its cache, positions that it keeps, and elements of a head of one.
    heads: String,
    capacity: String,
    record: String,
}

fn layer_text(plan: &Plan, section: &Section) -> LayerText {
    let ring = section.state.and_then(|state| state.ring);
    let number = |value: Option<usize>| value.map_or_else(String::new, |it| names::number(it as u64));
    LayerText {
        type_name: names::camel_case(&section.name),
        remembers: !section.memories.is_empty(),
        heads: number(section.state.map(|state| state.heads)),
        record: number(section.state.map(|state| record(plan, state.width))),
        capacity: ring.map_or_else(
            || "context".to_owned(),
            |ring| format!("context.min({})", names::number(ring.positions as u64)),
        ),
    }
}

impl Context {
    pub(crate) fn new(plan: &Plan, options: &CrateOptions, kernels: kernels_text::Context) -> Context {
        let layers = &plan.applications[1..plan.applications.len() - 1];
        let layer_ids: Vec<usize> = (1..plan.sections.len() - 1).collect();
        let prologue = &plan.sections[0];
        let epilogue = &plan.sections[plan.sections.len() - 1];
        let layer_sections: Vec<SectionText> =
            layer_ids.iter().map(|id| section_text(plan, &kernels, &plan.sections[*id])).collect();
        let remembers = layer_sections.iter().any(|section| !section.memories.is_empty());
        let layer_type = match &layer_sections[..] {
            [only] if !remembers => only.type_name.clone(),
            _ => "AnyLayer".to_owned(),
        };
        Context {
            version: options.version,
            command: options.command.clone(),
            library: names::crate_name(&options.name).replace('-', "_"),
            binary: names::crate_name(&options.name),
            converses: options.converses,
            cuda: if options.cuda { &ptx::TARGETS } else { &[] },
            tunable: options.tunable,
            model: model_text(plan, options),
            constants: constants(plan),
            cache: cache_text(plan),
            firsts: firsts(plan),
            arena: ArenaText {
                bytes: names::number(plan.arena_bytes as u64),
                text: format!("{} for {} rows", names::size(plan.arena_bytes as u64), plan.chunk),
            },
            decode: pass_text(plan, Load::decode(1)),
            prefill: pass_text(plan, Load::prefill(plan.chunk as u64)),
            beyond: plan.beyond_least(),
            formats: formats(plan),
            memory: MemoryText {
                weights: names::size(plan.weight_bytes()),
                per_position: cache_phrase(plan),
                scratch: names::size(plan.arena_bytes as u64),
            },
            has_experts: layer_sections.iter().any(|section| section.experts.is_some()),
            layer_sections,
            layer_type,
            remembers,
            layers: layers.iter().map(|layer| layer_text(plan, &plan.sections[layer.section])).collect(),
            outer_fields: outer_fields(plan),
            prologue: schedules(plan, &kernels, prologue, Caller::Forward),
            epilogue: schedules(plan, &kernels, epilogue, Caller::Head),
            next_gains: next_gains(plan),
            scratches: scratches(plan),
            split_positions: SPLIT_POSITIONS,
            unfolds: plan.unfold.is_some(),
            weight_imports: imports(&kernels.weight_types, Some("WeightFile")),
            kernel_weight_imports: imports(&kernels.weight_types, None),
            kernels,
        }
    }
}

/// The names of a `use`, in order; braces only where there are several and the template has none.
fn imports(types: &[String], also: Option<&str>) -> String {
    let mut names: Vec<&str> = types.iter().map(String::as_str).chain(also).collect();
    names.sort_unstable();
    match (also, &names[..]) {
        (None, [only]) => (*only).to_owned(),
        (None, _) => format!("{{{}}}", names.join(", ")),
        (Some(_), _) => names.join(", "),
    }
}

fn model_text(plan: &Plan, options: &CrateOptions) -> ModelText {
    let model = &plan.model;
    let layers = plan.applications.len() - 2;
    let mut summary = vec![format!("{layers} layers"), format!("hidden {}", model.hidden)];
    if let Some((heads, key_heads, width)) = attention_shape(plan) {
        summary.push(match heads == key_heads {
            true => format!("{heads} heads of {width}"),
            false => format!("{heads} query heads over {key_heads} key/value heads of {width}"),
        });
    }
    if let Some((heads, Latents { width, turned })) = latent_shape(plan) {
        summary.push(format!("{heads} heads over latents of {width} and turned keys of {turned}"));
    }
    if let Some(width) = feed_forward(plan) {
        summary.push(format!("feed-forward {width}"));
    }
    if let Some(ExpertsInner { experts, chosen, shared, outputs, .. }) = experts_inner(plan) {
        let always = if *shared > 0 { format!(" and {shared} for every row") } else { String::new() };
        let (chosen, experts) = (chosen - shared, experts - shared);
        summary.push(format!("{chosen} of {experts} experts of {}{always}", outputs / 2));
    }
    summary.push(format!("vocabulary {}", names::grouped(model.vocabulary as u64)));
    let mut formats: Vec<&str> = plan
        .weights
        .iter()
        .filter(|weight| weight.shape.len() == 2)
        .map(|weight| weight.format.name())
        .collect();
    formats.sort_unstable();
    formats.dedup();
    ModelText {
        name: model.name.clone(),
        architecture: model.architecture.clone(),
        type_name: names::type_name(&model.architecture),
        summary: summary.join(" · ") + ".",
        format_phrase: format!(" in {}", formats.join(" and ")),
        parameters: names::number(options.parameters),
        begin: format!("{:?}", model.specials.begin),
        end: format!("{:?}", model.specials.end),
    }
}

/// Query heads, key heads and head width, of the first attention.
pub(crate) fn attention_shape(plan: &Plan) -> Option<(usize, usize, usize)> {
    plan.kernels.iter().find_map(|kernel| match &kernel.spec {
        Spec::AttendSplit(attend) => Some((attend.query_heads, attend.key_heads, attend.width)),
        _ => None,
    })
}

/// Heads of attention over latents, and what they share, of the first layer that has any.
pub(crate) fn latent_shape(plan: &Plan) -> Option<(usize, Latents)> {
    latent_attend(plan).map(|attend| (attend.heads, Latents { width: attend.width, turned: attend.turned }))
}

fn latent_attend(plan: &Plan) -> Option<&LatentAttend> {
    plan.kernels.iter().find_map(|kernel| match &kernel.spec {
        Spec::LatentAttend(attend) => Some(attend),
        _ => None,
    })
}

pub(crate) fn feed_forward(plan: &Plan) -> Option<usize> {
    plan.scratch.iter().find(|scratch| scratch.name == "inner").map(|scratch| scratch.width)
}

/// Experts of the first layer that has any.
fn experts_inner(plan: &Plan) -> Option<&ExpertsInner> {
    plan.kernels.iter().find_map(|kernel| match &kernel.spec {
        Spec::ExpertsInner(inner) => Some(inner),
        _ => None,
    })
}

/// Experts of a row, and the width inside one, of the first layer that has any.
pub(crate) fn experts_shape(plan: &Plan) -> Option<(usize, usize)> {
    experts_inner(plan).map(|inner| (inner.chosen, inner.outputs / 2))
}

fn constants(plan: &Plan) -> Vec<Constant> {
    let mut constants = Vec::new();
    let mut constant = |name, value: usize, doc: &str| {
        constants.push(Constant { name, value: names::number(value as u64), doc: doc.to_owned() });
    };
    constant("LAYERS", plan.applications.len() - 2, "Layers.");
    constant("HIDDEN", plan.model.hidden, "Width of the residual stream.");
    if let Some((heads, key_heads, width)) = attention_shape(plan) {
        constant("QUERY_HEADS", heads, "Heads that ask.");
        constant("KEY_HEADS", key_heads, "Heads that are asked: each has keys and values in the cache.");
        constant("HEAD", width, "Channels of a head.");
    }
    if let Some(attend) = latent_attend(plan) {
        constant("HEADS", attend.heads, "Heads, all of which are asked for the same latents.");
        constant("HEAD_GROUPS", attend.layout()[2], "Threadgroups that the heads of a row take.");
        constant("LATENT", attend.width, "Channels of a latent.");
        constant("TURNED", attend.turned, "Channels of a key that turns.");
    }
    if let Some(width) = feed_forward(plan) {
        constant("FEED_FORWARD", width, "Width inside the feed-forward block.");
    }
    if let Some((chosen, width)) = experts_shape(plan) {
        constant("EXPERTS", chosen, "Experts of a row.");
        constant("EXPERT", width, "Width inside an expert.");
    }
    constant("VOCABULARY", plan.model.vocabulary, "Tokens.");
    constant("CONTEXT", plan.context, "Most positions of a conversation.");
    constant("CHUNK", plan.chunk, "Most rows of a pass; a longer prompt is read in several.");
    if let Some(unfold) = plan.unfold {
        let from = "Rows of one slot from which on keys and values are made of latents: fewer operations than to meet these.";
        constant("UNFOLDS_FROM", unfold.from, from);
        constant("UNFOLDED", unfold.share, "Most positions of which they are made at once.");
    }
    constant("FEW", FEW, "Most rows that are still a few: decoding, not reading a prompt.");
    if attention_shape(plan).is_some() || latent_attend(plan).is_some() {
        constant(
            "MOST_SHARES",
            MAX_SHARES,
            "Most shares of caches in a pass: rows times threadgroups a row.",
        );
    }
    constants
}

fn cache_text(plan: &Plan) -> CacheText {
    let number = |value: usize| names::number(value as u64);
    let ring = |(ring, bytes): &(Ring, usize)| {
        let (window, positions) = (number(ring.window), number(ring.positions));
        format!("Ring {{ window: {window}, positions: {positions}, bytes_per_position: {} }}", number(*bytes))
    };
    let rings: Vec<String> = plan.rings().iter().map(ring).collect();
    let kept: Vec<String> = plan
        .states()
        .map(|state| state.ring.map_or_else(|| "CONTEXT".to_owned(), |ring| number(ring.positions)))
        .collect();
    let (element, record) = match plan.cache {
        Format::F32 => ("f32", "HEAD"),
        // Codes, and a half for each 32 of them.
        Format::Q8_0 => ("u8", "(HEAD + HEAD / 16)"),
        _ => ("f16", "HEAD"),
    };
    CacheText {
        element,
        format: plan.cache.name(),
        record,
        bytes_per_position: number(plan.kept_bytes_per_position()),
        kept: (!rings.is_empty()).then(|| of_layers(&kept)),
        memory: memory(plan),
        shared: plan.applications.iter().filter(|application| application.cache.is_some()).count()
            > kept.len(),
        rings: format!("[{}]", rings.join(", ")),
        memory_bytes: number(plan.memory_bytes()),
        latents: latent_attend(plan).is_some(),
        sharers: if latent_attend(plan).is_some() { "HEAD_GROUPS" } else { "KEY_HEADS" },
    }
}

/// What each layer remembers, where keys of layers are not all as long as the first's or some layers keep none.
fn memory(plan: &Plan) -> Option<String> {
    let number = |value: usize| names::number(value as u64);
    let layers = &plan.applications[1..plan.applications.len() - 1];
    let shapes: Vec<(usize, usize)> = plan.states().map(|state| (state.heads, state.width)).collect();
    let is_alike = shapes.iter().all(|shape| *shape == shapes[0]) && shapes.len() == layers.len();
    if is_alike {
        return None;
    }
    let has_rings = !plan.rings().is_empty();
    let of = |(index, layer): (usize, &Application)| {
        let keeper = layers.iter().position(|other| other.cache == layer.cache).unwrap_or(index);
        let Some(state) = plan.sections[layer.section].state.filter(|_| keeper == index) else {
            return format!("Memory::Of({keeper})");
        };
        let (heads, record) = (number(state.heads), number(record(plan, state.width)));
        let kept = state.ring.map_or_else(|| "CONTEXT".to_owned(), |ring| number(ring.positions));
        let kept = if has_rings { format!(", kept: {kept}") } else { String::new() };
        format!("Memory::Own {{ heads: {heads}, record: {record}{kept} }}")
    };
    let layers: Vec<String> = layers.iter().enumerate().map(of).collect();
    Some(format!("[\n    {},\n]", layers.join(",\n    ")))
}

/// Elements of the cache that a head of so many channels has.
fn record(plan: &Plan, width: usize) -> usize {
    // Codes, and a half for each 32 of them.
    if plan.cache == Format::Q8_0 { width + width / 16 } else { width }
}

/// The first columns of the aside that layers take, as an array; none where nothing is taken.
fn firsts(plan: &Plan) -> Option<String> {
    let layers = &plan.applications[1..plan.applications.len() - 1];
    let firsts: Vec<usize> = layers.iter().map(|layer| layer.first.unwrap_or(0)).collect();
    layers.iter().any(|layer| layer.first.is_some()).then(|| of_layers(&firsts))
}

fn formats(plan: &Plan) -> String {
    let formats = plan.bytes_by_format().into_iter();
    let formats: Vec<String> =
        formats.map(|(format, bytes)| format!("({:?}, {})", format.name(), names::number(bytes))).collect();
    format!("[{}]", formats.join(", "))
}

fn pass_text(plan: &Plan, load: Load) -> PassText {
    let counts = plan.counts(load);
    let cost = pass_cost(plan, load);
    let split = plan.counts(Load { splits: 2, ..load });
    let both = counts.dispatches_per_layer.iter().zip(&split.dispatches_per_layer);
    let more: Vec<usize> = both.map(|(plain, split)| split - plain).collect();
    let (per_layer, more) = (of_layers(&counts.dispatches_per_layer), of_layers(&more));
    let cost_text = format!(
        "Cost {{\n            dispatches: {},\n            barriers: {},\n            bytes_read: {},\n            dispatches_per_layer: &{per_layer},\n            more_when_split: &{more},\n        }}",
        counts.dispatches,
        counts.barriers,
        names::number(cost.read())
    );
    PassText {
        dispatches: counts.dispatches,
        barriers: counts.barriers,
        bytes_text: names::size(cost.weights_read),
        cost: cost_text,
    }
}

/// A number for each layer as an array.
fn of_layers(values: &[impl ToString]) -> String {
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    match &values[..] {
        [first, rest @ ..] if rest.iter().all(|other| other == first) => format!("[{first}; LAYERS]"),
        _ => format!("[{}]", values.join(", ")),
    }
}

fn section_text(plan: &Plan, kernels: &kernels_text::Context, section: &Section) -> SectionText {
    let mut fields = fields(section, |name| format!("&name({name:?})"), None);
    if let Some(columns) = section.takes {
        fields.push(FieldText {
            name: "first".to_owned(),
            declaration: format!("first: u32,\u{0}// of the {columns} columns of the aside that it takes"),
            find: "FIRSTS[layer]".to_owned(),
        });
    }
    align(&mut fields);
    let schedule = |schedule| {
        let count = |condition| {
            section.steps(schedule).iter().filter(|step: &&Step| step.condition == condition).count()
        };
        let more = [(Condition::Many, "rows are many"), (Condition::Split, "the cache is split")]
            .map(|(condition, when)| (count(condition), when));
        let phrases = more.iter().filter(|(count, _)| *count > 0);
        let mut more_phrase: String =
            phrases.map(|(count, when)| format!(", and {count} more where {when}")).collect();
        let [always, folded, unfolded] =
            [Condition::Always, Condition::Folded, Condition::Unfolded].map(count);
        if unfolded > 0 {
            more_phrase += &format!(
                "; {unfolded} for each share of the positions in place of {folded} where latents are unfolded"
            );
        }
        ScheduleText {
            steps: steps(plan, kernels, section, schedule, Caller::Layer),
            dispatches: always + folded,
            more_phrase,
        }
    };
    SectionText {
        type_name: names::camel_case(&section.name),
        function: names::identifier(&section.name),
        fields,
        memories: section.memories.iter().map(memory_field).collect(),
        experts: experts_text(plan, section),
        decode: schedule(Schedule::Decode),
        batch: schedule(Schedule::Batch),
    }
}

fn experts_text(plan: &Plan, section: &Section) -> Option<ExpertsText> {
    let step_of = |is_wanted: fn(&Spec) -> bool| {
        section.decode.iter().find_map(|step| {
            let variants = plan.functions[step.function].variants.iter();
            let spec =
                variants.map(|variant| &plan.kernels[variant.kernel].spec).find(|spec| is_wanted(spec))?;
            let operand = |name: &str| {
                let argument = step.arguments.iter().find(|argument| argument.parameter == name)?;
                Some(argument.operand)
            };
            let (Operand::Field(field), Operand::Scratch(routes)) = (operand("weight")?, operand("routes")?)
            else {
                return None;
            };
            let matrices = names::identifier(&section.fields[field].name);
            Some((spec, matrices, names::identifier(&plan.scratch[routes].name)))
        })
    };
    let (spec, inner, routes) = step_of(|spec| matches!(spec, Spec::ExpertsInner(_)))?;
    let (of_sum, sum, _) = step_of(|spec| matches!(spec, Spec::ExpertsSum(_)))?;
    let (Spec::ExpertsInner(of_inner), Spec::ExpertsSum(of_sum)) = (spec, of_sum) else { return None };
    let ExpertsInner { experts, chosen, shared, .. } = of_inner;
    let most = most_matrices(of_inner.format, of_inner.outputs, of_inner.inputs);
    let most = most.min(most_matrices(of_sum.format, of_sum.outputs, of_sum.inputs));
    let [experts, chosen, shared, most] =
        [*experts, *chosen, *shared, most].map(|count| names::number(count as u64));
    Some(ExpertsText { experts, chosen, shared, most, inner, sum, routes })
}

fn memory_field(memory: &forge_planner::Memory) -> MemoryField {
    let sides: Vec<String> = memory.shape.iter().map(|side| names::number(*side as u64)).collect();
    MemoryField { name: names::identifier(&memory.name), shape: sides.join(", "), numbers: sides.join(" * ") }
}

fn schedules(
    plan: &Plan,
    kernels: &kernels_text::Context,
    section: &Section,
    caller: Caller,
) -> SchedulesText {
    SchedulesText {
        decode: steps(plan, kernels, section, Schedule::Decode, caller),
        batch: steps(plan, kernels, section, Schedule::Batch, caller),
    }
}

/// The role of the gain that a layer begins with, and the name of the one that the head begins with, where layers read
/// them for what comes after.
fn next_gains(plan: &Plan) -> Option<NextGains> {
    let gain = |application: &Application| {
        let fields = &plan.sections[application.section].fields;
        let field = fields.iter().position(|field| field.of_next)?;
        Some(plan.weights[application.weights[field]].name.clone())
    };
    let first = gain(plan.applications.first()?)?;
    let last = gain(&plan.applications[plan.applications.len() - 2])?;
    Some(NextGains { layer: first.strip_prefix("layers.0.").unwrap_or(&first).to_owned(), last })
}
