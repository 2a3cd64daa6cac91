//! Runs threadgroups: each thread is a fibre that runs until it has to wait, at a barrier or for its simdgroup. No
//! order of threads is promised, so none is relied on: lanes do not run in lockstep.

use crate::arena::{Arena, LIMIT};
use crate::fault::Kind;
use crate::fibre::{Fibre, Pause};
use crate::hooks::engine;
use crate::program::Call;
use crate::rewrite::{BUILTIN_WORDS, POINTERS};
use crate::shadow::{HOST, Now, Shadow};
use crate::watch::{Watch, site};
use std::ffi::{CStr, c_void};
use std::io;

/// Lanes of a simdgroup.
pub(crate) const LANES: usize = 32;
/// Threads of a threadgroup at most.
pub(crate) const MOST_THREADS: usize = 1024;

/// What a thread is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It can run.
    Ready,
    /// It waits for the threadgroup at a barrier.
    Barrier,
    /// It waits for its simdgroup at a barrier.
    SimdgroupBarrier,
    /// It waits for its simdgroup at an operation.
    Meeting,
    /// It has finished.
    Done,
}

/// One thread of the running threadgroup.
#[derive(Clone, Copy)]
pub(crate) struct Thread {
    pub(crate) state: State,
    /// Place in the code where it waits.
    pub(crate) site: u32,
    /// What it has passed without waiting, as one number.
    pub(crate) trail: u32,
    /// The last of those places.
    pub(crate) passed: u32,
    pause: *const Pause,
}

/// Where the lanes of a simdgroup put their values: `forge_meeting` of `hooks.h`.
#[repr(C, align(64))]
pub(crate) struct Meeting {
    ready: u32,
    lanes: u32,
    lane: u32,
    padding: u32,
    result: Aligned<512>,
    value: Aligned<1024>,
}

#[repr(C, align(64))]
struct Aligned<const N: usize>([u8; N]);

/// One simdgroup of the running threadgroup.
struct Simdgroup {
    /// Two, used by turns: a lane may bring its next value before another has read the last.
    meetings: [Meeting; 2],
    turn: usize,
    lanes: usize,
    arrived: usize,
    /// When it passed its last barrier, for device and for threadgroup memory.
    clocks: [u32; 2],
}

/// All that runs a threadgroup.
pub(crate) struct Engine {
    pub(crate) watch: Watch,
    pub(crate) threads: Vec<Thread>,
    fibres: Vec<Fibre>,
    simdgroups: Vec<Simdgroup>,
    current: usize,
    arrived: usize,
    done: usize,
    /// Set when the dispatch cannot go on.
    pub(crate) stopped: bool,
    pub(crate) clock: u32,
    pub(crate) call: Option<Call>,
    pub(crate) pointers: [*mut c_void; POINTERS],
    pub(crate) words: [u32; BUILTIN_WORDS],
}

impl Engine {
    pub(crate) fn new() -> io::Result<Engine> {
        Ok(Engine {
            watch: Watch::new(Arena::new()?),
            threads: Vec::new(),
            fibres: Vec::new(),
            simdgroups: Vec::new(),
            current: 0,
            arrived: 0,
            done: 0,
            stopped: false,
            clock: HOST + 1,
            call: None,
            pointers: [std::ptr::null_mut(); POINTERS],
            words: [0; BUILTIN_WORDS],
        })
    }

    /// Time moves on.
    pub(crate) fn tick(&mut self) -> u32 {
        self.clock += 1;
        self.clock
    }

    /// Time starts anew; what is remembered by time must be forgotten.
    pub(crate) fn restart(&mut self) {
        self.clock = HOST + 1;
        self.watch.arena.shadow = Shadow::new(0);
    }

    /// Makes as many fibres as a threadgroup has threads.
    pub(crate) fn prepare(&mut self, threads: usize) -> io::Result<()> {
        while self.fibres.len() < threads {
            self.fibres.push(Fibre::new(self.fibres.len(), body)?);
        }
        let idle = Thread { state: State::Ready, site: 0, trail: 0, passed: 0, pause: std::ptr::null() };
        self.threads.resize(threads, idle);
        while self.simdgroups.len() * LANES < threads {
            self.simdgroups.push(Simdgroup {
                meetings: [Meeting::new(), Meeting::new()],
                turn: 0,
                lanes: 0,
                arrived: 0,
                clocks: [0; 2],
            });
        }
        Ok(())
    }

