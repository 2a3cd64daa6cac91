//! I/O threads for expert reads, so that the disk has several requests in flight.
//!
//! Demand reads are served in order of request. Prefetches are served only while no demand read is queued,
//! and few at a time, because a read in flight cannot be cancelled. After a failed read the queue is skipped,
//! and the next wait returns the error.

use crate::offload::direct_io::Source;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// Number of threads: requests in flight.
const THREADS: usize = 8;
/// Maximum prefetches in flight; a demand read may have to wait for them.
const MAX_PREFETCHES: usize = 2;
/// Maximum bytes per request, so that large records are divided among threads.
const MAX_REQUEST: usize = 1 << 20;

/// Identifies the read of a record.
pub(crate) type ReadId = u64;

/// A byte range to read, and its destination.
pub(crate) struct ReadRequest {
    /// The record's read id.
    pub(crate) ticket: ReadId,
    pub(crate) file_offset: u64,
    pub(crate) destination: *mut u8,
    pub(crate) bytes: usize,
}

// SAFETY: the caller of [`IoPool::submit`] promises that nothing else accesses the destination.
unsafe impl Send for ReadRequest {}

/// The priority of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// A demand read, served in order.
    Demand,
    /// A prefetch, served when no demand read is queued.
    Prefetch,
}

/// The I/O threads. Dropping the pool waits for the reads in flight.
pub(crate) struct IoPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    source: Arc<dyn Source>,
    state: Mutex<State>,
    requested: Condvar,
    done: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<ReadRequest>,
    /// Prefetches.
    prefetches: VecDeque<ReadRequest>,
    /// Prefetches in flight.
    prefetches_in_flight: usize,
    /// Outstanding requests of each record.
    outstanding: HashMap<ReadId, usize>,
    /// The first error.
    error: Option<String>,
    is_closing: bool,
}

impl State {
    /// Whether no request of a record is outstanding.
    fn is_done(&self, ticket: ReadId) -> bool {
        !self.outstanding.contains_key(&ticket)
    }

    /// The next request for a thread.
    fn next(&mut self) -> Option<(ReadRequest, Priority)> {
        if let Some(read) = self.queue.pop_front() {
            return Some((read, Priority::Demand));
        }
        if self.prefetches_in_flight == MAX_PREFETCHES {
            return None;
        }
        let read = self.prefetches.pop_front()?;
        self.prefetches_in_flight += 1;
        Some((read, Priority::Prefetch))
    }

    /// Removes prefetches of a record that have not started.
    fn take_prefetches(&mut self, ticket: ReadId) -> VecDeque<ReadRequest> {
        let (of_record, others) =
            std::mem::take(&mut self.prefetches).into_iter().partition(|read| read.ticket == ticket);
        self.prefetches = others;
        of_record
    }

