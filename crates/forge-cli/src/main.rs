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
mod error;
mod fetch;
mod format_names;
mod inspect;
mod left_out;
mod mix;
mod options;
mod output;
mod run;
mod terminal;
mod texts;
mod verify;

use arguments::{Arguments, Command};
use clap::{CommandFactory, Parser};
use error::Error;
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
        Err(asked) => return terminal::print(&asked.render().ansi().to_string()),
    };
    output::clean_up_when_interrupted();
    match arguments.command {
        Command::Compile { compile, out, force, json } => compile::command(&compile, &out, force, json),
        Command::Run { compile, program } => run::command(&compile, &program),
        Command::Inspect { compile, stage, json } => inspect::command(&compile, stage, json),
        Command::Verify { crate_directory, report, json } => verify::command(&crate_directory, report, json),
        Command::Doctor => doctor::doctor(),
        Command::Completions { shell } => terminal::print(&completions(shell)),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let code = failure.exit_code();
            match failure {
                Error::Usage(message) | Error::Other(message) => terminal::error(&message),
                Error::Faults { faults, root } => {
                    terminal::faults(&faults, &root);
                    let count = faults.len();
                    let them = if count == 1 { "this" } else { "these" };
                    terminal::error(&format!("nothing was written; mend {them} first"));
                }
                Error::Reported(_) => {}
            }
            ExitCode::from(code)
        }
    }
}
