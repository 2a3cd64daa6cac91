//! Standard output and standard error, and the ways a command can end early. Colors are used on
//! terminals; `NO_COLOR` and `CLICOLOR_FORCE` are respected.

use anstyle::{AnsiColor, Style};
use forge_device::error::Error;
use serde_json::Value;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// Why a command ended early.
#[derive(Debug)]
pub enum CommandExit {
    /// An error.
    Failed(Error),
    /// The reader closed the pipe. This is not an error.
    PipeClosed,
    /// Ctrl-C was pressed. The command has already printed a message.
    Interrupted,
}

impl From<Error> for CommandExit {
    fn from(failure: Error) -> CommandExit {
        CommandExit::Failed(failure)
    }
}

impl From<io::Error> for CommandExit {
    fn from(error: io::Error) -> CommandExit {
        match error.kind() {
            ErrorKind::BrokenPipe => CommandExit::PipeClosed,
            _ => CommandExit::Failed(Error::runtime(format!("standard output: {error}"))),
        }
    }
}

/// The result of a command: whether the checked values are right, or why it ended early.
pub type Outcome = Result<bool, CommandExit>;

/// Writes text to standard output and flushes it.
pub(crate) fn print(text: &str) -> Result<(), CommandExit> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Writes a JSON value and a line break.
pub(crate) fn print_json(value: &Value) -> Result<(), CommandExit> {
    print(&format!("{value}\n"))
}

const ERROR: Style = AnsiColor::Red.on_default().bold();
const NOTE: Style = Style::new().dimmed();

/// Prints an error message to standard error.
pub(crate) fn print_error(message: &dyn Display) {
    print_line(&format_args!("{ERROR}error:{ERROR:#} {message}"));
}

/// Prints a note to standard error, such as speed or device.
pub(crate) fn log_info(text: &dyn Display) {
    print_line(&format_args!("{NOTE}{text}{NOTE:#}"));
}

/// Prints a line to standard error. Write errors are ignored: a full disk or a closed log must not end a
/// running generation.
fn print_line(line: &dyn Display) {
    let _ = writeln!(anstream::stderr(), "{line}");
}
