//! A progress line on standard error, shown on terminals only and erased at the end.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// Delay before the line first appears.
const DELAY: Duration = Duration::from_secs(1);

/// Minimum time between updates.
const INTERVAL: Duration = Duration::from_millis(100);

/// A progress line: `label done of total`.
pub(crate) struct Progress {
    label: &'static str,
    next: Instant,
    is_shown: bool,
    is_terminal: bool,
}

impl Progress {
    /// A progress line that is not shown yet.
    pub(crate) fn new(label: &'static str) -> Progress {
        let next = Instant::now() + DELAY;
        Progress { label, next, is_shown: false, is_terminal: stderr().is_terminal() }
    }

    /// Updates the line.
    pub(crate) fn at(&mut self, done: usize, total: usize) {
        if self.is_terminal && Instant::now() >= self.next {
            let _ = write!(stderr(), "\r\x1b[2K{} {done} of {total}", self.label);
            self.is_shown = true;
            self.next = Instant::now() + INTERVAL;
        }
    }

    /// Erases the line.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            let _ = write!(stderr(), "\r\x1b[2K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
