//! A few threads that read, so that a disk has several things to do at once.
//!
//! What is asked for is read in the order in which it was, and whoever waits for one record lets the others go on. Of what may be
//! asked for soon a little is read while nothing is wanted at once: a read that has begun cannot be stopped, and who comes then waits for
//! it. After a read that fails the others are left undone, and whoever waits next is told.

use crate::offload::direct_io::Source;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// Threads: a disk answers fastest when asked for several things.
const THREADS: usize = 8;
/// Those of them that read ahead at once: what they are at when somebody is wanted, that one waits for.
const AHEAD: usize = 2;
/// The most bytes that a thread reads at once, so that a large record is shared out.
const PIECE: usize = 1 << 20;

/// A record that is to be read, by a number of its own.
pub(crate) type ReadId = u64;

/// Bytes to be read, and where to.
pub(crate) struct ReadRequest {
    /// Whose they are.
    pub(crate) ticket: ReadId,
    pub(crate) from: u64,
    pub(crate) to: *mut u8,
    pub(crate) bytes: usize,
}

// SAFETY: who asks for a read promises that nobody else touches where it goes.
unsafe impl Send for ReadRequest {}

/// When something is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// In its turn.
    Now,
    /// Where nothing else is to be read.
    Ahead,
}

/// The threads. Dropping them ends them, after the reads that they are at.
pub(crate) struct IoPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    source: Arc<dyn Source>,
    state: Mutex<State>,
    asked: Condvar,
    done: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<ReadRequest>,
    /// What is read where nothing is in the queue.
    ahead: VecDeque<ReadRequest>,
    /// Threads that read such pieces.
    reading_ahead: usize,
    /// Pieces that are not read, of each record that has any.
    left_of: HashMap<ReadId, usize>,
    /// What went wrong first.
    trouble: Option<String>,
    is_over: bool,
}

impl State {
    /// Whether no read of a record is left.
    fn is_done(&self, ticket: ReadId) -> bool {
        !self.left_of.contains_key(&ticket)
    }

    /// What a thread reads next.
    fn next(&mut self) -> Option<(ReadRequest, Priority)> {
        if let Some(read) = self.queue.pop_front() {
            return Some((read, Priority::Now));
        }
        if self.reading_ahead == AHEAD {
            return None;
        }
        let read = self.ahead.pop_front()?;
        self.reading_ahead += 1;
        Some((read, Priority::Ahead))
    }

    /// Takes what of a record is to be read ahead and has not begun.
    fn take_ahead(&mut self, ticket: ReadId) -> VecDeque<ReadRequest> {
        let (of_record, others) =
            std::mem::take(&mut self.ahead).into_iter().partition(|read| read.ticket == ticket);
        self.ahead = others;
        of_record
    }

