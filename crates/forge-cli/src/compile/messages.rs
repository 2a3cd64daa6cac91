//! What `forge compile` prints about the model, the plan and the result.

use crate::compile::options::shell_word;
use crate::compile::plan::{PlannedModel, parameters};
use crate::compile::text_files;
use crate::terminal;
use forge_frontend::LoadedCheckpoint;
use forge_ir::units::{count, grouped, size};
use forge_planner::{Plan, Workload, predict};
use forge_weights::Summary;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

pub(super) fn print_model(opened: &LoadedCheckpoint) {
    let graph = &opened.graph;
    let mut formats: Vec<&str> = graph.weights.iter().map(|weight| weight.format.name()).collect();
    formats.sort_unstable();
    formats.dedup();
    let files = opened.tensors.iter().map(|tensor| &tensor.file).collect::<BTreeSet<_>>().len();
    let files = if files == 1 { "1 file".to_owned() } else { format!("{files} files") };
    let (architecture, layers) = (&graph.model.architecture, graph.layers.len());
    let parameters = count(parameters(graph));
    terminal::stage(
        "Reading",
        &format!(
            "{architecture} · {layers} layers · {parameters} parameters · {}, {files}",
            formats.join(" and ")
        ),
    );
}

pub(super) fn print_plan(plan: &Plan) {
    let counts = plan.counts(Workload::decode(1));
    let layers: usize = counts.dispatches_per_layer.iter().sum();
    let in_layers = match &counts.dispatches_per_layer[..] {
        [first, rest @ ..] if rest.iter().all(|other| other == first) => format!("{first} per layer"),
        _ => format!("{layers} in layers"),
    };
    terminal::stage(
        "Planning",
        &format!(
            "{} dispatches per token: {in_layers} + {} · {} barriers · {} kernels · scratch {}",
            counts.dispatches,
            counts.dispatches - layers,
            counts.barriers,
            plan.kernels.len(),
            size(plan.arena_bytes as u64),
        ),
    );
}

/// Prints how many kernels use measured layouts.
pub(super) fn print_tuned(planned: &PlannedModel) {
    let Some(tuned) = &planned.options.tuned else { return };
    let (all, used) = tuned.used(&planned.plan);
    let others = match all - used {
        0 => String::new(),
        others => format!("; {others} more in the file do not apply to this model"),
    };
    terminal::more(&format!("{used} layouts measured on {}{others}", tuned.device));
}

/// Prints the quantization error: overall, of the worst layer, and of the worst matrices.
pub(super) fn print_errors(written: &Summary) {
    let percent = |error: f64| format!("{:.2}%", 100.0 * error);
    let worst: Vec<String> = written
        .worst()
        .iter()
        .take(3)
        .map(|stat| format!("{} {} ({})", stat.name, percent(stat.error), stat.format))
        .collect();
    let layer = written.layers().into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    if let (Some((layer, error)), false) = (layer, worst.is_empty()) {
        terminal::more(&format!(
            "quantization error: {} (relative RMS); worst layer {layer}: {}",
            percent(written.error()),
            percent(error)
        ));
        terminal::more(&format!("worst matrices: {}", worst.join(", ")));
    }
    if let Some(error) = written.output_error() {
        terminal::more(&format!("output error for the calibration text: {} (relative RMS)", percent(error)));
    }
}

pub(super) fn print_ready(planned: &PlannedModel, out: &Path, started: Instant) {
    let plan = &planned.plan;
    let (weights, scratch) = (plan.weight_bytes(), plan.arena_bytes as u64);
    let cache = plan.state_bytes(plan.context, plan.slots);
    terminal::stage(
        "Ready",
        &format!(
            "in {:.1} s.  Context {}: {} weights + {} KV cache + {} scratch = {}",
            started.elapsed().as_secs_f64(),
            grouped(plan.context as u64),
            size(weights),
            size(cache),
            size(scratch),
            size(weights + cache + scratch),
        ),
    );
    let chip = planned.chip();
    let time = predict(plan, chip, Workload::decode(plan.context.min(1024) as u64)).time;
    terminal::more(&format!(
        "{}: about {} tok/s decode predicted (bound by {})",
        chip.name,
        grouped((1.0 / time.seconds()).round() as u64),
        time.limit().name()
    ));
    let command = if text_files::has_chat_template(planned) { "chat" } else { "generate -p \"Hello\"" };
    terminal::stage(
        "Next",
        &format!("cd {} && cargo run --release -- {command}", shell_word(&out.to_string_lossy())),
    );
}
