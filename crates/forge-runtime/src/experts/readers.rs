//! A few threads that read, so that a disk has several things to do at once.
//!
//! Reads are done in the order in which they are asked for. They are of two halves, what a layer multiplies first and what it
//! multiplies then, and of several experts; whoever waits for one half, or for one expert's, lets the others go on. After a read
//! that fails the others are left undone, and whoever waits next is told.

use super::source::Source;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// Threads: a disk answers fastest when asked for several things.
const THREADS: usize = 8;
/// The most bytes that a thread reads at once, so that one large plane is shared out.
const PIECE: usize = 1 << 20;

/// Which matrices of a layer a read is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// What is multiplied first.
    Inner,
    /// Those whose products are summed.
    Sum,
}

/// Bytes to be read, and where to.
pub(super) struct Read {
    pub(super) half: Half,
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
    /// Reads of each half that are not done.
    left: [usize; 2],
    /// The same of each expert.
    left_of: Vec<[usize; 2]>,
    /// What went wrong first.
    trouble: Option<String>,
    is_over: bool,
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
    /// Until [`Readers::settle`] says that all is done nobody touches where they go, or until [`Readers::wait`] says so of
    /// their half.
    pub(super) unsafe fn ask(&self, reads: impl Iterator<Item = Read>) {
        let mut state = self.shared.lock();
        for Read { half, expert, from, to, bytes } in reads {
            if state.left_of.len() <= expert {
                state.left_of.resize(expert + 1, [0; 2]);
            }
            for first in (0..bytes).step_by(PIECE) {
                // SAFETY: inside where the read goes.
                let to = unsafe { to.add(first) };
                let (from, bytes) = (from + first as u64, PIECE.min(bytes - first));
                state.queue.push_back(Read { half, expert, from, to, bytes });
                state.left[half as usize] += 1;
                state.left_of[expert][half as usize] += 1;
            }
        }
        drop(state);
        self.shared.asked.notify_all();
    }

    /// Whether a read of this half is left.
    pub(super) fn is_reading(&self, half: Half) -> bool {
        self.shared.lock().left[half as usize] > 0
    }

    /// Whether this half of an expert is in memory. After a read that failed nobody's is, until a wait has told of it: what was
    /// left undone looks like what is done.
    pub(super) fn has_come(&self, half: Half, expert: usize) -> bool {
        let state = self.shared.lock();
        state.trouble.is_none() && state.left_of.get(expert).is_none_or(|left| left[half as usize] == 0)
    }

    /// Waits until no read of this half is left of one of some experts; errors are those of [`Readers::wait`].
    pub(super) fn wait_for_any(&self, half: Half, experts: &[usize]) -> Result<(), String> {
        let is_done = |state: &State, expert: usize| {
            state.left_of.get(expert).is_none_or(|left| left[half as usize] == 0)
        };
        self.until(|state| experts.iter().any(|expert| is_done(state, *expert)))
    }

    /// Waits until no read of this half is left. An error if any read has failed; then nothing is left at all.
    pub(super) fn wait(&self, half: Half) -> Result<(), String> {
        self.until(|state| state.left[half as usize] == 0)
    }

    /// Waits until no read is left.
    pub(super) fn settle(&self) -> Result<(), String> {
        self.until(|_| false)
    }

    fn until(&self, is_enough: impl Fn(&State) -> bool) -> Result<(), String> {
        let mut state = self.shared.lock();
        while state.left != [0, 0] && (state.trouble.is_some() || !is_enough(&state)) {
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
        let half = read.half as usize;
        state.left[half] -= 1;
        state.left_of[read.expert][half] -= 1;
        if state.left_of[read.expert][half] == 0 {
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

    fn read(half: Half, from: u64, to: &mut [u8]) -> Read {
        Read { half, expert: half as usize, from, to: to.as_mut_ptr(), bytes: to.len() }
    }

    #[test]
    fn everything_is_read_whole_in_pieces() {
        let readers = Readers::new(Arc::new(Told { bad: u64::MAX })).unwrap();
        let (mut one, mut other) = (vec![0; 3 * PIECE + 5], vec![0; 100]);
        let reads = [read(Half::Inner, 7, &mut one), read(Half::Sum, 1000, &mut other)];
        // SAFETY: nothing touches either before all is done.
        unsafe { readers.ask(reads.into_iter()) };
        readers.wait(Half::Inner).unwrap();
        assert!(one.iter().zip(7_u64..).all(|(byte, at)| *byte == (at % 251) as u8));
        readers.wait_for_any(Half::Sum, &[1]).unwrap();
        assert!(readers.has_come(Half::Sum, 1) && readers.has_come(Half::Sum, 7));
        assert!(other.iter().zip(1000_u64..).all(|(byte, at)| *byte == (at % 251) as u8));
    }

    #[test]
    fn a_read_that_fails_is_told_once_and_readers_go_on() {
        let readers = Readers::new(Arc::new(Told { bad: 1 << 30 })).unwrap();
        let mut bytes = vec![0; 4 * PIECE];
        // SAFETY: nothing touches them before all is done.
        unsafe { readers.ask([read(Half::Sum, 1 << 30, &mut bytes)].into_iter()) };
        while readers.is_reading(Half::Sum) {
            thread::yield_now();
        }
        assert!(!readers.has_come(Half::Sum, Half::Sum as usize), "it was never read");
        assert!(readers.settle().unwrap_err().contains("the disk is gone"));
        assert_eq!(readers.wait(Half::Inner), Ok(()));
        // SAFETY: the same.
        unsafe { readers.ask([read(Half::Inner, 0, &mut bytes)].into_iter()) };
        assert_eq!(readers.wait(Half::Inner), Ok(()));
        assert_eq!(bytes[250..252], [250, 0]);
    }
}
