//! The command interface, and the main function of generated programs.

use crate::cli::arguments::Common;
use crate::cli::output;
use crate::cli::output::{CommandExit, Outcome};
use clap::{ArgMatches, Args, FromArgMatches};
use forge_device::error::Error;
use forge_device::program::CompiledModel;
use std::ffi::OsString;
use std::process::ExitCode;

/// The arguments of [`Command::run`].
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The model.
    pub program: &'a CompiledModel,
    /// The global options.
    pub common: &'a Common,
    /// The command line definition, for shell completions.
    pub definition: &'a clap::Command,
}

/// A subcommand: its arguments and its implementation.
pub trait Command: Args {
    /// The subcommand's name.
    const NAME: &'static str;

    /// Whether `--help` omits it.
    const IS_HIDDEN: bool = false;

    /// Runs the command. `Ok(false)` means that the result is wrong, such as a failed comparison.
    fn run(&self, context: &Context<'_>) -> Outcome;
}

/// A type-erased [`Command`]; see [`command()`].
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    name: &'static str,
    is_hidden: bool,
    define: fn(clap::Command) -> clap::Command,
    run: fn(&Context<'_>, &ArgMatches) -> Outcome,
}

/// The [`Entry`] of a command.
pub const fn command<C: Command>() -> Entry {
    Entry {
        name: C::NAME,
        is_hidden: C::IS_HIDDEN,
        define: C::augment_args,
        run: |context, matches| match C::from_arg_matches(matches) {
            Ok(command) => command.run(context),
            Err(error) => Err(CommandExit::Failed(Error::usage(error.to_string()))),
        },
    }
}

/// Disables the backtraces that errors capture if `RUST_BACKTRACE` is set; panics keep theirs. A server's client could
/// otherwise request work of seconds: llguidance captures one for each level of nested rules in a rejected grammar.
fn disable_error_backtraces() {
    // SAFETY: `main` calls it first, before the process has another thread.
    unsafe { std::env::set_var("RUST_LIB_BACKTRACE", "0") };
}

/// The `main` function of a program: runs it on the process's arguments. The process must have no other thread yet. Exit
/// codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted.
pub fn main(program: &CompiledModel, commands: &[Entry]) -> ExitCode {
    disable_error_backtraces();
    match run(program, commands, std::env::args_os()) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            output::print_error(&failure);
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Runs a program on `arguments`, the first of which is the program's name.
pub fn run(
    program: &CompiledModel,
    commands: &[Entry],
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<u8, Error> {
    let definition = definition(program.info.name, program.info.architecture, commands);
    let matches = match definition.clone().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        // Help and version are clap errors; clap prints them to standard output.
        Err(error) => {
            return match error.print() {
                Ok(()) => Ok(error.exit_code() as u8),
                Err(trouble) if trouble.kind() == std::io::ErrorKind::BrokenPipe => Ok(0),
                Err(trouble) => Err(Error::runtime(trouble.to_string())),
            };
        }
    };
    let common = Common::from_arg_matches(&matches).map_err(|error| Error::usage(error.to_string()))?;
    let chosen = matches
        .subcommand()
        .and_then(|(name, matches)| Some((commands.iter().find(|entry| entry.name == name)?, matches)));
    let Some((entry, matches)) = chosen else {
        return Err(Error::usage("no command: see --help"));
    };
    match (entry.run)(&Context { program, common: &common, definition: &definition }, matches) {
        Ok(true) => Ok(0),
        Ok(false) => Ok(1),
        Err(CommandExit::Failed(failure)) => Err(failure),
        // The reader of the output has closed it.
        Err(CommandExit::PipeClosed) => Ok(0),
        Err(CommandExit::Interrupted) => Ok(crate::cli::interrupt::EXIT),
    }
}

/// The clap definition of the command line.
pub(crate) fn definition(name: &'static str, architecture: &str, commands: &[Entry]) -> clap::Command {
    let command = clap::Command::new(name)
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_subcommand(true)
        .subcommand_required(true)
        .arg_required_else_help(true);
    let subcommands =
        commands.iter().map(|entry| (entry.define)(clap::Command::new(entry.name)).hide(entry.is_hidden));
    // The options would describe the program by their own doc comment.
    Common::augment_args(command)
        .about(format!("{name}, compiled by forge from {architecture}"))
        .subcommands(subcommands)
}

#[cfg(test)]
mod tests {
    use super::{command, definition};
    use crate::cli::Info;

    #[test]
    fn help_begins_with_the_program() {
        let help =
            definition("tiny", "LlamaForCausalLM", &[command::<Info>()]).render_long_help().to_string();
        assert!(help.starts_with("tiny, compiled by forge from LlamaForCausalLM\n"), "{help}");
    }
}