    /// Notes that a piece is read, or left undone; says whether it was the last one of its record.
    fn end(&mut self, ticket: ReadId) -> bool {
        let left = self.left_of.entry(ticket).or_default();
        *left = left.saturating_sub(1);
        let is_last = *left == 0;
        if is_last {
            self.left_of.remove(&ticket);
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
        let (state, asked, done) = (Mutex::default(), Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { source, state, asked, done });
        let mut readers = IoPool { shared, threads: Vec::new() };
        for number in 0..THREADS {
            let shared = readers.shared.clone();
            let thread = thread::Builder::new()
                .name(format!("reader {number}"))
                .spawn(move || work(&shared))
                .map_err(|error| format!("cannot start a thread that reads experts: {error}"))?;
            readers.threads.push(thread);
        }
        Ok(readers)
    }

    /// Has bytes read.
    ///
    /// # Safety
    /// Until [`IoPool::settle`] says that all is done nobody touches where they go, or until [`IoPool::has_come`] says so of
    /// their record.
    pub(crate) unsafe fn ask(&self, ReadRequest { ticket, from, to, bytes }: ReadRequest, when: Priority) {
        let mut state = self.shared.lock();
        for first in (0..bytes).step_by(PIECE) {
            // SAFETY: inside where the read goes.
            let to = unsafe { to.add(first) };
            let read = ReadRequest { ticket, from: from + first as u64, to, bytes: PIECE.min(bytes - first) };
            match when {
                Priority::Now => state.queue.push_back(read),
                Priority::Ahead => state.ahead.push_back(read),
            }
            *state.left_of.entry(ticket).or_default() += 1;
        }
        drop(state);
        self.shared.asked.notify_all();
    }

    /// Has a record that is read ahead read in its turn.
    pub(crate) fn urge(&self, ticket: ReadId) {
        let mut state = self.shared.lock();
        let urgent = state.take_ahead(ticket);
        state.queue.extend(urgent);
        drop(state);
        self.shared.asked.notify_all();
    }

    /// Takes back what of a record is to be read ahead and has not begun; gives its bytes. What has begun comes to its end.
    pub(crate) fn take_back(&self, ticket: ReadId) -> usize {
        let mut state = self.shared.lock();
        let back = state.take_ahead(ticket);
        for read in &back {
            if state.end(read.ticket) {
                self.shared.done.notify_all();
            }
        }
        back.iter().map(|read| read.bytes).sum()
    }

    /// Whether a record is in memory. After a read that failed none is, until a wait has told of it: what was
    /// left undone looks like what is done.
    pub(crate) fn has_come(&self, ticket: ReadId) -> bool {
        let state = self.shared.lock();
        state.trouble.is_none() && state.is_done(ticket)
    }

    /// Waits until one of some records is in memory; errors are those of [`IoPool::settle`].
    pub(crate) fn wait_for_any(&self, tickets: &[ReadId]) -> Result<(), String> {
        self.until(|state| tickets.iter().any(|ticket| state.is_done(*ticket)))
    }

    /// Waits until no read is left. An error if any has failed.
    pub(crate) fn settle(&self) -> Result<(), String> {
        self.until(|_| false)
    }

    fn until(&self, is_enough: impl Fn(&State) -> bool) -> Result<(), String> {
        let mut state = self.shared.lock();
        while !state.left_of.is_empty() && (state.trouble.is_some() || !is_enough(&state)) {
            state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.trouble.take().map_or(Ok(()), Err)
    }
}

impl Drop for IoPool {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_over = true;
        state.queue.clear();
        state.ahead.clear();
        drop(state);
        self.shared.asked.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing more to tell.
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        if state.is_over {
            return;
        }
        let Some((read, when)) = state.next() else {
            state = shared.asked.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        let outcome = if state.trouble.is_some() {
            Ok(())
        } else {
            drop(state);
            // SAFETY: `ask`'s promise.
            let to = unsafe { std::slice::from_raw_parts_mut(read.to, read.bytes) };
            let outcome = shared.source.read(read.from, to);
            state = shared.lock();
            outcome
        };
        if let Err(what) = outcome {
            state.trouble.get_or_insert(what);
        }
        if when == Priority::Ahead {
            state.reading_ahead -= 1;
        }
        if state.end(read.ticket) {
            shared.done.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that tell where they are from; reads from `bad` on fail.
    struct Told {
        bad: u64,
    }

    impl Source for Told {
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
        ReadRequest { ticket, from, to: to.as_mut_ptr(), bytes: to.len() }
    }

    #[test]
    fn everything_is_read_whole_in_pieces() {
        let readers = IoPool::new(Arc::new(Told { bad: u64::MAX })).unwrap();
        let (mut one, mut other) = (vec![0; 3 * PIECE + 5], vec![0; 100]);
        let reads = [read(0, 7, &mut one), read(1, 1000, &mut other)];
        // SAFETY: nothing touches either before it is done.
        reads.into_iter().for_each(|read| unsafe { readers.ask(read, Priority::Now) });
        readers.wait_for_any(&[0]).unwrap();
        assert!(one.iter().zip(7_u64..).all(|(byte, at)| *byte == (at % 251) as u8));
        readers.settle().unwrap();
        assert!(readers.has_come(1) && readers.has_come(7));
        assert!(other.iter().zip(1000_u64..).all(|(byte, at)| *byte == (at % 251) as u8));
    }

    #[test]
    fn a_read_that_fails_is_told_once_and_readers_go_on() {
        let readers = IoPool::new(Arc::new(Told { bad: 1 << 30 })).unwrap();
        let mut bytes = vec![0; 4 * PIECE];
        // SAFETY: nothing touches them before all is done.
        unsafe { readers.ask(read(1, 1 << 30, &mut bytes), Priority::Now) };
        while !readers.shared.lock().left_of.is_empty() {
            thread::yield_now();
        }
        assert!(!readers.has_come(1), "it was never read");
        assert!(readers.settle().unwrap_err().contains("the disk is gone"));
        assert_eq!(readers.settle(), Ok(()));
        // SAFETY: the same.
        unsafe { readers.ask(read(0, 0, &mut bytes), Priority::Now) };
        assert_eq!(readers.settle(), Ok(()));
        assert_eq!(bytes[250..252], [250, 0]);
    }

    /// Does not read before the test lets it.
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
    fn what_is_read_ahead_can_be_urged_and_taken_back_until_it_has_begun() {
        let source = Arc::new(Held(Mutex::new(())));
        let held = source.0.lock().unwrap();
        let readers = IoPool::new(source.clone()).unwrap();
        let mut bytes = vec![0; THREADS + 3];
        for (at, to) in bytes.chunks_mut(1).enumerate() {
            // One more than there are threads: so nobody is left to read ahead.
            let when = if at <= THREADS { Priority::Now } else { Priority::Ahead };
            // SAFETY: nothing touches them before all is done.
            unsafe { readers.ask(read(at as ReadId, at as u64 + 1, to), when) };
        }
        let [urgent, unwanted] = [THREADS + 1, THREADS + 2].map(|it| it as ReadId);
        readers.urge(urgent);
        assert_eq!(readers.take_back(urgent), 0, "it is no longer read ahead");
        assert_eq!([readers.take_back(unwanted), readers.take_back(unwanted)], [1, 0]);
        drop(held);
        readers.wait_for_any(&[urgent]).unwrap();
        readers.settle().unwrap();
        assert_eq!(bytes, (1..=THREADS as u8 + 2).chain([0]).collect::<Vec<_>>());
    }

    #[test]
    fn a_little_is_read_ahead_at_once() {
        let source = Arc::new(Held(Mutex::new(())));
        let held = source.0.lock().unwrap();
        let readers = IoPool::new(source.clone()).unwrap();
        let mut bytes = vec![0; THREADS];
        for (at, to) in bytes.chunks_mut(1).enumerate() {
            // SAFETY: nothing touches them before all is done.
            unsafe { readers.ask(read(at as ReadId, 7, to), Priority::Ahead) };
        }
        while readers.shared.lock().reading_ahead < AHEAD {
            thread::yield_now();
        }
        assert_eq!(readers.shared.lock().ahead.len(), THREADS - AHEAD);
        assert_eq!(readers.take_back(0), 0, "it has begun");
        drop(held);
        readers.settle().unwrap();
        assert_eq!(bytes, [7; THREADS]);
    }
}
