//! Synchronization: threadgroup barriers, simdgroup barriers, and the rendezvous of simdgroup operations.

use crate::check::checker::site;
use crate::execute::engine::{Engine, LANES, State};
use std::ffi::c_void;

/// The values of all lanes in a simdgroup operation: `forge_simd_values` of `hooks.h`.
#[repr(C, align(64))]
pub(crate) struct Rendezvous {
    ready: u32,
    lanes: u32,
    lane: u32,
    thread: u32,
    threads: u32,
    result: Aligned<512>,
    value: Aligned<1024>,
}

#[repr(C, align(64))]
struct Aligned<const N: usize>([u8; N]);

/// One simdgroup of the running threadgroup.
pub(crate) struct Simdgroup {
    /// Two in alternation: a lane may store its next value before another lane has read the last.
    rendezvous_pair: [Rendezvous; 2],
    turn: usize,
    lanes: usize,
    arrived: usize,
    /// Times of its last barrier, for device and threadgroup memory.
    clocks: [u32; 2],
}
// SAFETY, for all functions with a pointer: it is the executor of this system thread, and the caller is one of its fibers.
// References into the engine end before a fiber is suspended, because other fibers use the engine meanwhile.

impl Engine {
    /// A threadgroup barrier.
    pub(crate) unsafe fn threadgroup_barrier(engine: *mut Engine, flags: u32, place: *const c_void) {
        unsafe {
            let site = site((*engine).watch.program, place);
            (*engine).wait(State::Barrier, site);
            (*engine).arrived += 1;
            if (*engine).arrived < (*engine).threads.len() {
                return Engine::pause(engine);
            }
            if !(*engine).is_uniform(0..(*engine).threads.len()) {
                Engine::abort_dispatch(engine);
            }
            (*engine).complete_barrier(flags);
        }
    }

    /// A simdgroup barrier.
    pub(crate) unsafe fn simdgroup_barrier(engine: *mut Engine, flags: u32, place: *const c_void) {
        unsafe {
            let site = site((*engine).watch.program, place);
            if (*engine).arrive(State::SimdgroupBarrier, site) {
                let lanes = (*engine).own_lanes();
                if !(*engine).is_uniform(lanes.clone()) {
                    Engine::abort_dispatch(engine);
                }
                (*engine).complete_simdgroup_barrier(flags, lanes);
            } else {
                Engine::pause(engine);
            }
        }
    }

    /// A simdgroup operation.
    pub(crate) unsafe fn sync_lanes(
        engine: *mut Engine,
        value: *const u8,
        size: usize,
        place: *const c_void,
    ) -> *mut Rendezvous {
        unsafe {
            let site = site((*engine).watch.program, place);
            let lane = (*engine).current % LANES;
            let rendezvous = (*engine).rendezvous();
            let slot = (&raw mut (*rendezvous).value).cast::<u8>().add(lane * 32);
            std::ptr::copy_nonoverlapping(value, slot, size.min(32));
            if (*engine).arrive(State::Meeting, site) {
                let lanes = (*engine).own_lanes();
                if !(*engine).is_uniform(lanes.clone()) {
                    Engine::abort_dispatch(engine);
                }
                (*rendezvous).ready = 0;
                (*rendezvous).lanes = lanes.len() as u32;
                (*engine).complete_rendezvous(lanes);
            } else {
                Engine::pause(engine);
            }
            (*rendezvous).lane = lane as u32;
            (*rendezvous).thread = (*engine).current as u32;
            (*rendezvous).threads = (*engine).threads.len() as u32;
            rendezvous
        }
    }

    /// An operation that all lanes must reach, but without waiting.
    pub(crate) unsafe fn pass(engine: *mut Engine, place: *const c_void) -> u32 {
        unsafe {
            let site = site((*engine).watch.program, place);
            let lane = (*engine).current % LANES;
            let thread = (*engine).thread();
            thread.path_hash = thread.path_hash.wrapping_mul(31).wrapping_add(site);
            thread.passed = site;
            lane as u32
        }
    }

    /// The next rendezvous of the running thread's simdgroup.
    fn rendezvous(&mut self) -> *mut Rendezvous {
        let simdgroup = &mut self.simdgroups[self.current / LANES];
        &mut simdgroup.rendezvous_pair[simdgroup.turn]
    }

    fn wait(&mut self, state: State, site: u32) {
        let thread = &mut self.threads[self.current];
        (thread.state, thread.site) = (state, site);
    }

    /// Records that a lane waits for its simdgroup. Returns whether it is the last.
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

    fn complete_barrier(&mut self, flags: u32) {
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
        self.update_clocks();
        self.release(0..self.threads.len());
    }

    fn complete_simdgroup_barrier(&mut self, flags: u32, lanes: std::ops::Range<usize>) {
        let clock = self.tick();
        self.watch.counters.simd += 1;
        let simdgroup = &mut self.simdgroups[self.current / LANES];
        simdgroup.arrived = 0;
        simdgroup.pass(flags, clock);
        self.update_clocks();
        self.release(lanes);
    }

    fn complete_rendezvous(&mut self, lanes: std::ops::Range<usize>) {
        self.watch.counters.simd += 1;
        let simdgroup = &mut self.simdgroups[self.current / LANES];
        simdgroup.turn ^= 1;
        simdgroup.arrived = 0;
        self.release(lanes);
    }

    /// Updates the running thread's times after a barrier.
    fn update_clocks(&mut self) {
        let clocks = self.simdgroups[self.current / LANES].clocks;
        (self.watch.device.clock, self.watch.group.clock) = (clocks[0], clocks[1]);
    }
}

impl Simdgroup {
    pub(crate) fn new() -> Simdgroup {
        let rendezvous_pair = [Rendezvous::new(), Rendezvous::new()];
        Simdgroup { rendezvous_pair, turn: 0, lanes: 0, arrived: 0, clocks: [0; 2] }
    }

    /// Resets the simdgroup at the start of a threadgroup.
    pub(crate) fn start(&mut self, lanes: usize, clock: u32) {
        (self.lanes, self.arrived, self.clocks) = (lanes, 0, [clock; 2]);
    }

    /// Times of its last barrier, for device and threadgroup memory.
    pub(crate) fn clocks(&self) -> [u32; 2] {
        self.clocks
    }

    fn pass(&mut self, flags: u32, clock: u32) {
        for (kind, own) in self.clocks.iter_mut().enumerate() {
            if flags & (1 << kind) != 0 {
                *own = clock;
            }
        }
    }
}

impl Rendezvous {
    fn new() -> Rendezvous {
        Rendezvous {
            ready: 0,
            lanes: 0,
            lane: 0,
            thread: 0,
            threads: 0,
            result: Aligned([0; 512]),
            value: Aligned([0; 1024]),
        }
    }
}
