//! A few threads that run one job after another, all of them on the same job.
//!
//! A model's step is some hundred dispatches of microseconds each, so between jobs threads spin for a moment, and
//! sleep when nothing has come. The caller is thread 0 and waits for the others.

use crate::error::panic_message;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a thread spins before it sleeps.
const SPIN: Duration = Duration::from_micros(100);

/// What all threads run; the argument is the thread's number.
type Job<'a> = &'a (dyn Fn(usize) + Sync + 'a);

/// The threads. Dropping it ends them.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    /// Raised by one for each job.
    generation: AtomicUsize,
    /// The job of this generation; its lifetime is hidden, because `run` does not return while a thread uses it.
    job: Mutex<Option<Job<'static>>>,
    /// Threads that have not finished this generation's job.
    running: AtomicUsize,
    /// Threads that sleep, or are about to.
    sleepers: AtomicUsize,
    stop: AtomicBool,
    bed: Mutex<()>,
    wake: Condvar,
    /// What a thread said when it panicked.
    trouble: Mutex<Option<String>>,
}

impl Pool {
    /// `threads` threads, the caller's among them.
    pub(crate) fn new(threads: usize) -> Result<Pool, String> {
        let shared = Arc::new(Shared {
            generation: AtomicUsize::new(0),
            job: Mutex::new(None),
            running: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            bed: Mutex::new(()),
            wake: Condvar::new(),
            trouble: Mutex::new(None),
        });
        let mut pool = Pool { shared, threads: Vec::new() };
        for number in 1..threads.max(1) {
            let shared = pool.shared.clone();
            let thread = thread::Builder::new()
                .name(format!("worker {number}"))
                .spawn(move || work(&shared, number))
                .map_err(|error| format!("cannot start thread {number} of {threads}: {error}"))?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// How many threads there are.
    pub(crate) fn threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs `job` on every thread, and waits for all. If one panics, its message is the error.
    pub(crate) fn run(&mut self, job: Job<'_>) -> Result<(), String> {
        let shared = &*self.shared;
        if !self.threads.is_empty() {
            // SAFETY: only the lifetime changes, and the job is taken back below before this function returns.
            let job = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(job) };
            *lock(&shared.job) = Some(job);
            shared.running.store(self.threads.len(), Ordering::Relaxed);
            shared.generation.fetch_add(1, Ordering::SeqCst);
            if shared.sleepers.load(Ordering::SeqCst) > 0 {
                let _bed = lock(&shared.bed);
                shared.wake.notify_all();
            }
        }
        let mine = catch_unwind(AssertUnwindSafe(|| job(0)));
        let mut spins = 0_u32;
        while shared.running.load(Ordering::Acquire) > 0 {
            spins = spins.wrapping_add(1);
            if spins.is_multiple_of(256) {
                thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        *lock(&shared.job) = None;
        let theirs = lock(&shared.trouble).take();
        match mine {
            Err(panic) => Err(panic_message(&*panic).to_owned()),
            Ok(()) => theirs.map_or(Ok(()), Err),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.generation.fetch_add(1, Ordering::SeqCst);
        {
            let _bed = lock(&self.shared.bed);
            self.shared.wake.notify_all();
        }
        for thread in self.threads.drain(..) {
            // A worker catches its panics, so there is nothing to learn from its end.
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn work(shared: &Shared, number: usize) {
    let mut seen = 0;
    loop {
        seen = wait(shared, seen);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        let job = *lock(&shared.job);
        if let Some(job) = job
            && let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(number)))
        {
            *lock(&shared.trouble) = Some(panic_message(&*panic).to_owned());
        }
        shared.running.fetch_sub(1, Ordering::Release);
    }
}

/// Waits until the generation is not `seen`, and says what it is.
fn wait(shared: &Shared, seen: usize) -> usize {
    let start = Instant::now();
    loop {
        for _ in 0..64 {
            let generation = shared.generation.load(Ordering::Acquire);
            if generation != seen {
                return generation;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > SPIN {
            break;
        }
    }
    // The sleeper counts itself before it looks at the generation, and the caller raises the generation before it
    // looks at the count: one of them sees the other.
    let mut bed = lock(&shared.bed);
    shared.sleepers.fetch_add(1, Ordering::SeqCst);
    while shared.generation.load(Ordering::SeqCst) == seen {
        bed = shared.wake.wait(bed).unwrap_or_else(PoisonError::into_inner);
    }
    shared.sleepers.fetch_sub(1, Ordering::SeqCst);
    shared.generation.load(Ordering::SeqCst)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_runs_every_job_once() {
        for threads in [1, 2, 5] {
            let mut pool = Pool::new(threads).unwrap();
            let counts: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            for round in 0..500 {
                pool.run(&|number| {
                    counts[number].fetch_add(1, Ordering::Relaxed);
                })
                .unwrap();
                if round % 100 == 0 {
                    thread::sleep(3 * SPIN);
                }
            }
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 500));
        }
    }

    #[test]
    fn a_panic_is_an_error_and_the_pool_lives_on() {
        let mut pool = Pool::new(3).unwrap();
        for culprit in 0..3 {
            let result = pool.run(&|number| assert!(number != culprit, "thread {number} fell"));
            assert_eq!(result, Err(format!("thread {culprit} fell")));
            assert_eq!(pool.run(&|_| ()), Ok(()));
        }
    }
}
