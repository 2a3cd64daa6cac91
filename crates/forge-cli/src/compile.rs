//! The driver: compiles a checkpoint into a crate.
//!
//! [`compile`] is the whole pipeline, in order: open, read, measure (only to choose formats), plan, calibrate
//! (only with `--calibrate`), pack, render, reference logits, report, write. Each stage consumes the previous
//! one's result. The target directory is written only after all have succeeded.
//!
//! Longer than 400 lines, because it reads as one pipeline from start to end.

use crate::arguments::{Certify, CompileArguments};
use crate::auto;
use crate::calibration::{self, Calibration};
use crate::checkpoint::Directory;
use crate::doctor;
use crate::error::Error;
use crate::ignored_tensors;
use crate::options::{Choice, command_line, name, options, shell_word};
use crate::output::{MARKER, Staging};
use crate::terminal;
use crate::text_files;
use forge_codegen::{CrateFiles, CrateOptions};
use forge_frontend::{Checkpoint, LoadedCheckpoint};
use forge_ir::units::{count, grouped, size};
use forge_ir::{Graph, Op, int8_tolerances};
use forge_kernels::ptx;
use forge_planner::{Chip, Options, Plan, Workload, predict};
use forge_report::ReportFacts;
use forge_weights::{CheckpointWeights, PackedFile, Summary};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// File name of the packed weights.
const WEIGHTS: &str = "weights.safetensors";

/// File name of the report.
pub(crate) const REPORT: &str = "report.html";

/// A checkpoint that has been opened, read and planned.
pub(crate) struct PlannedModel {
    pub(crate) checkpoint: Directory,
    pub(crate) opened: LoadedCheckpoint,
    pub(crate) options: Options,
    pub(crate) plan: Plan,
    pub(crate) name: String,
    /// Activation statistics, if formats have been chosen with them.
    calibration: Option<Calibration>,
}

impl PlannedModel {
    /// The chip that predictions are for: `--chip`, or the default.
    pub(crate) fn chip(&self) -> &'static Chip {
        self.options.chip.unwrap_or_else(Chip::common)
    }
}

/// `forge compile`.
pub(crate) fn command(
    arguments: &CompileArguments,
    out: &Path,
    force: bool,
    as_json: bool,
) -> Result<(), Error> {
    let (planned, written) = compile(arguments, out, force)?;
    if as_json {
        let summary = summary(&planned, &written, out);
        terminal::print(&format!("{summary:#}\n"))?;
    }
    Ok(())
}

/// The absolute path of `--runtime`, for the crate's manifest.
fn runtime_directory(directory: &Path) -> Result<String, Error> {
    let manifest = directory.join("Cargo.toml");
    let text = std::fs::read_to_string(&manifest).map_err(|error| Error::read(&manifest, &error))?;
    if !text.lines().any(|line| line == "name = \"forge-runtime\"") {
        let shown = directory.display();
        return Err(Error::usage(format!("--runtime {shown}: not a forge-runtime crate directory")));
    }
    let directory = directory.canonicalize().map_err(|error| Error::read(directory, &error))?;
    Ok(directory.display().to_string())
}

