//! What `model.rs` and the crate's other texts are made of.

use crate::kernels_text::{self, weight_type};
use crate::names;
use crate::render::CrateOptions;
use forge_ir::Format;
use forge_kernels::Spec;
use forge_planner::{
    Condition, FEW, FieldKind, Load, MAX_SPLITS, Operand, Plan, Regime, SPLIT_POSITIONS, Section, Step,
    pass_cost,
};
use serde::Serialize;

#[derive(Serialize)]
pub(crate) struct Context {
    version: &'static str,
    command: String,
    binary: String,
    model: ModelText,
    constants: Vec<Constant>,
    cache: CacheText,
    arena: ArenaText,
    decode: PassText,
    prefill: PassText,
    formats: String,
    memory: MemoryText,
    #[serde(flatten)]
    kernels: kernels_text::Context,
    layer_sections: Vec<SectionText>,
    layer_type: String,
    layers: Vec<LayerText>,
    outer_fields: Vec<FieldText>,
    prologue: StepsText,
    epilogue: StepsText,
    scratches: Vec<ScratchText>,
    split_positions: usize,
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
    bytes_per_position: String,
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
    steps: Vec<StepText>,
    dispatches: usize,
    split_phrase: String,
}

#[derive(Serialize)]
struct LayerText {
    #[serde(rename = "type")]
    type_name: String,
}

#[derive(Serialize)]
struct FieldText {
    name: String,
    declaration: String,
    find: String,
}

#[derive(Serialize)]
struct StepsText {
    steps: Vec<StepText>,
}

#[derive(Serialize)]
struct StepText {
    text: String,
}

#[derive(Serialize)]
struct ScratchText {
    name: String,
    declaration: String,
    offset: String,
    elements: String,
}

impl Context {
    pub(crate) fn new(plan: &Plan, options: &CrateOptions, kernels: kernels_text::Context) -> Context {
        let layers = &plan.applications[1..plan.applications.len() - 1];
        let layer_ids: Vec<usize> = (1..plan.sections.len() - 1).collect();
        let prologue = &plan.sections[0];
        let epilogue = &plan.sections[plan.sections.len() - 1];
        let layer_sections: Vec<SectionText> =
            layer_ids.iter().map(|id| section_text(plan, &kernels, &plan.sections[*id])).collect();
        let layer_type = match &layer_sections[..] {
            [only] => only.type_name.clone(),
            _ => "AnyLayer".to_owned(),
        };
        let type_of = |section: usize| names::camel_case(&plan.sections[section].name);
        Context {
            version: options.version,
            command: options.command.clone(),
            binary: names::crate_name(&options.name),
            model: model_text(plan, options),
            constants: constants(plan),
            cache: CacheText {
                element: cache_element(plan),
                bytes_per_position: names::number(plan.cache_bytes_per_position() as u64),
            },
            arena: ArenaText {
                bytes: names::number(plan.arena_bytes as u64),
                text: format!("{} for {} rows", names::size(plan.arena_bytes as u64), plan.chunk),
            },
            decode: pass_text(plan, Load { rows: 1, wanted: 1, length: 1 }),
            prefill: pass_text(plan, Load { rows: plan.chunk as u64, wanted: 1, length: plan.chunk as u64 }),
            formats: formats(plan),
            memory: MemoryText {
                weights: names::size(plan.weight_bytes()),
                per_position: names::size(plan.cache_bytes_per_position() as u64),
                scratch: names::size(plan.arena_bytes as u64),
            },
            layer_sections,
            layer_type,
            layers: layers.iter().map(|layer| LayerText { type_name: type_of(layer.section) }).collect(),
            outer_fields: outer_fields(plan),
            prologue: StepsText { steps: steps(plan, &kernels, prologue, Caller::Forward) },
            epilogue: StepsText { steps: steps(plan, &kernels, epilogue, Caller::Head) },
            scratches: scratches(plan),
            split_positions: SPLIT_POSITIONS,
            weight_imports: imports(&kernels.weight_types, Some("WeightFile")),
            kernel_weight_imports: imports(&kernels.weight_types, None),
            kernels,
        }
    }
}

