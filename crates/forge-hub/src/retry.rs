//! Retry policy for failed transfers.

use crate::error::Error;
use crate::event::{Event, ProgressFn};
use std::time::{Duration, SystemTime};

/// A failed transfer, by whether a retry can help.
pub(crate) enum TransferError {
    /// A transient failure, such as a lost connection or a busy server.
    Transient {
        /// What happened.
        what: String,
        /// `Retry-After`, if sent.
        wait: Option<Duration>,
    },
    /// A permanent failure.
    Permanent(Error),
}

impl TransferError {
    pub(crate) fn transient(what: impl Into<String>) -> TransferError {
        TransferError::Transient { what: what.into(), wait: None }
    }
}

impl From<Error> for TransferError {
    fn from(error: Error) -> TransferError {
        TransferError::Permanent(error)
    }
}

/// Number of attempts and waiting times.
#[derive(Clone, Debug)]
pub struct RetryPolicy {
    /// Attempts without progress before giving up.
    pub tries: u32,
    /// Wait after the first failure; it doubles each time.
    pub first: Duration,
    /// Longest wait. If the server requests a longer one, the transfer fails.
    pub longest: Duration,
}

impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        RetryPolicy { tries: 6, first: Duration::from_secs(1), longest: Duration::from_secs(300) }
    }
}

impl RetryPolicy {
    /// Repeats an operation until it succeeds, fails permanently, or reaches the limit. The operation sets
    /// its argument if it made progress, which resets the count of failures.
    pub(crate) fn run<T>(
        &self,
        progress: &mut ProgressFn<'_>,
        mut attempt: impl FnMut(&mut ProgressFn<'_>, &mut bool) -> Result<T, TransferError>,
    ) -> Result<T, Error> {
        let mut failures = 0;
        loop {
            let mut made_progress = false;
            let (what, wait) = match attempt(progress, &mut made_progress) {
                Ok(done) => return Ok(done),
                Err(TransferError::Permanent(error)) => return Err(error),
                Err(TransferError::Transient { what, wait }) => (what, wait),
            };
            failures = if made_progress { 1 } else { failures + 1 };
            if let Some(wait) = wait.filter(|wait| *wait > self.longest) {
                let seconds = wait.as_secs();
                return Err(Error::RetriesExhausted(format!(
                    "{what}; the server requested a wait of {seconds} s"
                )));
            }
            if failures >= self.tries {
                let times =
                    if failures == 1 { String::new() } else { format!(", {failures} times in a row") };
                return Err(Error::RetriesExhausted(what + &times));
            }
            let pause =
                wait.unwrap_or_else(|| (self.first * 2_u32.pow((failures - 1).min(16))).min(self.longest));
            if pause >= Duration::from_secs(1) {
                progress(Event::Note(&format!("{what}; retrying in {} s", pause.as_secs())));
            }
            std::thread::sleep(pause);
        }
    }
}

/// Parses `Retry-After`: seconds or a date.
pub(crate) fn retry_after(header: &str) -> Option<Duration> {
    let header = header.trim();
    match header.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => {
            let date = httpdate::parse_http_date(header).ok()?;
            Some(date.duration_since(SystemTime::now()).unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_retry_after() {
        assert_eq!(retry_after("7"), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        let soon = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(60));
        assert!(retry_after(&soon).is_some_and(|wait| (50..=60).contains(&wait.as_secs())));
        assert_eq!(retry_after("later"), None);
    }

    #[test]
    fn only_progress_resets_the_retry_count() {
        let retry = RetryPolicy { tries: 3, first: Duration::ZERO, longest: Duration::ZERO };
        let tried = |makes_progress: &dyn Fn(u32) -> bool| {
            let mut tries = 0;
            let outcome: Result<(), Error> = retry.run(&mut |_| {}, |_, made_progress| {
                tries += 1;
                *made_progress = makes_progress(tries);
                Err(TransferError::transient("cut off"))
            });
            assert!(matches!(outcome, Err(Error::RetriesExhausted(_))));
            tries
        };
        assert_eq!(tried(&|_| false), 3);
        assert_eq!(tried(&|tries| tries == 2), 4);
    }
}
