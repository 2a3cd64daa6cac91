//! Terminal output: one line per stage, progress bars, and diagnostics with source lines.
//!
//! Progress goes to standard error, results to standard output.

use crate::error::Error;
use anstyle::{AnsiColor, Style};
use codespan_reporting::diagnostic::{Diagnostic as Report, Label};
use codespan_reporting::files::SimpleFile;
use codespan_reporting::term;
use forge_ir::Diagnostic;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::time::Duration;

const STAGE: Style = AnsiColor::Green.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const FAULT: Style = AnsiColor::Red.on_default().bold();

/// Writes a command's result to standard output, with colors on a terminal.
pub(crate) fn print(text: &str) -> Result<(), Error> {
    let mut out = anstream::stdout();
    // A closed pipe (`| head`) is not an error.
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::other(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints a stage's line: a verb in the margin and the result.
pub(crate) fn stage(verb: &str, what: &str) {
    // A closed terminal does not stop compilation.
    let _ = writeln!(anstream::stderr(), "  {STAGE}{verb:<10}{STAGE:#} {what}");
}

/// Prints a continuation line below a stage.
pub(crate) fn more(what: &str) {
    let _ = writeln!(anstream::stderr(), "             {what}");
}

/// Prints a warning.
pub(crate) fn warning(message: &str) {
    let _ = writeln!(anstream::stderr(), "{WARNING}warning{WARNING:#}: {message}");
}

/// Prints an error that is not about the user's files.
pub(crate) fn error(message: &str) {
    let _ = writeln!(anstream::stderr(), "{FAULT}error{FAULT:#}: {message}");
}

/// Prints the last line of a command ended by a signal, and exits.
pub(crate) fn exit_interrupted(more: &str) -> ! {
    // Clear a progress bar or spinner on this line.
    let start = if std::io::stderr().is_terminal() { "\r\x1b[2K" } else { "" };
    // Locked until the process has ended, so that other threads print nothing after it.
    let mut stderr = anstream::stderr().lock();
    let _ = writeln!(stderr, "{start}interrupted{more}");
    std::process::exit(130)
}

/// A fault as a line of a report.
pub(crate) fn fault_line(what: &str) -> String {
    format!("{FAULT}fault{FAULT:#}: {what}")
}

/// A progress bar over bytes, drawn only on a terminal.
pub(crate) fn bytes_bar(verb: &str, total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(10));
    let template =
        "  {prefix:<10.green.bold} {bar:30.cyan} {decimal_bytes} of {decimal_total_bytes}  {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("██░"));
    }
    bar.set_prefix(verb.to_owned());
    bar
}

/// A progress bar over a download's bytes.
pub(crate) fn transfer_bar(file: &str, total: u64) -> ProgressBar {
    let bar = bytes_bar("Fetching", total);
    if let Ok(style) = ProgressStyle::with_template(
        "  {prefix:<10.green.bold} {bar:30.cyan} {decimal_bytes} of {decimal_total_bytes}  {decimal_bytes_per_sec}  {eta} left  {msg}",
    ) {
        bar.set_style(style.progress_chars("██░"));
    }
    bar.set_message(file.to_owned());
    bar
}

/// A progress bar over steps.
pub(crate) fn steps_bar(verb: &str, total: u64) -> ProgressBar {
    let bar = bytes_bar(verb, total);
    if let Ok(style) = ProgressStyle::with_template(
        "  {prefix:<10.green.bold} {bar:30.cyan} {pos} of {len}  {eta} left  {msg}",
    ) {
        bar.set_style(style.progress_chars("██░"));
    }
    bar
}

/// A spinner for work of unknown length.
pub(crate) fn spinner(verb: &str, what: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
    if let Ok(style) = ProgressStyle::with_template("  {prefix:<10.green.bold} {spinner} {msg}  {elapsed}") {
        bar.set_style(style);
    }
    bar.set_prefix(verb.to_owned());
    bar.set_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

/// Prints every diagnostic with the source line it refers to. Places are relative to `root`.
pub(crate) fn faults(faults: &[Diagnostic], root: &std::path::Path) {
    let styled = anstream::stderr().as_inner().is_terminal();
    for fault in faults {
        let mut report = Report::error()
            .with_code(fault.code)
            .with_message(&fault.message)
            .with_notes(fault.notes.clone());
        let mut file = SimpleFile::new(String::new(), String::new());
        if let Some(place) = &fault.place
            && let Ok(text) = std::fs::read_to_string(root.join(&place.file))
        {
            file = SimpleFile::new(root.join(&place.file).display().to_string(), text);
            report =
                report.with_labels(vec![Label::primary((), place.span.clone()).with_message(&place.label)]);
        }
        let config = term::Config::default();
        let rendered = match styled {
            true => {
                let mut writer = term::termcolor::Buffer::ansi();
                let _ = term::emit_to_write_style(&mut writer, &config, &file, &report);
                writer.into_inner()
            }
            false => {
                let mut writer = term::termcolor::Buffer::no_color();
                let _ = term::emit_to_write_style(&mut writer, &config, &file, &report);
                writer.into_inner()
            }
        };
        let _ = std::io::stderr().write_all(&rendered);
    }
}