/// Compiles a checkpoint into a crate at `out`. Returns the plan and a summary of the packed weights.
pub(crate) fn compile(
    arguments: &CompileArguments,
    out: &Path,
    force: bool,
) -> Result<(PlannedModel, Summary), Error> {
    let started = Instant::now();
    let sources = [&arguments.tuned, &arguments.calibrate, &arguments.imatrix]
        .into_iter()
        .flatten()
        .map(PathBuf::as_path);
    let sources: Vec<&Path> = std::iter::once(Path::new(&arguments.model)).chain(sources).collect();
    let staging = Staging::begin(out, force, &sources)?;
    // Report missing tools before doing any work.
    let clang = if arguments.cuda() { Some(translator()?) } else { None };

    // Open, read, plan.
    let mut planned = plan(arguments)?;
    if planned.calibration.is_none() {
        planned.calibration = calibration::collect(arguments, &planned.opened, &planned.checkpoint)?;
    }
    let PlannedModel { opened, plan, name, .. } = &planned;
    let graph = &opened.graph;
    print_plan(plan);
    print_tuned(&planned);
    // Reject an unusable tokenizer before packing, which is slow.
    text_files::check(&planned)?;

    // Pack: stream the weight file.
    staging.check_disk_space(plan.weight_bytes())?;
    let written = pack(&planned, &staging)?;

    // Render: all source text.
    let crate_options = CrateOptions {
        name: name.clone(),
        parameters: parameters(graph),
        chip: planned.chip(),
        has_chat_template: text_files::has_chat_template(&planned),
        cuda: arguments.cuda(),
        tunable: arguments.with_tuning,
        runtime: arguments.runtime.as_deref().map(runtime_directory).transpose()?,
        command: command_line(arguments),
        version: env!("CARGO_PKG_VERSION"),
    };
    let mut files =
        forge_codegen::render(plan, &crate_options).map_err(|error| Error::other(error.to_string()))?;
    if let Some(clang) = &clang {
        let kernels = |target: &ptx::Target| format!("src/{}", target.file);
        translate(clang, "src/kernels.metal", kernels, &mut files)?;
        if arguments.with_tuning {
            translate(clang, forge_codegen::LAYOUTS, forge_codegen::layouts_ptx, &mut files)?;
        }
    }
    for (path, bytes) in &files {
        staging.write(path, bytes)?;
    }
    let texts = files
        .iter()
        .filter(|(path, _)| path.starts_with("src/"))
        .filter(|(path, _)| !path.ends_with(".ptx") && !path.starts_with("src/layouts."));
    let lines: usize = texts.map(|(_, bytes)| bytes.iter().filter(|byte| **byte == b'\n').count()).sum();
    terminal::stage("Rendering", &format!("{}  {} lines in src", out.display(), grouped(lines as u64)));
    for file in text_files::ALL {
        if let Some(bytes) = text_files::text(&planned, file)? {
            staging.write(file, &bytes)?;
        }
    }

    // Certify: compute reference logits from the packed weights.
    let golden = match arguments.certify() {
        Certify::None => None,
        effort => Some(write_reference_logits(&planned, effort, &staging)?),
    };

    // Report: the HTML page.
    let errors = written.weights.iter().map(|stat| (stat.name.clone(), stat.error)).collect();
    let CrateOptions { parameters, command, version, .. } = crate_options;
    let marker = json!({"forge": version, "command": command, "model": plan.model.name});
    let facts = ReportFacts { parameters, command, version, errors, layers: written.layers(), golden };
    let page = forge_report::report(graph, plan, planned.chip(), &facts)
        .map_err(|error| Error::other(error.to_string()))?;
    staging.write(REPORT, page.as_bytes())?;

    // Write: move everything into place at once.
    staging.write(MARKER, format!("{marker:#}\n").as_bytes())?;
    staging.finish()?;
    print_ready(&planned, out, started);
    Ok((planned, written))
}

/// The clang that compiles kernels to PTX.
fn translator() -> Result<PathBuf, Error> {
    ptx::find_clang().ok_or_else(|| {
        Error::other(format!(
            "--target cuda needs clang 15 or later with the NVPTX target, and none was found on PATH: {}",
            doctor::ptx_advice()
        ))
    })
}

/// Compiles a kernel source to PTX and adds one file per target.
fn translate(
    clang: &Path,
    text: &str,
    name: impl Fn(&ptx::Target) -> String,
    files: &mut CrateFiles,
) -> Result<(), Error> {
    let spinner = terminal::spinner("Rendering", &format!("{text} for NVIDIA GPUs"));
    let translated = ptx::translate_all(clang, &String::from_utf8_lossy(&files[text]));
    spinner.finish_and_clear();
    let translated = translated.map_err(|error| Error::other(error.to_string()))?;
    for (target, ptx) in ptx::TARGETS.iter().zip(translated) {
        files.insert(name(target), ptx.into_bytes());
    }
    Ok(())
}

