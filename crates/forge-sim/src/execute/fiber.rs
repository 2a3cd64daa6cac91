//! Fibers: each thread of a threadgroup has its own stack and runs until it has to wait.

use corosensei::stack::{STACK_ALIGNMENT, Stack, StackPointer};
use corosensei::{Coroutine, Yielder};
use std::cell::RefCell;
use std::io;
use std::num::NonZeroUsize;

/// Size of a stack in bytes, without its guard pages.
const STACK: usize = 256 << 10;
/// Size of the inaccessible guard pages below a stack, in bytes.
const GUARD: usize = 64 << 10;

/// A fiber's stack. The tops are staggered: stacks with the same page offset would compete for the same cache
/// sets.
pub(crate) struct FiberStack {
    start: usize,
    top: usize,
}

impl FiberStack {
    fn new(index: usize) -> io::Result<FiberStack> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the system chooses the address; the guard is the lowest part.
        let start = unsafe {
            let start = libc::mmap(std::ptr::null_mut(), GUARD + STACK, access, flags, -1, 0);
            if start == libc::MAP_FAILED || libc::mprotect(start, GUARD, libc::PROT_NONE) != 0 {
                return Err(io::Error::last_os_error());
            }
            start as usize
        };
        let stagger = (index % 32) * 1088 / STACK_ALIGNMENT * STACK_ALIGNMENT;
        Ok(FiberStack { start, top: start + GUARD + STACK - stagger })
    }
}

impl Drop for FiberStack {
    fn drop(&mut self) {
        // SAFETY: it was mapped in `new`, and its coroutine has been dropped.
        unsafe { libc::munmap(self.start as *mut libc::c_void, GUARD + STACK) };
    }
}

// SAFETY: the lowest part is a guard, and the rest is far larger than the required minimum.
unsafe impl Stack for FiberStack {
    fn base(&self) -> StackPointer {
        NonZeroUsize::new(self.top).unwrap_or(NonZeroUsize::MAX)
    }

    fn limit(&self) -> StackPointer {
        NonZeroUsize::new(self.start).unwrap_or(NonZeroUsize::MAX)
    }
}

/// Suspends a fiber.
pub(crate) type Pause = Yielder<(), ()>;

/// One fiber. It runs its body repeatedly and suspends after each run.
pub(crate) struct Fiber {
    coroutine: Option<Coroutine<(), (), (), FiberStack>>,
    body: fn(&Pause),
    /// Address range of its stack.
    pub(crate) low: usize,
    pub(crate) high: usize,
}

impl Fiber {
    /// The fiber of thread `index`.
    fn new(index: usize, body: fn(&Pause)) -> io::Result<Fiber> {
        let stack = FiberStack::new(index)?;
        let (low, high) = (stack.start, stack.top);
        Ok(Fiber { coroutine: Some(start(stack, body)), body, low, high })
    }

    /// Runs until the next suspension.
    #[inline(always)]
    pub(crate) fn resume(&mut self) {
        if let Some(coroutine) = &mut self.coroutine {
            coroutine.resume(());
        }
    }

    /// Discards the current run.
    pub(crate) fn reset(&mut self) {
        let Some(mut coroutine) = self.coroutine.take() else { return };
        // SAFETY: the stack has only frames of the kernel and the executor, which need no destructor.
        unsafe { coroutine.force_reset() };
        self.coroutine = Some(start(coroutine.into_stack(), self.body));
    }
}

impl Drop for Fiber {
    fn drop(&mut self) {
        if let Some(coroutine) = &mut self.coroutine {
            // SAFETY: as in `reset`.
            unsafe { coroutine.force_reset() };
        }
    }
}

thread_local! {
    /// Idle fibers of this system thread, for reuse.
    static IDLE: RefCell<Vec<Fiber>> = const { RefCell::new(Vec::new()) };
}

/// Returns an idle or a new fiber. All fibers have the same body.
pub(crate) fn acquire(index: usize, body: fn(&Pause)) -> io::Result<Fiber> {
    match IDLE.with_borrow_mut(Vec::pop) {
        Some(fiber) => Ok(fiber),
        None => Fiber::new(index, body),
    }
}

/// Returns fibers to the idle list.
pub(crate) fn release(fibers: Vec<Fiber>) {
    // If the system thread is exiting, the fibers are dropped.
    let _ = IDLE.try_with(|idle| idle.borrow_mut().extend(fibers.into_iter().rev()));
}

fn start(stack: FiberStack, body: fn(&Pause)) -> Coroutine<(), (), (), FiberStack> {
    Coroutine::with_stack(stack, move |pause: &Pause, ()| {
        loop {
            body(pause);
            pause.suspend(());
        }
    })
}
