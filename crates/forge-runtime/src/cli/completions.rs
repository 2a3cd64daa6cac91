//! `completions`: what a shell has to know to finish what is typed.

use super::super::model::Model;
use super::arguments::{Arguments, Completions};
use super::output::{Outcome, print};
use clap::CommandFactory;
use std::path::Path;

/// Prints a script for the shell, under the name that the program was called by.
pub(super) fn run<M: Model>(command: &Completions) -> Outcome {
    let called = std::env::args_os().next();
    let name =
        called.as_deref().and_then(|path| Path::new(path).file_stem()?.to_str()).unwrap_or(M::INFO.name);
    let mut script = Vec::new();
    clap_complete::generate(command.shell, &mut Arguments::command(), name, &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(true)
}
