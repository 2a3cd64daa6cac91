//! Template context of `model.rs` and the crate's other text files.

use crate::crate_files::{CrateOptions, RUNTIME};
use crate::features::features;
use crate::fields::{FieldText, ScratchText, outer_fields, scratches};
use crate::kv_cache_code::{CacheText, cache_text, kv_stride};
use crate::section::{SchedulesText, SectionText, schedules, section_text};
use crate::shapes::{
    attention_shape, experts_inner, experts_shape, feed_forward, latent_shape, mla_attention,
};
use crate::steps::Caller;
use crate::{kernels, names};
use forge_ir::LatentCache;
use forge_ir::units::{grouped, size};
use forge_kernels::ptx;
use forge_ops::ExpertsInner;
use forge_planner::{
    Application, Condition, DECODE_ROWS, Forecast, INDEPENDENT_ROWS, MAX_KV_SPLITS, Plan, Prediction, RowsOf,
    SMALL_BATCH_MAX, SPLIT_POSITIONS, Schedule, Section, Workload, pass_cost,
};
use serde::Serialize;
use std::collections::BTreeSet;

#[derive(Serialize)]
pub(crate) struct Context {
    version: &'static str,
    command: String,
    binary: String,
    /// The crate's name as Rust code spells it.
    library: String,
    has_chat_template: bool,
    /// Directory of the runtime crate.
    runtime: String,
    /// Enabled features of the runtime crate.
    features: BTreeSet<&'static str>,
    /// PTX targets in order of compute capability; empty if the crate does not support CUDA.
    cuda: &'static [ptx::Target],
    /// Whether the crate includes candidate kernel layouts for `tune`.
    tunable: bool,
    model: ModelText,
    constants: Vec<Constant>,
    cache: CacheText,
    /// First column of the per-layer inputs that each layer reads, as a Rust array.
    per_layer_input_columns: Option<String>,
    arena: ArenaText,
    decode: PassText,
    prefill: PassText,
    predicted: PredictedText,
    /// Extra dispatches beyond the minimum, with the reason for each.
    extra_dispatches: Vec<(String, String)>,
    formats: String,
    memory: MemoryText,
    #[serde(flatten)]
    kernels: kernels::Context,
    layer_sections: Vec<SectionText>,
    layer_type: String,
    /// Whether some layers have recurrent state. Then `AnyLayer` holds the state of each layer.
    has_recurrent_layers: bool,
    /// Whether some layers are mixture-of-experts layers.
    has_experts: bool,
    layers: Vec<LayerText>,
    outer_fields: Vec<FieldText>,
    prologue: SchedulesText,
    epilogue: SchedulesText,
    next_gains: Option<NextGains>,
    scratches: Vec<ScratchText>,
    split_positions: usize,
    /// Whether large batches may expand latents to keys and values (MLA).
    expands_mla: bool,
    /// Whether the model has attention, whose KV splits depend on the row.
    splits_attention: bool,
    /// Whether attention appends to the KV cache in decode.
    appends: bool,
    /// Whether a scratch buffer has only the rows of a decode pass.
    has_decode_rows: bool,
    format_imports: String,
    kernel_format_imports: String,
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

/// Predicted decode speed.
#[derive(Serialize)]
struct PredictedText {
    chip: &'static str,
    context: String,
    speeds: String,
}

#[derive(Serialize)]
struct MemoryText {
    weights: String,
    per_position: String,
    scratch: String,
}

/// Names of the norm weights that a layer reads on behalf of the next one.
#[derive(Serialize)]
struct NextGains {
    layer: String,
    last: String,
}

#[derive(Serialize)]
struct LayerText {
    #[serde(rename = "type")]
    type_name: String,
    /// Whether the layer has recurrent state instead of a KV cache.
    is_recurrent: bool,
    /// Heads of the KV cache.
    heads: String,
    /// Positions of the KV cache.
    capacity: String,
    /// Elements of the KV cache per head and position.
    kv_stride: String,
}

fn layer_text(plan: &Plan, section: &Section) -> LayerText {
    let ring = section.state.and_then(|state| state.ring);
    let number = |value: Option<usize>| value.map_or_else(String::new, |it| names::number(it as u64));
    LayerText {
        type_name: names::camel_case(&section.name),
        is_recurrent: !section.recurrent_states.is_empty(),
        heads: number(section.state.map(|state| state.heads)),
        kv_stride: number(section.state.map(|state| kv_stride(plan, state.width))),
        capacity: ring.map_or_else(
            || "context".to_owned(),
            |ring| format!("context.min({})", names::number(ring.positions as u64)),
        ),
    }
}

impl Context {
    pub(crate) fn new(plan: &Plan, options: &CrateOptions, kernels: kernels::Context) -> Context {
        let layers = &plan.applications[1..plan.applications.len() - 1];
        let layer_ids: Vec<usize> = (1..plan.sections.len() - 1).collect();
        let prologue = &plan.sections[0];
        let epilogue = &plan.sections[plan.sections.len() - 1];
        let layer_sections: Vec<SectionText> =
            layer_ids.iter().map(|id| section_text(plan, &kernels, &plan.sections[*id])).collect();
        let has_recurrent_layers = layer_sections.iter().any(|section| !section.recurrent_states.is_empty());
        let has_experts = layer_sections.iter().any(|section| section.experts.is_some());
        let layer_type = match &layer_sections[..] {
            [only] if !has_recurrent_layers => only.type_name.clone(),
            _ => "AnyLayer".to_owned(),
        };
        Context {
            version: options.version,
            command: options.command.clone(),
            library: names::crate_name(&options.name).replace('-', "_"),
            binary: names::crate_name(&options.name),
            has_chat_template: options.has_chat_template,
            features: features(plan, options),
            runtime: options.runtime.clone().unwrap_or_else(|| RUNTIME.to_owned()),
            cuda: if options.cuda { &ptx::TARGETS } else { &[] },
            tunable: options.tunable,
            model: model_text(plan, options),
            constants: constants(plan),
            cache: cache_text(plan),
            per_layer_input_columns: per_layer_input_columns(plan),
            arena: ArenaText {
                bytes: names::number(plan.arena_bytes as u64),
                text: format!("{} for {} rows", size(plan.arena_bytes as u64), plan.chunk),
            },
            decode: pass_text(plan, Workload::decode(1)),
            prefill: pass_text(plan, Workload::prefill(plan.chunk as u64)),
            predicted: predicted_text(&Forecast::of(plan, options.chip)),
            extra_dispatches: plan.extra_dispatches(),
            formats: formats(plan),
            memory: MemoryText {
                weights: size(plan.weight_bytes()),
                per_position: plan.kv_cache_text(),
                scratch: size(plan.arena_bytes as u64),
            },
            has_experts,
            layer_sections,
            layer_type,
            has_recurrent_layers,
            layers: layers.iter().map(|layer| layer_text(plan, &plan.sections[layer.section])).collect(),
            outer_fields: outer_fields(plan),
            prologue: schedules(plan, &kernels, prologue, Caller::Forward),
            epilogue: schedules(plan, &kernels, epilogue, Caller::Head),
            next_gains: next_gains(plan),
            scratches: scratches(plan),
            split_positions: SPLIT_POSITIONS,
            expands_mla: plan.mla_expand.is_some(),
            appends: plan
                .sections
                .iter()
                .flat_map(|section| section.steps(Schedule::Decode))
                .any(|step| step.condition == Condition::SharedSlots),
            splits_attention: attention_shape(plan).is_some() || latent_shape(plan).is_some(),
            has_decode_rows: plan.scratch.iter().any(|scratch| scratch.per == RowsOf::DecodeRow),
            format_imports: format!("{{{}}}", kernels.weight_types.join(", ")),
            kernel_format_imports: format!("{{self, {}}}", kernels.weight_types.join(", ")),
            kernels,
        }
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
    if let Some((heads, LatentCache { width, rope_width })) = latent_shape(plan) {
        summary.push(format!("{heads} MLA heads, kv_lora_rank {width}, rope head dim {rope_width}"));
    }
    if let Some(width) = feed_forward(plan) {
        summary.push(format!("feed-forward {width}"));
    }
    if let Some(ExpertsInner { experts, chosen, shared, outputs, .. }) = experts_inner(plan) {
        let always = if *shared > 0 { format!(" and {shared} shared") } else { String::new() };
        let (chosen, experts) = (chosen - shared, experts - shared);
        summary.push(format!("{chosen} of {experts} experts of {}{always}", outputs / 2));
    }
    summary.push(format!("vocabulary {}", grouped(model.vocabulary as u64)));
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

fn constants(plan: &Plan) -> Vec<Constant> {
    let mut constants = Vec::new();
    let mut constant = |name, value: usize, doc: &str| {
        constants.push(Constant { name, value: names::number(value as u64), doc: doc.to_owned() });
    };
    constant("NUM_LAYERS", plan.applications.len() - 2, "Layers.");
    constant("HIDDEN_SIZE", plan.model.hidden, "Width of the residual stream.");
    if let Some((heads, key_heads, width)) = attention_shape(plan) {
        constant("NUM_ATTENTION_HEADS", heads, "Query heads.");
        constant("NUM_KV_HEADS", key_heads, "Key/value heads.");
        constant("HEAD_DIM", width, "Width of one head.");
    }
    if let Some(attend) = mla_attention(plan) {
        constant("NUM_ATTENTION_HEADS", attend.heads, "Query heads. All share one KV latent per position.");
        constant(
            "HEAD_GROUPS",
            forge_kernels::spec::mla_attention_heads(attend)[2],
            "Threadgroups that compute the heads of one row.",
        );
        constant("KV_LORA_RANK", attend.width, "Width of the compressed KV latent.");
        constant("QK_ROPE_HEAD_DIM", attend.rope_width, "Width of the part of a key that RoPE rotates.");
    }
    if let Some(width) = feed_forward(plan) {
        constant("INTERMEDIATE_SIZE", width, "Inner width of the MLP.");
    }
    if let Some((chosen, width)) = experts_shape(plan) {
        constant("NUM_EXPERTS_PER_TOKEN", chosen, "Experts evaluated per token, shared experts included.");
        constant("MOE_INTERMEDIATE_SIZE", width, "Inner width of one expert.");
    }
    constant("VOCAB_SIZE", plan.model.vocabulary, "Vocabulary size.");
    constant("MAX_CONTEXT", plan.context, "Maximum context length in tokens.");
    constant("PREFILL_CHUNK", plan.chunk, "Maximum rows of one pass; longer prompts take several passes.");
    if let Some(mla_expand) = plan.mla_expand {
        let from = "Rows of one sequence from which prefill expands latents to keys and values, which takes fewer operations.";
        constant("MLA_EXPAND_MIN_ROWS", mla_expand.min_rows, from);
        constant("MLA_EXPAND_TILE", mla_expand.tile, "Maximum positions expanded at once.");
    }
    constant("SMALL_BATCH_MAX", SMALL_BATCH_MAX, "Maximum rows that use the decode-sized kernels.");
    constant("MAX_DECODE_ROWS", DECODE_ROWS, "Maximum rows of a decode pass, each of another sequence.");
    let independent = "Maximum rows of a decode pass whose results do not depend on the number of rows.";
    constant("INDEPENDENT_ROWS", INDEPENDENT_ROWS, independent);
    let decoded =
        "Maximum rows that take decode passes; with more, one pass of the batch schedule is faster.";
    constant("DECODE_SCHEDULE_MAX_ROWS", plan.max_decoded_rows(), decoded);
    if attention_shape(plan).is_some() || mla_attention(plan).is_some() {
        constant("MAX_KV_SPLITS", MAX_KV_SPLITS, "Maximum KV splits of one pass: rows times splits per row.");
    }
    constants
}

/// First columns of the per-layer inputs, as a Rust array; `None` if the model has no per-layer inputs.
fn per_layer_input_columns(plan: &Plan) -> Option<String> {
    let layers = &plan.applications[1..plan.applications.len() - 1];
    let per_layer_input_columns: Vec<usize> = layers.iter().map(|layer| layer.first.unwrap_or(0)).collect();
    layers.iter().any(|layer| layer.first.is_some()).then(|| of_layers(&per_layer_input_columns))
}

fn formats(plan: &Plan) -> String {
    let formats = plan.bytes_by_format().into_iter();
    let formats: Vec<String> =
        formats.map(|(format, bytes)| format!("({:?}, {})", format.name(), names::number(bytes))).collect();
    format!("[{}]", formats.join(", "))
}

fn pass_text(plan: &Plan, load: Workload) -> PassText {
    let counts = plan.counts(load);
    let cost = pass_cost(plan, load);
    let split = plan.counts(Workload { splits: 2, ..load });
    let both = counts.dispatches_per_layer.iter().zip(&split.dispatches_per_layer);
    let more: Vec<usize> = both.map(|(plain, split)| split - plain).collect();
    let (per_layer, more) = (of_layers(&counts.dispatches_per_layer), of_layers(&more));
    let cost_text = format!(
        "Cost {{\n            dispatches: {},\n            barriers: {},\n            bytes_read: {},\n            operations: {},\n            dispatches_per_layer: &{per_layer},\n            extra_when_split: &{more},\n        }}",
        counts.dispatches,
        counts.barriers,
        names::number(cost.read()),
        names::number(cost.operations)
    );
    PassText {
        dispatches: counts.dispatches,
        barriers: counts.barriers,
        bytes_text: size(cost.weights_read),
        cost: cost_text,
    }
}

fn predicted_text(forecast: &Forecast) -> PredictedText {
    let tokens = forecast.typical().into_iter().chain(&forecast.decode_batches);
    let speed = |tokens: &Prediction| {
        format!("({}, {:.1})", tokens.load.sequences, tokens.load.rows as f64 / tokens.time.seconds())
    };
    PredictedText {
        chip: forecast.chip.name,
        context: names::number(forecast.typical().map_or(0, |token| token.load.length)),
        speeds: format!("[{}]", tokens.map(speed).collect::<Vec<_>>().join(", ")),
    }
}

/// One value per layer, as a Rust array.
pub(crate) fn of_layers(values: &[impl ToString]) -> String {
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    match &values[..] {
        [first, rest @ ..] if rest.iter().all(|other| other == first) => format!("[{first}; NUM_LAYERS]"),
        _ => format!("[{}]", values.join(", ")),
    }
}

/// Names of the norm weights that a layer reads on behalf of the next layer or of the head; `None` if no layer does.
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
