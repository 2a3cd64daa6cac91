//! `forge`: compiles a language model into a standalone Rust program.
//!
//! Only this crate touches disk and terminal. Each command is a file or directory of `commands`. Start reading
//! at [`compile::pipeline::compile`], the driver: it is the whole pipeline in one function.

mod arguments;
mod build;
mod checkpoint;
mod commands;
mod compile;
mod error;
mod fetch;
mod install_advice;
mod quantize;
#[cfg(test)]
mod reference_page;
mod terminal;

use crate::arguments::{Arguments, Command};
use crate::commands::report::ReportOptions;
use crate::error::Error;
use clap::{CommandFactory, Parser};
use std::process::ExitCode;

/// The completion script for a shell.
fn completions(shell: clap_complete::Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "forge", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Parses the command line and runs the command.
fn run() -> Result<(), Error> {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() => {
            // clap prints its own message. If stderr is closed, the exit code still reports the error.
            let _ = error.print();
            return Err(Error::Reported(2));
        }
        // --help and --version are not errors.
        Err(help) => return crate::terminal::print(&help.render().ansi().to_string()),
    };
    crate::compile::output::clean_up_when_interrupted();
    match arguments.command {
        Command::Compile { compile, out, force, json } => {
            crate::commands::compile::command(&compile, &out, force, json)
        }
        Command::Run { compile, program } => crate::commands::run::command(&compile, &program),
        Command::Inspect { compile, stage, json } => crate::commands::inspect::command(&compile, stage, json),
        Command::Verify { crate_directory, program, report, json } => {
            crate::commands::verify::command(&crate_directory, program.as_deref(), report, json)
        }
        Command::Report { compile, device, out, minutes, quick, program } => {
            let options = ReportOptions { device, out, minutes, is_quick: quick, program };
            crate::commands::report::command(&compile, &options)
        }
        Command::Doctor => crate::commands::doctor::doctor(),
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
                    crate::terminal::error(&format!("nothing was written; fix {them} and compile again"));
                }
                Error::Reported(_) => {}
            }
            ExitCode::from(code)
        }
    }
}