/// The stages that write nothing: open, read, plan.
pub(crate) fn plan(arguments: &CompileArguments) -> Result<PlannedModel, Error> {
    let (mut options, choice) = options(arguments)?;
    let checkpoint = Directory::find(&arguments.model)?;
    let name = name(arguments, &checkpoint)?;
    let root = checkpoint.root().to_owned();
    let faults = |faults| Error::Faults { faults, root: root.clone() };
    let frontend =
        forge_frontend::Options { name: name.clone(), allow_unknown: arguments.ignore_config_key.clone() };
    let mut opened = forge_frontend::read_model(&checkpoint, &frontend).map_err(faults)?;
    print_model(&opened);
    ignored_tensors::print(&opened, arguments.verbose);
    let mut calibration = None;
    options = match choice {
        Some(Choice::Bits(bits)) => {
            calibration = calibration::collect(arguments, &opened, &checkpoint)?;
            auto::choose(&mut opened, &checkpoint, calibration.as_ref(), options, bits)?
        }
        Some(Choice::Mix(mix)) => mix.choose(&mut opened, &checkpoint, options)?,
        None => options,
    };
    opened.graph = forge_planner::untie(opened.graph, &options).map_err(faults)?;
    let plan = forge_planner::plan(&opened.graph, &options).map_err(faults)?;
    Ok(PlannedModel { checkpoint, opened, options, plan, name, calibration })
}

/// Writes weights.safetensors into the staging directory.
fn pack(planned: &PlannedModel, staging: &Staging) -> Result<Summary, Error> {
    let PlannedModel { checkpoint, opened, plan, calibration, .. } = planned;
    let (graph, started) = (&opened.graph, Instant::now());
    let bytes = |weight: &forge_ir::Weight| match weight.format.is_quantized() {
        true => weight.format.matrix_bytes(weight.rows(), weight.columns()),
        false => {
            let element = weight.format.planes()[0].element.bytes() as u64;
            element * weight.shape.iter().product::<usize>() as u64
        }
    };
    let (encoded, others): (Vec<_>, Vec<_>) =
        graph.weights.iter().partition(|weight| weight.encoding.is_some() || weight.blocks.is_some());
    // Several weights may be slices of one tensor.
    let encoded: BTreeSet<String> = encoded.iter().flat_map(|weight| weight.tensors()).collect();
    let encoded = encoded.iter().filter_map(|name| opened.tensors.get(name)).map(|tensor| tensor.bytes);
    let before = others.into_iter().map(bytes).sum::<u64>() + encoded.sum::<u64>();
    let mut file = staging.create(WEIGHTS)?;
    let bar = terminal::bytes_bar("Packing", plan.weight_bytes());
    let source = CheckpointWeights::new(graph, |tensor, offset, out| {
        opened.tensors.read(checkpoint, tensor, offset, out)
    });
    let mut progress = |progress: forge_weights::Progress<'_>| {
        bar.set_length(progress.total);
        bar.set_position(progress.written);
    };
    let summary = forge_weights::write_calibrated(
        graph,
        &plan.weights,
        &source,
        calibration.as_ref().map(|calibration| &calibration.statistics),
        &mut file,
        &mut progress,
    );
    bar.finish_and_clear();
    let summary =
        summary.map_err(|fault| Error::Faults { faults: vec![fault], root: checkpoint.root().to_owned() })?;
    let seconds = started.elapsed().as_secs_f64();
    terminal::stage("Packing", &format!("{} → {}   {seconds:.1} s", size(before), size(summary.bytes)));
    print_errors(&summary);
    Ok(summary)
}

