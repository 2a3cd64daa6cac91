//! `forge`: compiles a language model into a program.
//!
//! This crate alone touches disk and terminal. Its commands are one file each; the driver, [`compile::compile`], is the
//! pipeline in one function and the place to start reading.

mod arguments;
mod auto;
mod build;
mod checkpoint;
mod compile;
mod counters;
mod doctor;
mod failure;
mod fetch;
mod inspect;
mod options;
mod output;
mod run;
mod terminal;
mod verify;

use arguments::{Arguments, Command};
use clap::Parser;
use failure::Failure;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    output::clean_up_when_interrupted();
    let done = match arguments.command {
        Command::Compile { compile, out, force, json } => compile::command(&compile, &out, force, json),
        Command::Run { compile, program } => run::command(&compile, &program),
        Command::Inspect { compile, stage, json } => inspect::command(&compile, stage, json),
        Command::Verify { crate_directory, report, json } => verify::command(&crate_directory, report, json),
        Command::Doctor => doctor::doctor(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let code = failure.exit_code();
            match failure {
                Failure::Misuse(message) | Failure::Other(message) => terminal::error(&message),
                Failure::Faults { faults, root } => {
                    terminal::faults(&faults, &root);
                    let count = faults.len();
                    let them = if count == 1 { "this" } else { "these" };
                    terminal::error(&format!("nothing was written; mend {them} first"));
                }
                Failure::Said(_) => {}
            }
            ExitCode::from(code)
        }
    }
}
