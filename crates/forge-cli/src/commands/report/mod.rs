//! `forge report`: checks a model on this machine's GPU and writes one file to send to the project.
//!
//! It runs the steps of `docs/contributing/first-run-on-a-mac.md`. A step that fails does not stop the others.
//! The file has no paths, user names or host names.

mod options;
mod redact;
mod steps;
mod system;

pub(crate) use crate::commands::report::options::ReportOptions;

use crate::arguments::CompileArguments;
use crate::commands::report::redact::Redactor;
use crate::commands::report::steps::{Program, Status, Step};
use crate::commands::run;
use crate::error::Error;
use crate::terminal;
use serde_json::{Value, json};
use std::path::Path;

/// Version of the file's format.
const FORMAT: u32 = 1;

/// `forge report`.
pub(crate) fn command(arguments: &CompileArguments, options: &ReportOptions) -> Result<(), Error> {
    let (crate_directory, path) = match &options.program {
        Some(program) => (None, program.clone()),
        None => {
            let (directory, program) = run::prepare(arguments, crate::build::BuildFeatures::NoServer)?;
            (Some(directory), program)
        }
    };
    let program = Program { path, device: options.device.clone() };
    let kernels = crate_directory.as_ref().map(|directory| directory.join("src/kernels.metal"));
    let mut steps = Vec::new();
    for step in steps::all(kernels.as_deref(), options) {
        terminal::stage("Running", step.name);
        let done = step.run(&program);
        terminal::more(&done.line());
        steps.push(done);
    }
    let redactor = Redactor::of_this_machine();
    let report = redactor.value(&report(arguments, options, &steps));
    let text = serde_json::to_string_pretty(&report).map_err(|error| Error::other(error.to_string()))?;
    if let Some(secret) = redactor.find(&report) {
        return Err(Error::other(format!("the report still contains the {secret}: nothing was written")));
    }
    std::fs::write(&options.out, text + "\n").map_err(|error| Error::write(&options.out, &error))?;
    terminal::print(&summary(&steps, &options.out, &report["system"]["chip"]))?;
    if steps.iter().any(|step| matches!(step.status, Status::Failed(_))) {
        return Err(Error::Reported(1));
    }
    Ok(())
}

fn report(arguments: &CompileArguments, options: &ReportOptions, steps: &[Step]) -> Value {
    let count = |is: fn(&Status) -> bool| steps.iter().filter(|step| is(&step.status)).count();
    let model = Path::new(&arguments.model).file_name().map(|name| name.to_string_lossy().into_owned());
    json!({
        "format": FORMAT,
        "forge": env!("CARGO_PKG_VERSION"),
        "model": model,
        "quant": arguments.quant,
        "device": options.device,
        "system": system::collect(),
        "passed": count(|status| *status == Status::Passed),
        "failed": count(|status| matches!(status, Status::Failed(_))),
        "skipped": count(|status| matches!(status, Status::Skipped(_))),
        "steps": steps.iter().map(Step::json).collect::<Vec<_>>(),
    })
}

/// What passed, and where to send the file.
fn summary(steps: &[Step], out: &Path, chip: &Value) -> String {
    let lines: String = steps.iter().map(|step| format!("  {}\n", step.line())).collect();
    let chip = chip.as_str().unwrap_or("unknown chip");
    format!(
        "{lines}\nThe report is in {}. It has no paths, user names or host names; you can read it first.\n\
         To send it, open an issue in the project's repository with the title `Mac report: {chip}`, and attach the file.\n",
        out.display()
    )
}
