//! `report.html`: a self-contained visual report of a compiled model.
//!
//! It shows fusion, the decode timeline and roofline of several chips, predicted tok/s of all chips, memory,
//! quantization error, and kernel checker results. Each plot is a module here, drawn with `svg`; the page is
//! `templates/report/report.html.jinja`.
//!
//! All times are predicted, and labeled as such. [`with_measurements`] adds kernel checker results to an
//! existing page.

pub(crate) mod fusion;
pub(crate) mod measured;
pub(crate) mod memory;
pub(crate) mod quantization_error;
pub(crate) mod roofline;
pub(crate) mod svg;
pub(crate) mod timeline;

pub use crate::report::measured::{Measurement, Verdict, with_measurements};

use crate::crate_files::{CrateOptions, RenderError};
use crate::names;
use forge_ir::Graph;
use forge_planner::{Chip, Forecast, Plan, Prediction, Schedule, StepTime, Workload, predict};
use minijinja::{AutoEscape, Environment, UndefinedBehavior, Value};
use serde::Serialize;

const TEMPLATE: &str = include_str!("../../../../templates/report/report.html.jinja");

/// Chips with plots of their own: one of each size, and most generations. The chip of the compilation
/// precedes them.
const DRAWN: [&str; 6] = ["m1", "m2-ultra", "m3-max", "m4", "m4-max", "m5-max"];

/// Facts of the report that are not part of the plan.
#[derive(Clone, Debug, Default)]
pub struct ReportFacts {
    /// Relative RMS quantization error of each stored weight, by name.
    pub errors: Vec<(String, f64)>,
    /// Relative RMS quantization error of each layer's matrices together, and of those outside the layers.
    pub layers: Vec<(String, f64)>,
    /// Number of sequences and tokens with reference logits in the crate.
    pub golden: Option<(usize, usize)>,
}