    /// Runs one threadgroup.
    ///
    /// # Safety
    /// `engine` is the executor of this system thread, and nothing else refers to it.
    pub(crate) unsafe fn run_group(engine: *mut Engine, group: [u32; 3]) {
        // SAFETY: references end before a fibre is resumed.
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
                                (*engine).enter(thread, group);
                                let fibre = (*engine).fibre(thread);
                                (*fibre).resume();
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
                    return (*engine).compare_trails();
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
        *now = Now {
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
            (thread.state, thread.trail) = (State::Ready, 0);
        }
        for (index, simdgroup) in self.simdgroups.iter_mut().enumerate() {
            simdgroup.arrived = 0;
            simdgroup.lanes = threads.saturating_sub(index * LANES).min(LANES);
            simdgroup.clocks = [clock; 2];
        }
        self.words[3..6].copy_from_slice(&group);
        self.words[1..3].copy_from_slice(&group[1..]);
    }

    /// Makes a thread the running one.
    #[inline(always)]
    fn enter(&mut self, thread: usize, group: [u32; 3]) {
        self.current = thread;
        let index = thread as u32;
        let simdgroup = &self.simdgroups[thread / LANES];
        self.watch.device.thread = thread as u16;
        self.watch.group.thread = thread as u16;
        self.watch.device.clock = simdgroup.clocks[0];
        self.watch.group.clock = simdgroup.clocks[1];
        let fibre = &self.fibres[thread];
        self.watch.stack = (fibre.low, fibre.high);
        self.words[0] = group[0].wrapping_mul(self.threads.len() as u32).wrapping_add(index);
        self.words[6] = index;
        self.words[18] = index;
        self.words[19] = index % LANES as u32;
        self.words[20] = index / LANES as u32;
    }

    fn reset(&mut self) {
        for (fibre, _) in self.fibres.iter_mut().zip(&self.threads) {
            fibre.reset();
        }
    }

    /// Leaves the running thread until it is ready again.
    unsafe fn pause(engine: *mut Engine) {
        // SAFETY: the pause was set when the fibre started this run; no reference into the engine is alive.
        unsafe {
            let pause = (*engine).thread().pause;
            (*pause).suspend(());
        }
    }

    /// Ends the dispatch from within a thread.
    pub(crate) unsafe fn give_up(engine: *mut Engine) -> ! {
        unsafe {
            (*engine).stopped = true;
            loop {
                Engine::pause(engine);
            }
        }
    }

    #[cold]
    pub(crate) unsafe fn too_long(engine: *mut Engine, place: *const c_void) {
        unsafe {
            let watch = &mut (*engine).watch;
            let site = site(watch.program, place);
            watch.fault(Kind::Arithmetic, site, |watch| {
                format!("this dispatch does not end: it has made {} accesses", watch.counters.accesses)
            });
            Engine::give_up(engine)
        }
    }

