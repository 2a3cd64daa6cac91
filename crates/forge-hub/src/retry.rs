//! Retry policy for failed transfers.

use crate::error::Error;
use crate::event::{Event, Watch};
use std::time::{Duration, SystemTime};

/// A failed transfer, by whether a retry can help.
pub(crate) enum TransferError {
    /// A transient failure, such as a lost connection or a busy server.
    Passing {
        /// What happened.
        what: String,
        /// `Retry-After`, if sent.
        wait: Option<Duration>,
    },
    /// A permanent failure.
    Lasting(Error),
}

impl TransferError {
    pub(crate) fn passing(what: impl Into<String>) -> TransferError {
        TransferError::Passing { what: what.into(), wait: None }
    }
}

impl From<Error> for TransferError {
    fn from(error: Error) -> TransferError {
        TransferError::Lasting(error)
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
    pub(crate) fn persist<T>(
        &self,
        watch: &mut Watch<'_>,
        mut attempt: impl FnMut(&mut Watch<'_>, &mut bool) -> Result<T, TransferError>,
    ) -> Result<T, Error> {
        let mut failures = 0;
        loop {
            let mut got_on = false;
            let (what, wait) = match attempt(watch, &mut got_on) {
                Ok(done) => return Ok(done),
                Err(TransferError::Lasting(error)) => return Err(error),
                Err(TransferError::Passing { what, wait }) => (what, wait),
            };
            failures = if got_on { 1 } else { failures + 1 };
            if let Some(wait) = wait.filter(|wait| *wait > self.longest) {
                let seconds = wait.as_secs();
                return Err(Error::GaveUp(format!("{what}; the server requested a wait of {seconds} s")));
            }
            if failures >= self.tries {
                let times =
                    if failures == 1 { String::new() } else { format!(", {failures} times in a row") };
                return Err(Error::GaveUp(what + &times));
            }
            let pause =
                wait.unwrap_or_else(|| (self.first * 2_u32.pow((failures - 1).min(16))).min(self.longest));
            if pause >= Duration::from_secs(1) {
                watch(Event::Note(&format!("{what}; retrying in {} s", pause.as_secs())));
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
        let patience = RetryPolicy { tries: 3, first: Duration::ZERO, longest: Duration::ZERO };
        let tried = |gets_on: &dyn Fn(u32) -> bool| {
            let mut tries = 0;
            let outcome: Result<(), Error> = patience.persist(&mut |_| {}, |_, got_on| {
                tries += 1;
                *got_on = gets_on(tries);
                Err(TransferError::passing("cut off"))
            });
            assert!(matches!(outcome, Err(Error::GaveUp(_))));
            tries
        };
        assert_eq!(tried(&|_| false), 3);
        assert_eq!(tried(&|tries| tries == 2), 4);
    }
}