/// The names of a `use`, in order; braces only where there are several and the template has none.
fn imports(types: &[&str], also: Option<&str>) -> String {
    let mut names: Vec<&str> = types.iter().copied().chain(also).collect();
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
    if let Some(width) = feed_forward(plan) {
        summary.push(format!("feed-forward {width}"));
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
fn attention_shape(plan: &Plan) -> Option<(usize, usize, usize)> {
    plan.kernels.iter().find_map(|kernel| match &kernel.spec {
        Spec::AttendSplit(attend) => Some((attend.query_heads, attend.key_heads, attend.width)),
        _ => None,
    })
}

fn feed_forward(plan: &Plan) -> Option<usize> {
    plan.scratch.iter().find(|scratch| scratch.name == "inner").map(|scratch| scratch.width)
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
    if let Some(width) = feed_forward(plan) {
        constant("FEED_FORWARD", width, "Width inside the feed-forward block.");
    }
    constant("VOCABULARY", plan.model.vocabulary, "Tokens.");
    constant("CONTEXT", plan.context, "Most positions of a conversation.");
    constant("CHUNK", plan.chunk, "Most rows of a pass; a longer prompt is read in several.");
    constant("FEW", FEW, "Most rows that are still a few: decoding, not reading a prompt.");
    if attention_shape(plan).is_some() {
        constant("MOST_SPLITS", MAX_SPLITS, "Most threadgroups that share a row's cache.");
    }
    constants
}

fn cache_element(plan: &Plan) -> &'static str {
    if plan.cache == Format::F32 { "f32" } else { "f16" }
}

fn formats(plan: &Plan) -> String {
    let formats = plan.bytes_by_format().into_iter();
    let formats: Vec<String> =
        formats.map(|(format, bytes)| format!("({:?}, {})", format.name(), names::number(bytes))).collect();
    format!("[{}]", formats.join(", "))
}

fn pass_text(plan: &Plan, load: Load) -> PassText {
    let counts = plan.counts(Regime::of(load.rows as usize), false);
    let cost = pass_cost(plan, load, false);
    let bytes = cost.weight_bytes + cost.cache_bytes;
    let per_layer: Vec<String> = counts.dispatches_per_layer.iter().map(usize::to_string).collect();
    let per_layer = match per_layer.first() {
        Some(first) if per_layer.iter().all(|other| other == first) => format!("[{first}; LAYERS]"),
        _ => format!("[{}]", per_layer.join(", ")),
    };
    let cost_text = format!(
        "Cost {{\n            dispatches: {},\n            barriers: {},\n            bytes_read: {},\n            dispatches_per_layer: &{per_layer},\n        }}",
        counts.dispatches,
        counts.barriers,
        names::number(bytes)
    );
    PassText {
        dispatches: counts.dispatches,
        barriers: counts.barriers,
        bytes_text: names::size(cost.weight_bytes),
        cost: cost_text,
    }
}

fn section_text(plan: &Plan, kernels: &kernels_text::Context, section: &Section) -> SectionText {
    let split = section.steps.iter().filter(|step| step.condition == Condition::Split).count();
    let mut fields = fields(section, |name| format!("&name({name:?})"), None);
    align(&mut fields);
    SectionText {
        type_name: names::camel_case(&section.name),
        function: names::identifier(&section.name),
        fields,
        steps: steps(plan, kernels, section, Caller::Layer),
        dispatches: section.steps.len() - split,
        split_phrase: if split == 0 {
            String::new()
        } else {
            format!(", and {split} more where the cache is split")
        },
    }
}

/// The fields of prologue and epilogue, each stored weight once.
fn outer_fields(plan: &Plan) -> Vec<FieldText> {
    let mut texts: Vec<FieldText> = Vec::new();
    for application in [&plan.applications[0], &plan.applications[plan.applications.len() - 1]] {
        let section = &plan.sections[application.section];
        let stored = |field: usize| plan.weights[application.weights[field]].name.clone();
        for (index, text) in fields(section, |_| String::new(), Some(&stored)).into_iter().enumerate() {
            let shared = plan.applications[0].weights.contains(&application.weights[index]);
            if !(shared && texts.iter().any(|other| other.name == stored(index))) {
                texts.push(text);
            }
        }
    }
    align(&mut texts);
    texts
}

/// Declarations and look-ups of a section's weights. `stored` overrides the name that a field has in the weight file.
fn fields(
    section: &Section,
    name: impl Fn(&str) -> String,
    stored: Option<&dyn Fn(usize) -> String>,
) -> Vec<FieldText> {
    section
        .fields
        .iter()
        .enumerate()
        .map(|(index, field)| {
            let identifier = names::identifier(&field.name);
            let file_name = stored.map_or_else(|| name(&field.name), |stored| format!("{:?}", stored(index)));
            let (rust_type, shape, find) = match field.kind {
                FieldKind::Matrix { format, rows, columns } => {
                    let rust_type = weight_type(format);
                    let (r, c) = (names::number(rows as u64), names::number(columns as u64));
                    (
                        rust_type.to_owned(),
                        format!("[{rows}, {columns}]"),
                        format!("{rust_type}::find(file, {file_name}, {r}, {c})?"),
                    )
                }
                FieldKind::Vector { width } => {
                    let number = names::number(width as u64);
                    (
                        "Span<f32>".to_owned(),
                        format!("[{width}]"),
                        format!("file.vector({file_name}, {number})?"),
                    )
                }
            };
            let comment = format!("{shape}  {}", field.comment).trim_end().to_owned();
            FieldText {
                name: identifier.clone(),
                declaration: format!("{identifier}: {rust_type},\u{0}// {comment}"),
                find,
            }
        })
        .collect()
}

/// Puts the comments of declarations in one column.
fn align(texts: &mut [FieldText]) {
    let column = texts.iter().filter_map(|text| text.declaration.find('\u{0}')).max().unwrap_or(0);
    for text in texts {
        if let Some((code, comment)) = text.declaration.split_once('\u{0}') {
            text.declaration = format!("{code:<column$} {comment}");
        }
    }
}

fn scratches(plan: &Plan) -> Vec<ScratchText> {
    let mut texts: Vec<FieldText> = plan
        .scratch
        .iter()
        .map(|scratch| {
            let element = if scratch.name == "next" { "u32" } else { "f32" };
            let rows = if scratch.rows == FEW { "few" } else { "rows" };
            let name = names::identifier(&scratch.name);
            let shape =
                if scratch.width == 1 { format!("[{rows}]") } else { format!("[{rows}, {}]", scratch.width) };
            let declaration = format!("{name}: Span<{element}>,\u{0}// {shape}  {}", about(&scratch.name))
                .trim_end()
                .to_owned();
            FieldText { name, declaration, find: String::new() }
        })
        .collect();
    align(&mut texts);
    plan.scratch
        .iter()
        .zip(texts)
        .map(|(scratch, text)| ScratchText {
            name: text.name,
            declaration: text.declaration,
            offset: names::number(scratch.offset as u64),
            elements: elements(plan, scratch),
        })
        .collect()
}

/// How many numbers a scratch buffer holds, in terms of the model's constants where its width is one of theirs.
fn elements(plan: &Plan, scratch: &forge_planner::Scratch) -> String {
    let rows = if scratch.rows == FEW { "few" } else { "rows" };
    if scratch.width == 1 {
        return rows.to_owned();
    }
    let (heads, key_heads, head) = attention_shape(plan).unwrap_or_default();
    let known = [
        ("stream", plan.model.hidden, "HIDDEN"),
        ("normed", plan.model.hidden, "HIDDEN"),
        ("final_normed", plan.model.hidden, "HIDDEN"),
        ("logits", plan.model.vocabulary, "VOCABULARY"),
        ("inner", feed_forward(plan).unwrap_or(0), "FEED_FORWARD"),
        ("qkv", (heads + 2 * key_heads) * head, "(QUERY_HEADS + 2 * KEY_HEADS) * HEAD"),
        ("q", heads * head, "QUERY_HEADS * HEAD"),
        ("heads", heads * head, "QUERY_HEADS * HEAD"),
        ("partials", heads * MAX_SPLITS * (head + 2), "QUERY_HEADS * MOST_SPLITS * (HEAD + 2)"),
    ];
    let named = known.into_iter().find(|(name, width, _)| *name == scratch.name && *width == scratch.width);
    format!(
        "{rows} * {}",
        named.map_or_else(|| names::number(scratch.width as u64), |(.., text)| text.to_owned())
    )
}

/// What a scratch buffer is for, where its name does not say it all.
fn about(name: &str) -> &'static str {
    match name {
        "stream" => "the residual stream",
        "normed" => "a norm's result, for the projection after it",
        "q" => "rotated queries",
        "partials" => "what each split of the cache contributes",
        "heads" => "attention's result",
        "inner" => "silu(gate) · up",
        "final_normed" => "the wanted rows of the stream, normed",
        "next" => "the likeliest token of each",
        _ => "",
    }
}

