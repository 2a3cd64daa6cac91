//! The program: what was typed, taken apart and carried out.
//!
//! One file a command. `output` is the one way to standard output, `progress` tells on standard error how far something
//! long has come.

mod activations;
mod arguments;
mod bench;
mod chat;
mod completions;
mod generate;
mod info;
mod interrupt;
mod logits;
mod output;
mod perplexity;
mod profile;
pub(super) mod progress;
mod record;
#[cfg(feature = "serve")]
mod serve;
mod tune;
mod verify;

use super::failure::Failure;
use super::model::Model;
use super::open::Program;
use arguments::{Arguments, Command};
use clap::{CommandFactory, FromArgMatches};
use std::process::ExitCode;

/// Runs the program on the process's arguments. Exit codes: 0 right, 1 wrong, 2 misuse; 130 where Ctrl-C ended what has no end of
/// its own to come to.
pub fn main<M: Model>(program: &Program) -> ExitCode {
    match run::<M>(program, std::env::args_os()) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            output::complain(&failure);
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Runs the program on `arguments`, the first of which is its name.
pub fn run<M: Model>(
    program: &Program,
    arguments: impl IntoIterator<Item = std::ffi::OsString>,
) -> Result<u8, Failure> {
    let info = M::INFO;
    let about = format!("{}, compiled by forge from {}", info.name, info.architecture);
    let matches = Arguments::command().name(info.name).about(about).try_get_matches_from(arguments);
    let arguments = match matches.and_then(|matches| Arguments::from_arg_matches(&matches)) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are no errors, and go to standard output; clap knows which is which.
            return match error.print() {
                Ok(()) => Ok(error.exit_code() as u8),
                Err(trouble) if trouble.kind() == std::io::ErrorKind::BrokenPipe => Ok(0),
                Err(trouble) => Err(Failure::wrong(trouble.to_string())),
            };
        }
    };
    let common = &arguments.common;
    let outcome = match &arguments.command {
        Command::Generate(command) => generate::run::<M>(program, common, command),
        Command::Chat(command) => chat::run::<M>(program, common, command),
        #[cfg(feature = "serve")]
        Command::Serve(command) => serve::run::<M>(program, common, command),
        Command::Perplexity(command) => perplexity::run::<M>(program, common, command),
        Command::Logits(command) => logits::run::<M>(program, common, command),
        Command::Bench(command) => bench::run::<M>(program, common, command),
        Command::Profile(command) => profile::run::<M>(program, common, command),
        Command::Tune(command) => tune::run::<M>(program, common, command),
        Command::Verify(command) => verify::run::<M>(program, common, command),
        Command::Info(command) => info::run::<M>(program, common, command),
        Command::Completions(command) => completions::run::<M>(command),
        Command::Record(command) => record::run::<M>(program, common, command),
    };
    match outcome {
        Ok(true) => Ok(0),
        Ok(false) => Ok(1),
        Err(output::Ended::Failed(failure)) => Err(failure),
        // Whoever was reading has seen enough.
        Err(output::Ended::PipeClosed) => Ok(0),
        Err(output::Ended::Interrupted) => Ok(interrupt::EXIT),
    }
}
