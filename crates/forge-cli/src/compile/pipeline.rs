//! The driver: compiles a checkpoint into a crate.
//!
//! [`compile`] is the whole pipeline, in order: open, read, measure (only to choose formats), plan, calibrate
//! (only with `--calibrate`), pack, render, reference logits, report, write. Each stage consumes the previous
//! one's result. The target directory is written only after all have succeeded.

use crate::arguments::{Certify, CompileArguments};
use crate::compile::options::command_line;
use crate::compile::output::{MARKER, Staging};
use crate::compile::pack::pack;
use crate::compile::plan::{PlannedModel, parameters, plan};
use crate::compile::ptx::{find_translator, translate};
use crate::compile::reference_logits::write_reference_logits;
use crate::compile::{messages, text_files};
use crate::error::Error;
use crate::quantize::calibration;
use crate::terminal;
use forge_codegen::CrateOptions;
use forge_ir::units::grouped;
use forge_kernels::ptx::Target;
use forge_report::ReportFacts;
use forge_weights::Summary;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// File name of the report.
pub(crate) const REPORT: &str = "report.html";

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
    let clang = if arguments.cuda() { Some(find_translator()?) } else { None };

    // Open, read, plan.
    let mut planned = plan(arguments)?;
    if planned.calibration.is_none() {
        planned.calibration = calibration::collect(arguments, &planned.opened, &planned.checkpoint)?;
    }
    let PlannedModel { opened, plan, name, .. } = &planned;
    let graph = &opened.graph;
    messages::print_plan(plan);
    messages::print_tuned(&planned);
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
        let kernels = |target: &Target| format!("src/{}", target.file);
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
    messages::print_ready(&planned, out, started);
    Ok((planned, written))
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
