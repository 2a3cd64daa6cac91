//! The page and its context. `templates/report/report.html.jinja` is the template.

use crate::timeline::shown_position;
use forge_ir::Graph;
use forge_ir::units::{grouped, size};
use forge_planner::{Chip, Forecast, Plan, Prediction, Schedule, StepTime, Workload, predict};
use minijinja::{AutoEscape, Environment, UndefinedBehavior, Value};
use serde::Serialize;

const TEMPLATE: &str = include_str!("../../../templates/report/report.html.jinja");

/// Chips with plots of their own: one of each size, and most generations. The chip of the compilation
/// precedes them.
const DRAWN: [&str; 6] = ["m1", "m2-ultra", "m3-max", "m4", "m4-max", "m5-max"];

/// Facts of the report that are not part of the plan.
#[derive(Clone, Debug, Default)]
pub struct ReportFacts {
    /// Number of parameters of the model.
    pub parameters: u64,
    /// The command that generates the crate.
    pub command: String,
    /// Version of forge.
    pub version: &'static str,
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
    chip: &'static Chip,
    facts: &ReportFacts,
) -> Result<String, minijinja::Error> {
    let context = context(graph, plan, chip, facts);
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.render_str(TEMPLATE, Value::from(minijinja::value::Serde(&context)))
}

fn context(graph: &Graph, plan: &Plan, chip: &'static Chip, facts: &ReportFacts) -> Context {
    let others = DRAWN.into_iter().filter(|name| *name != chip.name).filter_map(Chip::from_name);
    let chips: Vec<&'static Chip> = std::iter::once(chip).chain(others).collect();
    let forecasts: Vec<Forecast> = Chip::ALL.iter().map(|chip| Forecast::of(plan, chip)).collect();
    Context {
        name: plan.model.name.clone(),
        architecture: plan.model.architecture.clone(),
        command: facts.command.clone(),
        version: facts.version,
        facts: key_facts(plan, facts, chip),
        sections: sections(graph, plan),
        steps: steps(plan, &chips),
        chips: chips.iter().map(|drawn| chip_text(plan, drawn, drawn.name == chip.name)).collect(),
        heads: heads(&forecasts[0]),
        speeds: forecasts.iter().map(speed_text).collect(),
        context: grouped(plan.context as u64),
        slots: plan.slots,
        weights: crate::memory::weights(plan),
        totals: crate::memory::totals(plan),
        arena: format!(
            "{} bytes for {} rows; lower bound {} bytes",
            grouped(plan.arena_bytes as u64),
            plan.chunk,
            grouped(plan.arena_floor as u64)
        ),
        arenas: Schedule::ALL.map(|schedule| arena_text(plan, schedule)).into(),
        errors: crate::quantization_error::picture(&facts.errors),
        worst: crate::quantization_error::worst(&facts.layers, &facts.errors),
        golden: facts.golden.map(|(texts, tokens)| {
            format!(
                "golden.json has reference logits of {} in {}, computed from this crate's weights",
                crate::fusion::counted(tokens, "token", "tokens"),
                crate::fusion::counted(texts, "sequence", "sequences")
            )
        }),
        measured: crate::measured::nothing(),
    }
}

fn key_facts(plan: &Plan, facts: &ReportFacts, chip: &Chip) -> Vec<(&'static str, String)> {
    let counts = plan.counts(Workload::decode(1));
    let layers = plan.applications.len() - 2;
    let of_layers: usize = counts.dispatches_per_layer.iter().sum();
    let a_layer = match &counts.dispatches_per_layer[..] {
        [first, rest @ ..] if rest.iter().all(|other| other == first) => format!("{first} per layer"),
        _ => format!("{of_layers} in layers"),
    };
    let formats = plan.bytes_by_format().into_iter();
    let formats: Vec<String> =
        formats.map(|(format, bytes)| format!("{} {}", size(bytes), format.name())).collect();
    // The timeline shows a longer context, where attention may be split.
    let shown = typical(plan, chip).dispatches;
    let more = match shown.checked_sub(counts.dispatches as u64) {
        None | Some(0) => String::new(),
        Some(more) => format!(
            "; {shown} at position {} on {}, as in the timeline: {more} more combine the KV splits of attention",
            grouped(shown_position(plan)),
            chip.name
        ),
    };
    vec![
        ("layers", layers.to_string()),
        ("parameters", grouped(facts.parameters)),
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
        ("KV cache", format!("{}, in {}", plan.kv_cache_text(), plan.cache)),
        ("kernels", plan.kernels.len().to_string()),
    ]
}

/// The fusion diagram of each section, in the order of first use.
fn sections(graph: &Graph, plan: &Plan) -> Vec<SectionText> {
    let mut texts = Vec::new();
    for section in 0..plan.sections.len() {
        let Some(first) = plan.applications.iter().position(|it| it.section == section) else { continue };
        let times = plan.applications.iter().filter(|it| it.section == section).count();
        let Some(picture) = crate::fusion::picture(graph, plan, first) else { continue };
        let name = &plan.sections[section].name;
        let times = if times == 1 { String::new() } else { format!(" × {times}") };
        let [one, more] = picture.dispatches;
        let nodes = crate::fusion::counted(picture.nodes, "node becomes", "nodes become");
        let one = crate::fusion::counted(one, "dispatch", "dispatches");
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
            grouped(token.load.length),
            token.time.seconds() * 1e3,
            token.time.limit().name()
        ),
        timeline: crate::timeline::picture(plan, &token),
        roofline: crate::roofline::picture(chip, &token, &prompt),
    }
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
        bytes: grouped(step.cost.bytes()),
        operations: grouped(step.cost.operations),
        waits: step.waits,
        microseconds: tokens.iter().map(|other| on(other, step)).collect(),
    };
    token.steps.iter().enumerate().map(text).collect()
}

fn heads(forecast: &Forecast) -> Vec<String> {
    let tokens = forecast.decode.iter().map(|token| format!("decode at {}", grouped(token.load.length)));
    let batches = forecast.decode_batches.iter().map(|tokens| format!("{} sequences", tokens.load.sequences));
    let prompts = forecast.prefill.iter().map(|prompt| format!("prefill {}", grouped(prompt.load.rows)));
    tokens.chain(batches).chain(prompts).collect()
}

fn speed_text(forecast: &Forecast) -> SpeedText {
    let cell = |prediction: &Prediction| {
        let speed = prediction.load.rows as f64 / prediction.time.seconds();
        if speed < 100.0 { format!("{speed:.1}") } else { grouped(speed.round() as u64) }
    };
    SpeedText {
        chip: Chip::from_name(forecast.chip.name).map_or("", |chip| chip.name),
        cells: forecast.all().map(cell).collect(),
        limit: forecast.typical().map_or("", |token| token.time.limit().name()),
    }
}

fn arena_text(plan: &Plan, schedule: Schedule) -> ArenaText {
    let rows = match schedule {
        Schedule::Decode => "one row".to_owned(),
        Schedule::Batch => format!("up to {} rows", plan.chunk),
    };
    ArenaText { title: format!("in a pass of {rows}"), svg: crate::memory::arena(plan, schedule) }
}
