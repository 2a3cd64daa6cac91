//! Execution of threadgroups. Each thread is a fiber that runs until a barrier or a simdgroup operation. Lanes do not run in
//! lockstep, so kernels cannot rely on an order of threads.

use crate::check::checker::{Checker, site};
use crate::check::fault::FaultKind;
use crate::compile::program::Call;
use crate::compile::rewrite::BUILTIN_WORDS;
use crate::execute::barriers::Simdgroup;
use crate::execute::fiber::{Fiber, Pause, acquire, release};
use crate::execute::hooks::engine;
use crate::memory::shadow::{Clocks, HOST, Shadow};
use crate::memory::threadgroup_memory::{Arena, LIMIT};
use forge_msl::Signature;
use std::ffi::{CStr, c_void};
use std::io;

/// Lanes of a simdgroup.
pub(crate) const LANES: usize = 32;
/// Maximum threads of a threadgroup.
pub(crate) const MAX_THREADS: usize = 1024;

/// The state of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Ready to run.
    Ready,
    /// Waiting at a threadgroup barrier.
    Barrier,
    /// Waiting at a simdgroup barrier.
    SimdgroupBarrier,
    /// Waiting at a simdgroup operation.
    Meeting,
    /// Finished.
    Done,
}

/// One thread of the running threadgroup.
#[derive(Clone, Copy)]
pub(crate) struct Thread {
    pub(crate) state: State,
    /// Code location where it waits.
    pub(crate) site: u32,
    /// Hash of the locations that it has passed without waiting.
    pub(crate) path_hash: u32,
    /// The last of those locations.
    pub(crate) passed: u32,
    pause: *const Pause,
}

/// The executor of threadgroups.
pub(crate) struct Engine {
    pub(crate) watch: Checker,
    pub(crate) threads: Vec<Thread>,
    fibers: Vec<Fiber>,
    pub(crate) simdgroups: Vec<Simdgroup>,
    pub(crate) current: usize,
    pub(crate) arrived: usize,
    done: usize,
    /// Whether the dispatch was aborted.
    pub(crate) stopped: bool,
    pub(crate) clock: u32,
    pub(crate) call: Option<Call>,
    pub(crate) pointers: [*mut c_void; Signature::MOST_SLOTS],
    pub(crate) words: [u32; BUILTIN_WORDS],
}

impl Engine {
    pub(crate) fn new() -> io::Result<Engine> {
        Ok(Engine {
            watch: Checker::new(Arena::new()?),
            threads: Vec::new(),
            fibers: Vec::new(),
            simdgroups: Vec::new(),
            current: 0,
            arrived: 0,
            done: 0,
            stopped: false,
            clock: HOST + 1,
            call: None,
            pointers: [std::ptr::null_mut(); Signature::MOST_SLOTS],
            words: [0; BUILTIN_WORDS],
        })
    }

    /// Advances the clock.
    pub(crate) fn tick(&mut self) -> u32 {
        self.clock += 1;
        self.clock
    }

    /// Resets the clock. All recorded times become invalid.
    pub(crate) fn restart(&mut self) {
        self.clock = HOST + 1;
        self.watch.arena.shadow = Shadow::new(0);
    }

    /// Creates one fiber per thread of a threadgroup.
    pub(crate) fn prepare(&mut self, threads: usize) -> io::Result<()> {
        while self.fibers.len() < threads {
            self.fibers.push(acquire(self.fibers.len(), body)?);
        }
        let idle = Thread { state: State::Ready, site: 0, path_hash: 0, passed: 0, pause: std::ptr::null() };
        self.threads.resize(threads, idle);
        while self.simdgroups.len() * LANES < threads {
            self.simdgroups.push(Simdgroup::new());
        }
        Ok(())
    }

    /// Runs one threadgroup.
    ///
    /// # Safety
    /// `engine` is the executor of this system thread, and nothing else refers to it.
    pub(crate) unsafe fn run_group(engine: *mut Engine, group: [u32; 3]) {
        // SAFETY: references end before a fiber is resumed.
        unsafe {
            (*engine).start_group(group);
            let threads = (*engine).threads.len();
            loop {
                let mut progress = false;
                for first in (0..threads).step_by(LANES) {
                    let end = (first + LANES).min(threads);
                    loop {
                        let mut ran = false;
                        for thread in first..end {
                            if (*engine).is_ready(thread) {
                                (*engine).select_thread(thread, group);
                                let fiber = (*engine).fiber(thread);
                                (*fiber).resume();
                                if (*engine).stopped {
                                    return (*engine).reset();
                                }
                                ran = true;
                            }
                        }
                        progress |= ran;
                        if !ran {
                            break;
                        }
                    }
                }
                if (*engine).done == threads {
                    return (*engine).check_uniform_paths();
                }
                if !progress {
                    (*engine).divergence();
                    return (*engine).reset();
                }
            }
        }
    }

