//! How far something long has come, told on standard error if that is a terminal: on one line that is taken away again.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// What takes less is not worth a word.
const SILENCE: Duration = Duration::from_secs(1);

/// Between one word and the next.
const PAUSE: Duration = Duration::from_millis(100);

/// A line that says how far something is.
pub(crate) struct Progress {
    doing: &'static str,
    next: Instant,
    is_shown: bool,
    is_terminal: bool,
}

impl Progress {
    /// Begins; says nothing yet.
    pub(crate) fn new(doing: &'static str) -> Progress {
        let next = Instant::now() + SILENCE;
        Progress { doing, next, is_shown: false, is_terminal: stderr().is_terminal() }
    }

    /// So much is done.
    pub(crate) fn at(&mut self, done: usize, total: usize) {
        if self.is_terminal && Instant::now() >= self.next {
            let _ = write!(stderr(), "\r\x1b[2K{} {done} of {total}", self.doing);
            self.is_shown = true;
            self.next = Instant::now() + PAUSE;
        }
    }

    /// Takes the line away.
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
