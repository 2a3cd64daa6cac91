//! The one way to standard output, what is said on standard error beside it, and the ways in which a command can end
//! early. Standard error has colours if it is a terminal; `NO_COLOR` and `CLICOLOR_FORCE` are heeded.

use crate::error::Error;
use anstyle::{AnsiColor, Style};
use serde_json::Value;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// Why a command ended before its end.
#[derive(Debug)]
pub enum CommandExit {
    /// It failed.
    Failed(Error),
    /// Nobody reads its output any more, which is no failure.
    PipeClosed,
    /// Ctrl-C was pressed, and noticed; what there is to say of it has been said.
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

/// What a command gives: whether all was right.
pub type Outcome = Result<bool, CommandExit>;

/// Writes text, at once.
pub(crate) fn print(text: &str) -> Result<(), CommandExit> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Writes a JSON value on a line of its own.
pub(crate) fn print_json(value: &Value) -> Result<(), CommandExit> {
    print(&format!("{value}\n"))
}

const TROUBLE: Style = AnsiColor::Red.on_default().bold();
const ASIDE: Style = Style::new().dimmed();

/// Says on standard error what is wrong.
pub(crate) fn complain(trouble: &dyn Display) {
    say(&format_args!("{TROUBLE}error:{TROUBLE:#} {trouble}"));
}

/// Says something on standard error that is not what was asked for: how fast it was, where it was done.
pub(crate) fn remark(text: &dyn Display) {
    say(&format_args!("{ASIDE}{text}{ASIDE:#}"));
}

/// A line on standard error. If nobody reads it, or the disk that it goes to is full, the program goes on: an answer under
/// way is not to end with the log.
fn say(line: &dyn Display) {
    let _ = writeln!(anstream::stderr(), "{line}");
}