/// A call longer than this is broken into a line for each argument.
const LONGEST_CALL: usize = 104;

/// In which function a step is called, which decides how its operands are named.
#[derive(Clone, Copy, PartialEq)]
enum Caller {
    Forward,
    Layer,
    Head,
}

fn steps(plan: &Plan, kernels: &kernels_text::Context, section: &Section, caller: Caller) -> Vec<StepText> {
    section
        .steps
        .iter()
        .map(|step| StepText { text: step_text(plan, kernels, section, step, caller) })
        .collect()
}

fn step_text(
    plan: &Plan,
    kernels: &kernels_text::Context,
    section: &Section,
    step: &Step,
    caller: Caller,
) -> String {
    let function = &kernels.functions[step.function];
    let arguments: Vec<String> = function
        .takes
        .iter()
        .map(|parameter| {
            let operand =
                step.arguments.iter().find(|argument| names::identifier(&argument.parameter) == *parameter);
            operand.map_or_else(
                || scalar(parameter, caller),
                |argument| operand_text(plan, section, argument.operand, caller),
            )
        })
        .collect();
    let mut call = format!("kernels::{}(pass, {});", function.name, arguments.join(", "));
    if call.len() > LONGEST_CALL {
        call = format!("kernels::{}(\n    pass,\n    {},\n);", function.name, arguments.join(",\n    "));
    }
    let barrier = if step.waits { "pass.barrier();\n" } else { "" };
    match step.condition {
        Condition::Always => format!("// {}\n{barrier}{call}", step.formula),
        Condition::Split => {
            let inside = format!("{barrier}{call}").replace('\n', "\n    ");
            format!("// {}\nif b.splits > 1 {{\n    {inside}\n}}", step.formula)
        }
    }
}

fn scalar(name: &str, caller: Caller) -> String {
    if caller == Caller::Head { name.to_owned() } else { format!("b.{name}") }
}

fn operand_text(plan: &Plan, section: &Section, operand: Operand, caller: Caller) -> String {
    match operand {
        Operand::Field(field) if caller == Caller::Layer => {
            format!("w.{}", names::identifier(&section.fields[field].name))
        }
        Operand::Field(field) => {
            // A tied head is the embedding: the weight is stored, and named, once.
            let application =
                plan.applications.iter().find(|application| &plan.sections[application.section] == section);
            let stored =
                application.map(|application| plan.weights[application.weights[field]].name.as_str());
            format!("self.{}", names::identifier(stored.unwrap_or(&section.fields[field].name)))
        }
        Operand::Scratch(scratch) => format!("s.{}", names::identifier(&plan.scratch[scratch].name)),
        Operand::Keys => "cache.keys".to_owned(),
        Operand::Values => "cache.values".to_owned(),
        Operand::Batch(column) if caller == Caller::Head => column.name().to_owned(),
        Operand::Batch(column) => format!("b.{}", column.name()),
    }
}
