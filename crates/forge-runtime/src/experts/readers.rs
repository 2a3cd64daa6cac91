//! A few threads that read, so that a disk has several things to do at once.
//!
//! Records are read in the order in which they are asked for, and whoever waits for one of them lets the others go on. After a
//! read that fails the others are left undone, and whoever waits next is told.

use super::source::Source;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// Threads: a disk answers fastest when asked for several things.
const THREADS: usize = 8;
/// The most bytes that a thread reads at once, so that a large record is shared out.
const PIECE: usize = 1 << 20;

/// Bytes to be read, and where to.
pub(super) struct Read {
    /// Whose they are, of those who are asked for at once.
    pub(super) expert: usize,
    pub(super) from: u64,
    pub(super) to: *mut u8,
    pub(super) bytes: usize,
}

// SAFETY: who asks for a read promises that nobody else touches where it goes.
unsafe impl Send for Read {}

/// The threads. Dropping them ends them, after the reads that they are at.
pub(super) struct Readers {
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
    queue: VecDeque<Read>,
    /// Pieces that are not read.
    left: usize,
    /// The same of each expert.
    left_of: Vec<usize>,
    /// What went wrong first.
    trouble: Option<String>,
    is_over: bool,
}

impl State {
    /// Whether no read of an expert is left.
    fn is_done(&self, expert: usize) -> bool {
        self.left_of.get(expert).is_none_or(|left| *left == 0)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Readers {
    pub(super) fn new(source: Arc<dyn Source>) -> Result<Readers, String> {
        let (state, asked, done) = (Mutex::default(), Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { source, state, asked, done });
        let mut readers = Readers { shared, threads: Vec::new() };
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
    /// Until [`Readers::settle`] says that all is done nobody touches where they go, or until [`Readers::has_come`] says so of
    /// their expert.
    pub(super) unsafe fn ask(&self, reads: impl Iterator<Item = Read>) {
        let mut state = self.shared.lock();
        for Read { expert, from, to, bytes } in reads {
            if state.left_of.len() <= expert {
                state.left_of.resize(expert + 1, 0);
            }
            for first in (0..bytes).step_by(PIECE) {
                // SAFETY: inside where the read goes.
                let to = unsafe { to.add(first) };
                let (from, bytes) = (from + first as u64, PIECE.min(bytes - first));
                state.queue.push_back(Read { expert, from, to, bytes });
                state.left += 1;
                state.left_of[expert] += 1;
            }
        }
        drop(state);
        self.shared.asked.notify_all();
    }

    /// Whether an expert is in memory. After a read that failed nobody is, until a wait has told of it: what was
    /// left undone looks like what is done.
    pub(super) fn has_come(&self, expert: usize) -> bool {
        let state = self.shared.lock();
        state.trouble.is_none() && state.is_done(expert)
    }

    /// Waits until one of some experts is in memory; errors are those of [`Readers::settle`].
    pub(super) fn wait_for_any(&self, experts: &[usize]) -> Result<(), String> {
        self.until(|state| experts.iter().any(|expert| state.is_done(*expert)))
    }

    /// Waits until no read is left. An error if any has failed.
    pub(super) fn settle(&self) -> Result<(), String> {
        self.until(|_| false)
    }

    fn until(&self, is_enough: impl Fn(&State) -> bool) -> Result<(), String> {
        let mut state = self.shared.lock();
        while state.left > 0 && (state.trouble.is_some() || !is_enough(&state)) {
            state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.trouble.take().map_or(Ok(()), Err)
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_over = true;
        state.queue.clear();
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
        let Some(read) = state.queue.pop_front() else {
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
        state.left -= 1;
        state.left_of[read.expert] -= 1;
        if state.left_of[read.expert] == 0 {
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

    fn read(expert: usize, from: u64, to: &mut [u8]) -> Read {
        Read { expert, from, to: to.as_mut_ptr(), bytes: to.len() }
    }

    #[test]
    fn everything_is_read_whole_in_pieces() {
        let readers = Readers::new(Arc::new(Told { bad: u64::MAX })).unwrap();
        let (mut one, mut other) = (vec![0; 3 * PIECE + 5], vec![0; 100]);
        let reads = [read(0, 7, &mut one), read(1, 1000, &mut other)];
        // SAFETY: nothing touches either before it is done.
        unsafe { readers.ask(reads.into_iter()) };
        readers.wait_for_any(&[0]).unwrap();
        assert!(one.iter().zip(7_u64..).all(|(byte, at)| *byte == (at % 251) as u8));
        readers.settle().unwrap();
        assert!(readers.has_come(1) && readers.has_come(7));
        assert!(other.iter().zip(1000_u64..).all(|(byte, at)| *byte == (at % 251) as u8));
    }

    #[test]
    fn a_read_that_fails_is_told_once_and_readers_go_on() {
        let readers = Readers::new(Arc::new(Told { bad: 1 << 30 })).unwrap();
        let mut bytes = vec![0; 4 * PIECE];
        // SAFETY: nothing touches them before all is done.
        unsafe { readers.ask([read(1, 1 << 30, &mut bytes)].into_iter()) };
        while readers.shared.lock().left > 0 {
            thread::yield_now();
        }
        assert!(!readers.has_come(1), "it was never read");
        assert!(readers.settle().unwrap_err().contains("the disk is gone"));
        assert_eq!(readers.settle(), Ok(()));
        // SAFETY: the same.
        unsafe { readers.ask([read(0, 0, &mut bytes)].into_iter()) };
        assert_eq!(readers.settle(), Ok(()));
        assert_eq!(bytes[250..252], [250, 0]);
    }
}
