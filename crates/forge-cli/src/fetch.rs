//! A checkpoint from the hub, and what a person sees while it is fetched: a bar for each file on a terminal, and
//! elsewhere a line now and then.

use crate::error::Error;
use crate::terminal;
use crate::terminal::size;
use forge_hub::{Event, Request, Settings};
use indicatif::ProgressBar;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often there is a line where there is no terminal.
const BETWEEN_LINES: Duration = Duration::from_secs(15);

/// Sees to it that the hub's cache has what was asked for. Gives where it lies: a directory, or the file that was picked.
pub(crate) fn fetch(request: &Request) -> Result<PathBuf, Error> {
    let failed = |error| explained(error, &request.repository);
    let settings = Settings::from_environment().map_err(failed)?;
    let mut view = View {
        bar: None,
        file: String::new(),
        size: 0,
        before: 0,
        last: 0,
        begun: Instant::now(),
        said: Instant::now(),
    };
    let outcome = forge_hub::fetch(request, &settings, &mut |event| view.show(&event));
    view.clear();
    let fetched = outcome.map_err(failed)?;
    Ok(match fetched.file {
        Some(file) => fetched.snapshot.join(file),
        None => fetched.snapshot,
    })
}

/// What went wrong, and the ways to go on without the hub.
fn explained(error: forge_hub::Error, repository: &str) -> Error {
    Error::other(match error {
        forge_hub::Error::Repository(message) => {
            format!("there is no directory {repository} here; {message}")
        }
        // A server that is not reached, or answers what makes no sense.
        error @ (forge_hub::Error::GaveUp(_) | forge_hub::Error::Answer(_)) => format!(
            "{error}\n{repository} is no directory here, so it was looked up on the hub. Without the hub: set \
             HF_HUB_OFFLINE=1 to use what the cache has, or give the path of a directory or of a GGUF file"
        ),
        error => error.to_string(),
    })
}

/// The file that is being fetched.
struct View {
    bar: Option<ProgressBar>,
    file: String,
    size: u64,
    /// Bytes that an earlier process had fetched.
    before: u64,
    /// Bytes that are there.
    last: u64,
    begun: Instant,
    said: Instant,
}

impl View {
    fn show(&mut self, event: &Event<'_>) {
        match event {
            Event::Note(note) => self.aside(|| note.lines().for_each(terminal::more)),
            Event::Total { files, bytes } => {
                let files = if *files == 1 { "1 file".to_owned() } else { format!("{files} files") };
                terminal::stage("Fetching", &format!("{files}, {}", size(*bytes)));
            }
            Event::Begin { file, done, size: whole } => {
                (self.file, self.size, self.before, self.last) = ((*file).to_owned(), *whole, *done, *done);
                (self.begun, self.said) = (Instant::now(), Instant::now());
                if *done > 0 {
                    terminal::more(&format!("{file}: {} of {} are there already", size(*done), size(*whole)));
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
                // Where it starts over, nothing that was there before counts.
                self.before = self.before.min(*done);
                match &self.bar {
                    Some(bar) => bar.set_position(*done),
                    None if self.said.elapsed() >= BETWEEN_LINES => {
                        self.said = Instant::now();
                        terminal::more(&self.line());
                    }
                    None => {}
                }
            }
            Event::End => {
                self.clear();
                let (seconds, speed) = (self.begun.elapsed().as_secs_f64(), size(self.speed() as u64));
                terminal::more(&format!("{}  {}   {seconds:.1} s, {speed}/s", self.file, size(self.size)));
            }
        }
    }

    /// Bytes a second.
    fn speed(&self) -> f64 {
        (self.last - self.before) as f64 / self.begun.elapsed().as_secs_f64().max(1e-3)
    }

    /// How far it is.
    fn line(&self) -> String {
        let left = (self.size - self.last) as f64 / self.speed().max(1.0);
        let speed = size(self.speed() as u64);
        format!("{}  {} of {}  {speed}/s  {left:.0} s left", self.file, size(self.last), size(self.size))
    }

    /// Says something while there is a bar.
    fn aside(&self, say: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(say),
            None => say(),
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
    fn a_hub_that_is_not_reached_is_told_with_the_ways_around_it() {
        let error = forge_hub::Error::GaveUp("https://hub: Connection refused, 6 times in a row".to_owned());
        let Error::Other(said) = explained(error, "owner/name") else { panic!("it is not the command line") };
        for part in ["Connection refused", "owner/name", "HF_HUB_OFFLINE=1", "path of a directory"] {
            assert!(said.contains(part), "{said}");
        }
    }
}