    pub(crate) unsafe fn trap(engine: *mut Engine, kind: u32, value: u64, place: *const c_void) {
        unsafe {
            let watch = &mut (*engine).watch;
            let site = site(watch.program, place);
            match kind {
                0 => watch.fault(Kind::OutOfBounds, site, |watch| {
                    format!("{} takes element {} of an array that ends before", watch.who(), value as i64)
                }),
                _ => watch.fault(Kind::Arithmetic, site, |watch| format!("{} divides by zero", watch.who())),
            }
            Engine::give_up(engine)
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
                    Engine::give_up(engine)
                }
            }
        }
    }

    /// A barrier of the threadgroup.
    pub(crate) unsafe fn threadgroup_barrier(engine: *mut Engine, flags: u32, place: *const c_void) {
        unsafe {
            let site = site((*engine).watch.program, place);
            (*engine).wait(State::Barrier, site);
            (*engine).arrived += 1;
            if (*engine).arrived < (*engine).threads.len() {
                return Engine::pause(engine);
            }
            if !(*engine).together(0..(*engine).threads.len()) {
                Engine::give_up(engine);
            }
            (*engine).pass_barrier(flags);
        }
    }

    /// A barrier of the simdgroup.
    pub(crate) unsafe fn simdgroup_barrier(engine: *mut Engine, flags: u32, place: *const c_void) {
        unsafe {
            let site = site((*engine).watch.program, place);
            if (*engine).arrive(State::SimdgroupBarrier, site) {
                let lanes = (*engine).own_lanes();
                if !(*engine).together(lanes.clone()) {
                    Engine::give_up(engine);
                }
                (*engine).pass_simdgroup_barrier(flags, lanes);
            } else {
                Engine::pause(engine);
            }
        }
    }

    /// An operation between the lanes of a simdgroup.
    pub(crate) unsafe fn meet(
        engine: *mut Engine,
        value: *const u8,
        size: usize,
        place: *const c_void,
    ) -> *mut Meeting {
        unsafe {
            let site = site((*engine).watch.program, place);
            let lane = (*engine).current % LANES;
            let meeting = (*engine).meeting();
            let slot = (&raw mut (*meeting).value).cast::<u8>().add(lane * 32);
            std::ptr::copy_nonoverlapping(value, slot, size.min(32));
            if (*engine).arrive(State::Meeting, site) {
                let lanes = (*engine).own_lanes();
                if !(*engine).together(lanes.clone()) {
                    Engine::give_up(engine);
                }
                (*meeting).ready = 0;
                (*meeting).lanes = lanes.len() as u32;
                (*engine).pass_meeting(lanes);
            } else {
                Engine::pause(engine);
            }
            (*meeting).lane = lane as u32;
            meeting
        }
    }

    /// An operation that all lanes must reach, but at which none has to wait.
    pub(crate) unsafe fn pass(engine: *mut Engine, place: *const c_void) -> u32 {
        unsafe {
            let site = site((*engine).watch.program, place);
            let lane = (*engine).current % LANES;
            let thread = (*engine).thread();
            thread.trail = thread.trail.wrapping_mul(31).wrapping_add(site);
            thread.passed = site;
            lane as u32
        }
    }

    fn is_ready(&self, thread: usize) -> bool {
        self.threads[thread].state == State::Ready
    }

    fn fibre(&mut self, thread: usize) -> *mut Fibre {
        &mut self.fibres[thread]
    }

    /// The running thread.
    fn thread(&mut self) -> &mut Thread {
        &mut self.threads[self.current]
    }

    /// Where the running thread's simdgroup meets next.
    fn meeting(&mut self) -> *mut Meeting {
        let simdgroup = &mut self.simdgroups[self.current / LANES];
        &mut simdgroup.meetings[simdgroup.turn]
    }

    fn wait(&mut self, state: State, site: u32) {
        let thread = &mut self.threads[self.current];
        (thread.state, thread.site) = (state, site);
    }

    /// Notes that a lane waits for its simdgroup. Says whether it was the last.
    fn arrive(&mut self, state: State, site: u32) -> bool {
        self.wait(state, site);
        let simdgroup = &mut self.simdgroups[self.current / LANES];
        simdgroup.arrived += 1;
        simdgroup.arrived == simdgroup.lanes
    }

    fn own_lanes(&self) -> std::ops::Range<usize> {
        let first = self.current / LANES * LANES;
        first..(first + LANES).min(self.threads.len())
    }

    fn release(&mut self, threads: std::ops::Range<usize>) {
        for thread in &mut self.threads[threads] {
            thread.state = State::Ready;
        }
    }

    fn pass_barrier(&mut self, flags: u32) {
        let clock = self.tick();
        self.watch.counters.barriers += 1;
        self.arrived = 0;
        if flags & 1 != 0 {
            self.watch.device.barrier = clock;
        }
        if flags & 2 != 0 {
            self.watch.group.barrier = clock;
        }
        for simdgroup in &mut self.simdgroups {
            simdgroup.pass(flags, clock);
        }
        self.refresh();
        self.release(0..self.threads.len());
    }

    fn pass_simdgroup_barrier(&mut self, flags: u32, lanes: std::ops::Range<usize>) {
        let clock = self.tick();
        self.watch.counters.simd += 1;
        let simdgroup = &mut self.simdgroups[self.current / LANES];
        simdgroup.arrived = 0;
        simdgroup.pass(flags, clock);
        self.refresh();
        self.release(lanes);
    }

    fn pass_meeting(&mut self, lanes: std::ops::Range<usize>) {
        self.watch.counters.simd += 1;
        let simdgroup = &mut self.simdgroups[self.current / LANES];
        simdgroup.turn ^= 1;
        simdgroup.arrived = 0;
        self.release(lanes);
    }

    /// The running thread's time, after a barrier.
    fn refresh(&mut self) {
        let clocks = self.simdgroups[self.current / LANES].clocks;
        (self.watch.device.clock, self.watch.group.clock) = (clocks[0], clocks[1]);
    }
}

impl Simdgroup {
    fn pass(&mut self, flags: u32, clock: u32) {
        for (kind, own) in self.clocks.iter_mut().enumerate() {
            if flags & (1 << kind) != 0 {
                *own = clock;
            }
        }
    }
}

impl Meeting {
    fn new() -> Meeting {
        Meeting {
            ready: 0,
            lanes: 0,
            lane: 0,
            padding: 0,
            result: Aligned([0; 512]),
            value: Aligned([0; 1024]),
        }
    }
}

/// What a fibre runs: the kernel, for the thread that is current.
fn body(pause: &Pause) {
    let engine = engine();
    // SAFETY: a fibre is resumed only by its engine, which has set everything the kernel needs.
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
