//! `forge`: compiles a language model into a program.
//!
//! This crate alone touches disk and terminal. Its commands are one file each; the driver, [`compile::compile`], is the
//! pipeline in one function and the place to start reading.

mod arguments;
mod auto;
mod build;
mod checkpoint;
mod compile;
mod doctor;
mod error;
mod fetch;
mod format_names;
mod inspect;
mod left_out;
mod memory_traffic;
mod mix;
mod options;
mod output;
mod run;
mod terminal;
mod text_files;
mod verify;

use crate::arguments::{Arguments, Command};
use crate::error::Error;
use clap::{CommandFactory, Parser};
use std::process::ExitCode;

/// What a shell has to know to finish what is typed.
fn completions(shell: clap_complete::Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "forge", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Does what is asked.
fn run() -> Result<(), Error> {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() => {
            // What is wrong is told in clap's words; where nobody reads them the exit code still says it.
            let _ = error.print();
            return Err(Error::Reported(2));
        }
        // Help and the version are what was asked for.
        Err(asked) => return crate::terminal::print(&asked.render().ansi().to_string()),
    };
    crate::output::clean_up_when_interrupted();
    match arguments.command {
        Command::Compile { compile, out, force, json } => {
            crate::compile::command(&compile, &out, force, json)
        }
        Command::Run { compile, program } => crate::run::command(&compile, &program),
        Command::Inspect { compile, stage, json } => crate::inspect::command(&compile, stage, json),
        Command::Verify { crate_directory, report, json } => {
            crate::verify::command(&crate_directory, report, json)
        }
        Command::Doctor => crate::doctor::doctor(),
        Command::Completions { shell } => crate::terminal::print(&completions(shell)),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let code = failure.exit_code();
            match failure {
                Error::Usage(message) | Error::Other(message) => crate::terminal::error(&message),
                Error::Faults { faults, root } => {
                    crate::terminal::faults(&faults, &root);
                    let count = faults.len();
                    let them = if count == 1 { "this" } else { "these" };
                    crate::terminal::error(&format!("nothing was written; mend {them} first"));
                }
                Error::Reported(_) => {}
            }
            ExitCode::from(code)
        }
    }
}