/// Prints the quantization error: overall, of the worst layer, and of the worst matrices.
fn print_errors(written: &Summary) {
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

/// Writes golden.json: reference logits of the packed weights. Returns the number of sequences and of tokens.
fn write_reference_logits(
    planned: &PlannedModel,
    effort: Certify,
    staging: &Staging,
) -> Result<(usize, usize), Error> {
    let PlannedModel { opened, plan, .. } = planned;
    let written = Directory::at(staging.path().to_owned());
    let failed = |fault: forge_ir::Diagnostic| Error::other(format!("golden.json: {fault}"));
    let started = Instant::now();
    let packed =
        PackedFile::open(&opened.graph, &plan.weights, |offset, out| written.read(WEIGHTS, offset, out));
    let packed = packed.map_err(failed)?;
    let (vocabulary, parameters) = (plan.model.vocabulary, parameters(&opened.graph));
    let sequences = match effort {
        Certify::Quick => forge_reference::quick_sequences(vocabulary, plan.context),
        _ => forge_reference::sequences(vocabulary, plan.context, parameters),
    };
    let rows: usize = sequences.iter().map(|sequence| sequence.ids.len()).sum();
    let spinner = terminal::spinner(
        "Certifying",
        &format!("reference logits of {} sequences, {rows} tokens", sequences.len()),
    );
    let golden = forge_reference::golden(&opened.graph, &packed, plan.cache, &sequences);
    spinner.finish_and_clear();
    let golden = golden.map_err(failed)?;
    let tolerance = forge_ir::tolerance(plan.cache);
    let text = json!({
        "model": plan.model.name,
        "tolerance": {"bound": tolerance.bound, "reason": tolerance.reason},
        "int8_activations": int8_bounds(planned),
        "sequences": golden,
    });
    staging.write("golden.json", format!("{text}\n").as_bytes())?;
    let seconds = started.elapsed().as_secs_f64();
    terminal::stage(
        "Certifying",
        &format!("reference logits of {} sequences, {rows} tokens   {seconds:.1} s", golden.len()),
    );
    Ok((golden.len(), rows))
}

/// Tolerances for int8 activations, the CPU device's default for quantized weights. Each bounds the logit
/// error of a share of the positions.
fn int8_bounds(planned: &PlannedModel) -> Vec<serde_json::Value> {
    let PlannedModel { opened, plan, .. } = planned;
    if !plan.weights.iter().any(|packed| packed.format.is_quantized()) {
        return Vec::new();
    }
    let has_router =
        |apply| opened.graph.body(apply).nodes.iter().any(|node| matches!(node.op, Op::Route(_)));
    let tolerances = int8_tolerances(opened.graph.layers.iter().any(has_router));
    let bounds =
        [0.5, 0.9, 1.0].into_iter().zip(tolerances).filter(|(_, tolerance)| tolerance.bound.is_finite());
    bounds
        .map(|(share, tolerance)| json!({"share": share, "bound": tolerance.bound, "reason": tolerance.reason}))
        .collect()
}

/// Number of parameters of the model.
pub(crate) fn parameters(graph: &Graph) -> u64 {
    graph.weights.iter().map(|weight| weight.shape.iter().map(|size| *size as u64).product::<u64>()).sum()
}

fn print_model(opened: &LoadedCheckpoint) {
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

fn print_plan(plan: &Plan) {
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
fn print_tuned(planned: &PlannedModel) {
    let Some(tuned) = &planned.options.tuned else { return };
    let (all, used) = tuned.used(&planned.plan);
    let others = match all - used {
        0 => String::new(),
        others => format!("; {others} more in the file do not apply to this model"),
    };
    terminal::more(&format!("{used} layouts measured on {}{others}", tuned.device));
}

fn print_ready(planned: &PlannedModel, out: &Path, started: Instant) {
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

/// The JSON summary.
fn summary(planned: &PlannedModel, written: &Summary, out: &Path) -> serde_json::Value {
    let plan = &planned.plan;
    let counts = plan.counts(Workload::decode(1));
    json!({
        "out": out.display().to_string(),
        "name": planned.name,
        "model": plan.model,
        "options": planned.options,
        "parameters": parameters(&planned.opened.graph),
        "formats": plan.bytes_by_format().into_iter().map(|(format, bytes)| (format.name(), bytes)).collect::<std::collections::BTreeMap<_, _>>(),
        "memory": {
            "weights_bytes": plan.weight_bytes(),
            "kv_bytes_per_position": plan.cache_bytes_per_position(),
            "kv_bytes": plan.state_bytes(plan.context, plan.slots),
            "arena_bytes": plan.arena_bytes,
            "context": plan.context,
            "slots": plan.slots,
        },
        "ignored_tensors": ignored_tensors::to_json(&planned.opened),
        "decode": counts,
        "weights": written.weights,
        "errors": {"all": written.error(), "layers": written.layers(), "outputs": written.output_error()},
        "kernels": plan.kernels.iter().map(|kernel| &kernel.name).collect::<Vec<_>>(),
    })
}