    /// Counts a request that was read or skipped. Returns whether it was the last one of its record.
    fn end(&mut self, ticket: ReadId) -> bool {
        let left = self.outstanding.entry(ticket).or_default();
        *left = left.saturating_sub(1);
        let is_last = *left == 0;
        if is_last {
            self.outstanding.remove(&ticket);
        }
        is_last
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IoPool {
    pub(crate) fn new(source: Arc<dyn Source>) -> Result<IoPool, String> {
        let (state, requested, done) = (Mutex::default(), Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { source, state, requested, done });
        let mut pool = IoPool { shared, threads: Vec::new() };
        for number in 0..THREADS {
            let shared = pool.shared.clone();
            let thread = thread::Builder::new()
                .name(format!("expert I/O {number}"))
                .spawn(move || work(&shared))
                .map_err(|error| format!("cannot start an expert I/O thread: {error}"))?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Queues a read.
    ///
    /// # Safety
    /// Until [`IoPool::drain`] returns, or [`IoPool::is_loaded`] is true for this read, nothing else may
    /// access the destination.
    pub(crate) unsafe fn submit(
        &self,
        ReadRequest { ticket, file_offset: from, destination: to, bytes }: ReadRequest,
        when: Priority,
    ) {
        let mut state = self.shared.lock();
        for first in (0..bytes).step_by(MAX_REQUEST) {
            // SAFETY: within the destination.
            let to = unsafe { to.add(first) };
            let read = ReadRequest {
                ticket,
                file_offset: from + first as u64,
                destination: to,
                bytes: MAX_REQUEST.min(bytes - first),
            };
            match when {
                Priority::Demand => state.queue.push_back(read),
                Priority::Prefetch => state.prefetches.push_back(read),
            }
            *state.outstanding.entry(ticket).or_default() += 1;
        }
        drop(state);
        self.shared.requested.notify_all();
    }

    /// Turns prefetches of a record into demand reads.
    pub(crate) fn promote(&self, ticket: ReadId) {
        let mut state = self.shared.lock();
        let urgent = state.take_prefetches(ticket);
        state.queue.extend(urgent);
        drop(state);
        self.shared.requested.notify_all();
    }

    /// Cancels prefetches of a record that have not started. Returns their bytes. Requests in flight
    /// complete.
    pub(crate) fn cancel(&self, ticket: ReadId) -> usize {
        let mut state = self.shared.lock();
        let back = state.take_prefetches(ticket);
        for read in &back {
            if state.end(read.ticket) {
                self.shared.done.notify_all();
            }
        }
        back.iter().map(|read| read.bytes).sum()
    }

    /// Whether a record is loaded. After a failed read it is false until a wait has returned the error,
    /// because skipped requests look complete.
    pub(crate) fn is_loaded(&self, ticket: ReadId) -> bool {
        let state = self.shared.lock();
        state.error.is_none() && state.is_done(ticket)
    }

    /// Waits until one of these records is loaded. Errors are those of [`IoPool::drain`].
    pub(crate) fn wait_for_any(&self, tickets: &[ReadId]) -> Result<(), String> {
        self.wait_until(|state| tickets.iter().any(|ticket| state.is_done(*ticket)))
    }

    /// Waits for all reads. An error if any has failed.
    pub(crate) fn drain(&self) -> Result<(), String> {
        self.wait_until(|_| false)
    }

    fn wait_until(&self, is_enough: impl Fn(&State) -> bool) -> Result<(), String> {
        let mut state = self.shared.lock();
        while !state.outstanding.is_empty() && (state.error.is_some() || !is_enough(&state)) {
            state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.error.take().map_or(Ok(()), Err)
    }
}

impl Drop for IoPool {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_closing = true;
        state.queue.clear();
        state.prefetches.clear();
        drop(state);
        self.shared.requested.notify_all();
        for thread in self.threads.drain(..) {
            // A panicked thread has nothing to report.
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        if state.is_closing {
            return;
        }
        let Some((read, when)) = state.next() else {
            state = shared.requested.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        let outcome = if state.error.is_some() {
            Ok(())
        } else {
            drop(state);
            // SAFETY: the promise of [`IoPool::submit`].
            let to = unsafe { std::slice::from_raw_parts_mut(read.destination, read.bytes) };
            let outcome = shared.source.read(read.file_offset, to);
            state = shared.lock();
            outcome
        };
        if let Err(what) = outcome {
            state.error.get_or_insert(what);
        }
        if when == Priority::Prefetch {
            state.prefetches_in_flight -= 1;
        }
        if state.end(read.ticket) {
            shared.done.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk whose bytes encode their offset; reads from `bad` on fail.
    struct Disk {
        bad: u64,
    }

    impl Source for Disk {
        fn read(&self, from: u64, to: &mut [u8]) -> Result<(), String> {
            if from >= self.bad {
                return Err(format!("the disk is gone at {from}"));
            }
            to.iter_mut().zip(from..).for_each(|(byte, at)| *byte = (at % 251) as u8);
            Ok(())
        }

        fn check(&self) -> Result<(), String> {
            Ok(())
        }
    }

    fn read(ticket: ReadId, from: u64, to: &mut [u8]) -> ReadRequest {
        ReadRequest { ticket, file_offset: from, destination: to.as_mut_ptr(), bytes: to.len() }
    }

    #[test]
    fn large_reads_are_split_and_complete() {
        let pool = IoPool::new(Arc::new(Disk { bad: u64::MAX })).unwrap();
        let (mut one, mut other) = (vec![0; 3 * MAX_REQUEST + 5], vec![0; 100]);
        let reads = [read(0, 7, &mut one), read(1, 1000, &mut other)];
        // SAFETY: neither is accessed before its read is done.
        reads.into_iter().for_each(|read| unsafe { pool.submit(read, Priority::Demand) });
        pool.wait_for_any(&[0]).unwrap();
        assert!(one.iter().zip(7_u64..).all(|(byte, at)| *byte == (at % 251) as u8));
        pool.drain().unwrap();
        assert!(pool.is_loaded(1) && pool.is_loaded(7));
        assert!(other.iter().zip(1000_u64..).all(|(byte, at)| *byte == (at % 251) as u8));
    }

    #[test]
    fn a_failed_read_is_reported_once_and_the_pool_continues() {
        let pool = IoPool::new(Arc::new(Disk { bad: 1 << 30 })).unwrap();
        let mut bytes = vec![0; 4 * MAX_REQUEST];
        // SAFETY: not accessed before all reads are done.
        unsafe { pool.submit(read(1, 1 << 30, &mut bytes), Priority::Demand) };
        while !pool.shared.lock().outstanding.is_empty() {
            thread::yield_now();
        }
        assert!(!pool.is_loaded(1), "it was never read");
        assert!(pool.drain().unwrap_err().contains("the disk is gone"));
        assert_eq!(pool.drain(), Ok(()));
        // SAFETY: as above.
        unsafe { pool.submit(read(0, 0, &mut bytes), Priority::Demand) };
        assert_eq!(pool.drain(), Ok(()));
        assert_eq!(bytes[250..252], [250, 0]);
    }

    /// A disk that blocks reads until the test releases it.
    struct Held(Mutex<()>);

    impl Source for Held {
        fn read(&self, from: u64, to: &mut [u8]) -> Result<(), String> {
            let _let = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            to.fill(from as u8);
            Ok(())
        }

        fn check(&self) -> Result<(), String> {
            Ok(())
        }
    }

    #[test]
    fn prefetches_can_be_promoted_and_cancelled_until_they_start() {
        let source = Arc::new(Held(Mutex::new(())));
        let held = source.0.lock().unwrap();
        let pool = IoPool::new(source.clone()).unwrap();
        let mut bytes = vec![0; THREADS + 3];
        for (at, to) in bytes.chunks_mut(1).enumerate() {
            // One demand read more than threads, so that no prefetch starts.
            let when = if at <= THREADS { Priority::Demand } else { Priority::Prefetch };
            // SAFETY: not accessed before all reads are done.
            unsafe { pool.submit(read(at as ReadId, at as u64 + 1, to), when) };
        }
        let [urgent, unwanted] = [THREADS + 1, THREADS + 2].map(|it| it as ReadId);
        pool.promote(urgent);
        assert_eq!(pool.cancel(urgent), 0, "it is no longer a prefetch");
        assert_eq!([pool.cancel(unwanted), pool.cancel(unwanted)], [1, 0]);
        drop(held);
        pool.wait_for_any(&[urgent]).unwrap();
        pool.drain().unwrap();
        assert_eq!(bytes, (1..=THREADS as u8 + 2).chain([0]).collect::<Vec<_>>());
    }

    #[test]
    fn few_prefetches_are_in_flight() {
        let source = Arc::new(Held(Mutex::new(())));
        let held = source.0.lock().unwrap();
        let pool = IoPool::new(source.clone()).unwrap();
        let mut bytes = vec![0; THREADS];
        for (at, to) in bytes.chunks_mut(1).enumerate() {
            // SAFETY: not accessed before all reads are done.
            unsafe { pool.submit(read(at as ReadId, 7, to), Priority::Prefetch) };
        }
        while pool.shared.lock().prefetches_in_flight < MAX_PREFETCHES {
            thread::yield_now();
        }
        assert_eq!(pool.shared.lock().prefetches.len(), THREADS - MAX_PREFETCHES);
        assert_eq!(pool.cancel(0), 0, "it has started");
        drop(held);
        pool.drain().unwrap();
        assert_eq!(bytes, [7; THREADS]);
    }
}
