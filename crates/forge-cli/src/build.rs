//! Builds generated crates with cargo, and says what it is doing meanwhile.

use crate::failure::Failure;
use crate::terminal;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How much of a crate is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parts {
    /// All of it.
    Whole,
    /// What needs no server, which is a third of the work.
    NoServer,
}

/// A crate built in release; gives the program.
///
/// `target` is the build folder, shared among crates where it is one, so that their dependencies are built once.
pub(crate) fn build(crate_directory: &Path, target: Option<&Path>, parts: Parts) -> Result<PathBuf, Failure> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--release", "--message-format=json-render-diagnostics"]);
    if parts == Parts::NoServer {
        command.arg("--no-default-features");
    }
    command.current_dir(crate_directory).stdout(Stdio::piped()).stderr(Stdio::piped());
    // What the compiler was built with is not for what it compiles.
    for (name, _) in
        std::env::vars().filter(|(name, _)| name.starts_with("CARGO_PKG_") || name == "CARGO_MANIFEST_DIR")
    {
        command.env_remove(name);
    }
    if let Some(target) = target {
        command.env("CARGO_TARGET_DIR", target);
    }
    let spinner = terminal::spinner("Building", "cargo build --release");
    if spinner.is_hidden() {
        terminal::stage("Building", "cargo build --release: a minute or two the first time");
    }
    let mut child = command
        .spawn()
        .map_err(|error| Failure::other(format!("cargo cannot be run: {error}; https://rustup.rs")))?;
    // Cargo's progress goes to the spinner, and is kept in case the build fails.
    let errors = child.stderr.take();
    let shown = spinner.clone();
    let said = std::thread::spawn(move || {
        let mut said = Vec::new();
        for line in errors.into_iter().flat_map(|errors| BufReader::new(errors).lines()).map_while(Result::ok)
        {
            let line = line.trim().to_owned();
            if line.starts_with("Compiling") || line.starts_with("Downloaded") {
                shown.set_message(line.to_lowercase());
            }
            said.push(line);
        }
        said
    });
    let mut program = None;
    for line in child
        .stdout
        .take()
        .into_iter()
        .flat_map(|output| BufReader::new(output).lines())
        .map_while(Result::ok)
    {
        let message: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        if let Some(executable) = message["executable"].as_str() {
            program = Some(PathBuf::from(executable));
        }
    }
    let status = child.wait().map_err(|error| Failure::other(format!("cargo: {error}")))?;
    spinner.finish_and_clear();
    let said = said.join().unwrap_or_default();
    match program {
        Some(program) if status.success() => Ok(program),
        _ => {
            Err(Failure::other(format!("{} does not build:\n{}", crate_directory.display(), said.join("\n"))))
        }
    }
}
