//! A time limit for grammar steps.
//!
//! Masks are computed on the scheduler's thread, where every client waits for them. llguidance bounds the
//! work of a mask by counts whose cost depends on the grammar. A watchdog thread therefore cancels steps that
//! take too long.

use llguidance::CancellationHandle;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Polling interval while steps are running.
const TICK: Duration = Duration::from_millis(20);

/// Running steps: their deadlines and cancellation handles.
#[derive(Default)]
struct Steps {
    steps: HashMap<u64, (Instant, CancellationHandle)>,
    next: u64,
    is_closed: bool,
}

#[derive(Default)]
struct Shared {
    steps: Mutex<Steps>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The watchdog thread.
pub(crate) struct Watchdog(Arc<Shared>);

/// A handle for registering steps.
#[derive(Clone)]
pub(crate) struct Watch(Arc<Shared>);

impl Watchdog {
    pub(crate) fn start() -> std::io::Result<Watchdog> {
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        std::thread::Builder::new().name("grammar watchdog".to_owned()).spawn(move || run(&of_thread))?;
        Ok(Watchdog(shared))
    }

    pub(crate) fn watch(&self) -> Watch {
        Watch(self.0.clone())
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_one();
    }
}

fn run(shared: &Shared) {
    let mut steps = shared.lock();
    while !steps.is_closed {
        if steps.steps.is_empty() {
            steps = shared.changed.wait(steps).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        drop(steps);
        std::thread::sleep(TICK);
        steps = shared.lock();
        let now = Instant::now();
        steps.steps.values().filter(|(due, _)| *due <= now).for_each(|(_, handle)| handle.cancel());
    }
}

impl Watch {
    /// Runs a step and cancels it by `handle` after `limit`.
    pub(crate) fn step<T>(
        &self,
        handle: &CancellationHandle,
        limit: Duration,
        step: impl FnOnce() -> T,
    ) -> T {
        let number = {
            let mut steps = self.0.lock();
            let was_idle = steps.steps.is_empty();
            let number = steps.next;
            steps.next += 1;
            steps.steps.insert(number, (Instant::now() + limit, handle.clone()));
            if was_idle {
                self.0.changed.notify_one();
            }
            number
        };
        let done = step();
        self.0.lock().steps.remove(&number);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_cancelled_after_its_limit() {
        let watchdog = Watchdog::start().unwrap();
        let (quick, slow) = (CancellationHandle::default(), CancellationHandle::default());
        watchdog.watch().step(&quick, Duration::from_secs(60), || std::thread::sleep(3 * TICK));
        assert!(!quick.is_cancelled());
        let start = Instant::now();
        watchdog.watch().step(&slow, Duration::from_millis(30), || {
            while !slow.is_cancelled() {
                assert!(start.elapsed() < Duration::from_secs(20), "it is never cancelled");
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        assert!(start.elapsed() >= Duration::from_millis(30));
    }
}