#[derive(Serialize)]
struct Context {
    name: String,
    architecture: String,
    command: String,
    version: &'static str,
    facts: Vec<(&'static str, String)>,
    sections: Vec<SectionText>,
    chips: Vec<ChipText>,
    steps: Vec<StepText>,
    heads: Vec<String>,
    speeds: Vec<SpeedText>,
    context: String,
    slots: usize,
    weights: String,
    totals: String,
    arena: String,
    arenas: Vec<ArenaText>,
    errors: Option<String>,
    worst: String,
    golden: Option<String>,
    measured: String,
}

#[derive(Serialize)]
struct SectionText {
    title: String,
    svg: String,
}

#[derive(Serialize)]
struct ChipText {
    name: &'static str,
    chosen: bool,
    about: String,
    timeline: String,
    roofline: String,
}

#[derive(Serialize)]
struct StepText {
    number: usize,
    step: String,
    kernel: String,
    times: u64,
    bytes: String,
    operations: String,
    waits: bool,
    /// Predicted time on each chip.
    microseconds: Vec<String>,
}

#[derive(Serialize)]
struct SpeedText {
    chip: &'static str,
    cells: Vec<String>,
    limit: &'static str,
}

#[derive(Serialize)]
struct ArenaText {
    title: String,
    svg: String,
}

/// Renders the page. `chip` is selected first.
pub fn report(
    graph: &Graph,
    plan: &Plan,
    options: &CrateOptions,
    chip: &'static Chip,
    facts: &ReportFacts,
) -> Result<String, RenderError> {
    let context = context(graph, plan, options, chip, facts);
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment
        .render_str(TEMPLATE, Value::from(minijinja::value::Serde(&context)))
        .map_err(|source| RenderError::of("report.html", source))
}

fn context(
    graph: &Graph,
    plan: &Plan,
    options: &CrateOptions,
    chip: &'static Chip,
    facts: &ReportFacts,
) -> Context {
    let others = DRAWN.into_iter().filter(|name| *name != chip.name).filter_map(Chip::from_name);
    let chips: Vec<&'static Chip> = std::iter::once(chip).chain(others).collect();
    let forecasts: Vec<Forecast> = Chip::ALL.iter().map(|chip| Forecast::of(plan, chip)).collect();
    Context {
        name: plan.model.name.clone(),
        architecture: plan.model.architecture.clone(),
        command: options.command.clone(),
        version: options.version,
        facts: key_facts(plan, options, chip),
        sections: sections(graph, plan),
        steps: steps(plan, &chips),
        chips: chips.iter().map(|drawn| chip_text(plan, drawn, drawn.name == chip.name)).collect(),
        heads: heads(&forecasts[0]),
        speeds: forecasts.iter().map(speed_text).collect(),
        context: names::grouped(plan.context as u64),
        slots: plan.slots,
        weights: crate::report::memory::weights(plan),
        totals: crate::report::memory::totals(plan),
        arena: format!(
            "{} bytes for {} rows; lower bound {} bytes",
            names::grouped(plan.arena_bytes as u64),
            plan.chunk,
            names::grouped(plan.arena_floor as u64)
        ),
        arenas: Schedule::ALL.map(|schedule| arena_text(plan, schedule)).into(),
        errors: crate::report::quantization_error::picture(&facts.errors),
        worst: crate::report::quantization_error::worst(&facts.layers, &facts.errors),
        golden: facts.golden.map(|(texts, tokens)| {
            format!(
                "golden.json has reference logits of {} in {}, computed from this crate's weights",
                crate::report::fusion::counted(tokens, "token", "tokens"),
                crate::report::fusion::counted(texts, "sequence", "sequences")
            )
        }),
        measured: crate::report::measured::nothing(),
    }
}

fn key_facts(plan: &Plan, options: &CrateOptions, chip: &Chip) -> Vec<(&'static str, String)> {
    let counts = plan.counts(Workload::decode(1));
    let layers = plan.applications.len() - 2;
    let of_layers: usize = counts.dispatches_per_layer.iter().sum();
    let a_layer = match &counts.dispatches_per_layer[..] {
        [first, rest @ ..] if rest.iter().all(|other| other == first) => format!("{first} per layer"),
        _ => format!("{of_layers} in layers"),
    };
    let formats = plan.bytes_by_format().into_iter();
    let formats: Vec<String> =
        formats.map(|(format, bytes)| format!("{} {}", names::size(bytes), format.name())).collect();
    // The timeline shows a longer context, where attention may be split.
    let shown = typical(plan, chip).dispatches;
    let more = match shown.checked_sub(counts.dispatches as u64) {
        None | Some(0) => String::new(),
        Some(more) => format!(
            "; {shown} at position {} on {}, as in the timeline: {more} more combine the KV splits of attention",
            names::grouped(shown_position(plan)),
            chip.name
        ),
    };
    vec![
        ("layers", layers.to_string()),
        ("parameters", names::grouped(options.parameters)),
        (
            "one decoded token",
            format!(
                "{} dispatches: {a_layer} and {} outside{more}",
                counts.dispatches,
                counts.dispatches - of_layers
            ),
        ),
        ("barriers", counts.barriers.to_string()),
        ("weights", formats.join(", ")),
        ("KV cache", format!("{}, in {}", cache_phrase(plan), plan.cache)),
        ("kernels", plan.kernels.len().to_string()),
    ]
}

/// The size of the cache, for display: `1.5 KB per token`, or with sliding windows
/// `256 B per token and 1.3 KB per token of the last 320`.
pub(crate) fn cache_phrase(plan: &Plan) -> String {
    let size = |bytes: usize| names::size(bytes as u64);
    let rings = plan.rings();
    let mut parts: Vec<String> = rings
        .iter()
        .map(|(ring, bytes)| format!("{} per token of the last {}", size(*bytes), ring.positions))
        .collect();
    if rings.is_empty() || plan.kept_bytes_per_position() > 0 {
        parts.insert(0, format!("{} per token", size(plan.kept_bytes_per_position())));
    }
    if plan.memory_bytes() > 0 {
        parts.push(format!("{} of recurrent state per sequence", size(plan.memory_bytes())));
    }
    parts.join(" and ")
}

/// The fusion diagram of each section, in the order of first use.
fn sections(graph: &Graph, plan: &Plan) -> Vec<SectionText> {
    let mut texts = Vec::new();
    for section in 0..plan.sections.len() {
        let Some(first) = plan.applications.iter().position(|it| it.section == section) else { continue };
        let times = plan.applications.iter().filter(|it| it.section == section).count();
        let Some(picture) = crate::report::fusion::picture(graph, plan, first) else { continue };
        let name = &plan.sections[section].name;
        let times = if times == 1 { String::new() } else { format!(" × {times}") };
        let [one, more] = picture.dispatches;
        let nodes = crate::report::fusion::counted(picture.nodes, "node becomes", "nodes become");
        let one = crate::report::fusion::counted(one, "dispatch", "dispatches");
        texts.push(SectionText {
            title: format!("{name}{times}: {nodes} {one} for one row, {more} for several"),
            svg: picture.svg,
        });
    }
    texts
}

fn chip_text(plan: &Plan, chip: &'static Chip, chosen: bool) -> ChipText {
    let token = typical(plan, chip);
    let rows = plan.chunk.min(plan.context) as u64;
    let prompt = predict(plan, chip, Workload::prefill(rows));
    ChipText {
        name: chip.name,
        chosen,
        about: format!(
            "{} · {} GPU cores · {} GB/s · {:.1} TFLOP/s · {} µs per dispatch · decode at {} tokens of context: {:.3} ms, bound by {}",
            chip.family.name(),
            chip.cores,
            chip.bandwidth,
            chip.f32_rate() / 1e12,
            chip.dispatch,
            names::grouped(token.load.length),
            token.time.seconds() * 1e3,
            token.time.limit().name()
        ),
        timeline: crate::report::timeline::picture(plan, &token),
        roofline: crate::report::roofline::picture(chip, &token, &prompt),
    }
}

/// The context length of the plotted token.
fn shown_position(plan: &Plan) -> u64 {
    plan.context.min(1024) as u64
}

/// The prediction of the plotted token.
fn typical(plan: &Plan, chip: &Chip) -> Prediction {
    predict(plan, chip, Workload::decode(shown_position(plan)))
}

/// The steps of a token with their times on each chip. The number of KV splits depends on the chip, so a chip
/// may lack the step that combines them.
fn steps(plan: &Plan, chips: &[&'static Chip]) -> Vec<StepText> {
    let tokens: Vec<Prediction> = chips.iter().map(|chip| typical(plan, chip)).collect();
    let Some(token) = tokens.first() else { return Vec::new() };
    let on = |other: &Prediction, step: &StepTime| {
        let same = |it: &&StepTime| (&it.section, it.place) == (&step.section, step.place);
        let found = other.steps.iter().find(same);
        found.map_or(String::new(), |it| format!("{:.2}", it.time.seconds() * 1e6))
    };
    let text = |(index, step): (usize, &StepTime)| StepText {
        number: index + 1,
        step: format!("{}.{}", step.section, step.step),
        kernel: step.kernel.clone(),
        times: step.times,
        bytes: names::grouped(step.cost.bytes()),
        operations: names::grouped(step.cost.operations),
        waits: step.waits,
        microseconds: tokens.iter().map(|other| on(other, step)).collect(),
    };
    token.steps.iter().enumerate().map(text).collect()
}

fn heads(forecast: &Forecast) -> Vec<String> {
    let tokens =
        forecast.decode.iter().map(|token| format!("decode at {}", names::grouped(token.load.length)));
    let prompts =
        forecast.prefill.iter().map(|prompt| format!("prefill {}", names::grouped(prompt.load.rows)));
    tokens.chain(prompts).collect()
}

fn speed_text(forecast: &Forecast) -> SpeedText {
    let cell = |prediction: &Prediction| {
        let speed = prediction.load.rows as f64 / prediction.time.seconds();
        if speed < 100.0 { format!("{speed:.1}") } else { names::grouped(speed.round() as u64) }
    };
    SpeedText {
        chip: Chip::from_name(forecast.chip.name).map_or("", |chip| chip.name),
        cells: forecast.decode.iter().chain(&forecast.prefill).map(cell).collect(),
        limit: forecast.typical().map_or("", |token| token.time.limit().name()),
    }
}

fn arena_text(plan: &Plan, schedule: Schedule) -> ArenaText {
    let rows = match schedule {
        Schedule::Decode => "one row".to_owned(),
        Schedule::Batch => format!("up to {} rows", plan.chunk),
    };
    ArenaText { title: format!("in a pass of {rows}"), svg: crate::report::memory::arena(plan, schedule) }
}