    fn start_group(&mut self, group: [u32; 3]) {
        let clock = self.tick();
        self.watch.groups.push(clock);
        self.watch.counters.groups += 1;
        let now = &mut self.watch.device;
        (now.clock, now.barrier, now.group) = (clock, clock, clock);
        let now = &mut self.watch.group;
        *now = Clocks {
            clock,
            barrier: clock,
            group: clock,
            dispatch: clock,
            interval: clock,
            previous: clock,
            thread: 0,
        };
        (self.arrived, self.done) = (0, 0);
        let threads = self.threads.len();
        for thread in &mut self.threads {
            (thread.state, thread.path_hash) = (State::Ready, 0);
        }
        for (index, simdgroup) in self.simdgroups.iter_mut().enumerate() {
            simdgroup.start(threads.saturating_sub(index * LANES).min(LANES), clock);
        }
        self.words[3..6].copy_from_slice(&group);
        self.words[1..3].copy_from_slice(&group[1..]);
    }

    /// Selects the running thread.
    #[inline(always)]
    fn select_thread(&mut self, thread: usize, group: [u32; 3]) {
        self.current = thread;
        let index = thread as u32;
        let clocks = self.simdgroups[thread / LANES].clocks();
        self.watch.device.thread = thread as u16;
        self.watch.group.thread = thread as u16;
        self.watch.device.clock = clocks[0];
        self.watch.group.clock = clocks[1];
        let fiber = &self.fibers[thread];
        self.watch.stack = (fiber.low, fiber.high);
        self.words[0] = group[0].wrapping_mul(self.threads.len() as u32).wrapping_add(index);
        self.words[6] = index;
        self.words[18] = index;
        self.words[19] = index % LANES as u32;
        self.words[20] = index / LANES as u32;
    }

    fn reset(&mut self) {
        for (fiber, _) in self.fibers.iter_mut().zip(&self.threads) {
            fiber.reset();
        }
    }

    /// Suspends the running thread until it is ready again.
    pub(crate) unsafe fn pause(engine: *mut Engine) {
        // SAFETY: the pause was set when the fiber started this run; no reference into the engine is alive.
        unsafe {
            let pause = (*engine).thread().pause;
            (*pause).suspend(());
        }
    }

    /// Aborts the dispatch from within a thread.
    pub(crate) unsafe fn abort_dispatch(engine: *mut Engine) -> ! {
        unsafe {
            (*engine).stopped = true;
            loop {
                Engine::pause(engine);
            }
        }
    }

    #[cold]
    pub(crate) unsafe fn exceed_access_limit(engine: *mut Engine, place: *const c_void) {
        unsafe {
            let watch = &mut (*engine).watch;
            let site = site(watch.program, place);
            watch.fault(FaultKind::Arithmetic, site, |watch| {
                format!("this dispatch does not end: it has made {} accesses", watch.counters.accesses)
            });
            Engine::abort_dispatch(engine)
        }
    }

    pub(crate) unsafe fn trap(engine: *mut Engine, kind: u32, value: u64, place: *const c_void) {
        unsafe {
            let watch = &mut (*engine).watch;
            let site = site(watch.program, place);
            match kind {
                0 => watch.fault(FaultKind::OutOfBounds, site, |watch| {
                    format!(
                        "{} accesses element {} past the end of an array",
                        watch.thread_name(),
                        value as i64
                    )
                }),
                _ => watch.fault(FaultKind::Arithmetic, site, |watch| {
                    format!("{} divides by zero", watch.thread_name())
                }),
            }
            Engine::abort_dispatch(engine)
        }
    }

    pub(crate) unsafe fn array(engine: *mut Engine, id: u32, size: usize, name: &CStr) -> usize {
        unsafe {
            let watch = &mut (*engine).watch;
            let found = watch.arena.array(id, size, || name.to_string_lossy().into_owned());
            let used = watch.arena.used;
            match found {
                Ok((address, new)) => {
                    if new && used > LIMIT {
                        watch.over_limit(used);
                    }
                    address
                }
                Err(_) => {
                    watch.over_limit(size);
                    Engine::abort_dispatch(engine)
                }
            }
        }
    }

    fn is_ready(&self, thread: usize) -> bool {
        self.threads[thread].state == State::Ready
    }

    fn fiber(&mut self, thread: usize) -> *mut Fiber {
        &mut self.fibers[thread]
    }

    /// The running thread.
    pub(crate) fn thread(&mut self) -> &mut Thread {
        &mut self.threads[self.current]
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        release(std::mem::take(&mut self.fibers));
    }
}

/// The body of a fiber: calls the kernel for the current thread.
fn body(pause: &Pause) {
    let engine = engine();
    // SAFETY: a fiber is resumed only by its engine, which has set everything the kernel needs.
    unsafe {
        (*engine).thread().pause = pause;
        if let Some(call) = (*engine).call {
            let pointers = (&raw const (*engine).pointers).cast();
            let words = (&raw const (*engine).words).cast();
            call(pointers, words);
        }
        (*engine).thread().state = State::Done;
        (*engine).done += 1;
    }
}
