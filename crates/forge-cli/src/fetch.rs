//! Downloads a checkpoint from the hub and shows progress: a bar per file on a terminal, otherwise a line at
//! intervals.

use crate::error::Error;
use crate::terminal;
use forge_hub::{Event, Request, Settings};
use forge_ir::units::size;
use indicatif::ProgressBar;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Interval of progress lines when stderr is not a terminal.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(15);

/// Downloads missing files to the hub's cache. Returns the snapshot directory, or the selected file.
pub(crate) fn fetch(request: &Request) -> Result<PathBuf, Error> {
    let failed = |error| explain_error(error, &request.repository);
    let settings = Settings::from_environment().map_err(failed)?;
    let mut progress = DownloadProgress {
        bar: None,
        file: String::new(),
        size: 0,
        before: 0,
        last: 0,
        started: Instant::now(),
        reported: Instant::now(),
    };
    let outcome = forge_hub::fetch(request, &settings, &mut |event| progress.show(&event));
    progress.clear();
    let fetched = outcome.map_err(failed)?;
    Ok(match fetched.file {
        Some(file) => fetched.snapshot.join(file),
        None => fetched.snapshot,
    })
}

/// The error, with ways to continue without the hub.
fn explain_error(error: forge_hub::Error, repository: &str) -> Error {
    Error::other(match error {
        forge_hub::Error::Repository(message) => {
            format!("no such directory: {repository}; {message}")
        }
        // The server is unreachable or sends invalid responses.
        error @ (forge_hub::Error::RetriesExhausted(_) | forge_hub::Error::InvalidResponse(_)) => format!(
            "{error}\n{repository} is not a local directory, so it was looked up on the hub. To work offline, set \
             HF_HUB_OFFLINE=1 to use the cache, or pass the path of a directory or a GGUF file"
        ),
        error => error.to_string(),
    })
}

/// Progress of the current file.
struct DownloadProgress {
    bar: Option<ProgressBar>,
    file: String,
    size: u64,
    /// Bytes downloaded by an earlier process.
    before: u64,
    /// Bytes present.
    last: u64,
    started: Instant,
    reported: Instant,
}

impl DownloadProgress {
    fn show(&mut self, event: &Event<'_>) {
        match event {
            Event::Note(note) => self.suspend_bar(|| note.lines().for_each(terminal::more)),
            Event::Total { files, bytes } => {
                let files = if *files == 1 { "1 file".to_owned() } else { format!("{files} files") };
                terminal::stage("Fetching", &format!("{files}, {}", size(*bytes)));
            }
            Event::Begin { file, done, size: whole } => {
                (self.file, self.size, self.before, self.last) = ((*file).to_owned(), *whole, *done, *done);
                (self.started, self.reported) = (Instant::now(), Instant::now());
                if *done > 0 {
                    terminal::more(&format!("{file}: resuming at {} of {}", size(*done), size(*whole)));
                }
                if std::io::stderr().is_terminal() {
                    let bar = terminal::transfer_bar(file, *whole);
                    bar.set_position(*done);
                    bar.reset_eta();
                    self.bar = Some(bar);
                }
            }
            Event::Progress(done) => {
                self.last = *done;
                // After a restart from zero, earlier bytes do not count.
                self.before = self.before.min(*done);
                match &self.bar {
                    Some(bar) => bar.set_position(*done),
                    None if self.reported.elapsed() >= PROGRESS_INTERVAL => {
                        self.reported = Instant::now();
                        terminal::more(&self.line());
                    }
                    None => {}
                }
            }
            Event::End => {
                self.clear();
                let (seconds, speed) = (self.started.elapsed().as_secs_f64(), size(self.speed() as u64));
                terminal::more(&format!("{}  {}   {seconds:.1} s, {speed}/s", self.file, size(self.size)));
            }
        }
    }

    /// Bytes per second.
    fn speed(&self) -> f64 {
        (self.last - self.before) as f64 / self.started.elapsed().as_secs_f64().max(1e-3)
    }

    /// The progress line.
    fn line(&self) -> String {
        let left = (self.size - self.last) as f64 / self.speed().max(1.0);
        let speed = size(self.speed() as u64);
        format!("{}  {} of {}  {speed}/s  {left:.0} s left", self.file, size(self.last), size(self.size))
    }

    /// Prints without disturbing the bar.
    fn suspend_bar(&self, print: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreachable_hub_error_lists_remedies() {
        let error = forge_hub::Error::RetriesExhausted(
            "https://hub: Connection refused, 6 times in a row".to_owned(),
        );
        let Error::Other(message) = explain_error(error, "owner/name") else {
            panic!("it is not the command line")
        };
        for part in ["Connection refused", "owner/name", "HF_HUB_OFFLINE=1", "path of a directory"] {
            assert!(message.contains(part), "{message}");
        }
    }
}
