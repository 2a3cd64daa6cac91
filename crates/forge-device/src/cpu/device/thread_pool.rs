//! Thread pool: all threads run the same job, one job after another.
//!
//! A forward pass is some hundred dispatches of microseconds each. Threads therefore spin between jobs and
//! sleep only after [`SPIN`]. The caller is thread 0 and waits for the others.

use crate::error::panic_message;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Spin time before a thread sleeps.
const SPIN: Duration = Duration::from_micros(100);

/// A job; its argument is the thread index.
type Job<'a> = &'a (dyn Fn(usize) + Sync + 'a);

/// The pool. Dropping it joins the threads.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    /// Incremented for each job.
    generation: AtomicUsize,
    /// The current job. Its lifetime is erased, because `run` does not return while a thread uses it.
    job: Mutex<Option<Job<'static>>>,
    /// Threads that have not finished the current job.
    running: AtomicUsize,
    /// Threads that sleep or are about to.
    sleepers: AtomicUsize,
    stop: AtomicBool,
    sleep_lock: Mutex<()>,
    wake: Condvar,
    /// Panic message of a worker thread.
    worker_panic: Mutex<Option<String>>,
}

impl Pool {
    /// Starts `threads` threads, the caller included.
    pub(crate) fn new(threads: usize) -> Result<Pool, String> {
        let shared = Arc::new(Shared {
            generation: AtomicUsize::new(0),
            job: Mutex::new(None),
            running: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            sleep_lock: Mutex::new(()),
            wake: Condvar::new(),
            worker_panic: Mutex::new(None),
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

    /// The number of threads, the caller included.
    pub(crate) fn threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs `job` on every thread and waits for all. A panic becomes an error with its message.
    pub(crate) fn run(&mut self, job: Job<'_>) -> Result<(), String> {
        let shared = &*self.shared;
        if !self.threads.is_empty() {
            // SAFETY: only the lifetime changes, and the job is removed below before this function returns.
            let job = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(job) };
            *lock(&shared.job) = Some(job);
            shared.running.store(self.threads.len(), Ordering::Relaxed);
            shared.generation.fetch_add(1, Ordering::SeqCst);
            if shared.sleepers.load(Ordering::SeqCst) > 0 {
                let _guard = lock(&shared.sleep_lock);
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
        let theirs = lock(&shared.worker_panic).take();
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
            let _guard = lock(&self.shared.sleep_lock);
            self.shared.wake.notify_all();
        }
        for thread in self.threads.drain(..) {
            // Workers catch panics, so `join` cannot fail.
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
            *lock(&shared.worker_panic) = Some(panic_message(&*panic).to_owned());
        }
        shared.running.fetch_sub(1, Ordering::Release);
    }
}

/// Waits until the generation differs from `seen`, and returns it.
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
    // The sleeper increments `sleepers` before it reads the generation, and the caller increments the
    // generation before it reads `sleepers`. At least one of them sees the other's write.
    let mut sleep_lock = lock(&shared.sleep_lock);
    shared.sleepers.fetch_add(1, Ordering::SeqCst);
    while shared.generation.load(Ordering::SeqCst) == seen {
        sleep_lock = shared.wake.wait(sleep_lock).unwrap_or_else(PoisonError::into_inner);
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
    fn panics_are_errors_and_the_pool_continues() {
        let mut pool = Pool::new(3).unwrap();
        for failing in 0..3 {
            let result = pool.run(&|number| assert!(number != failing, "thread {number} fell"));
            assert_eq!(result, Err(format!("thread {failing} fell")));
            assert_eq!(pool.run(&|_| ()), Ok(()));
        }
    }
}
