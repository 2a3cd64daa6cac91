//! The simulated device: dispatches kernels over buffers, like a command encoder, and collects faults.

use crate::check::checker::{Counters, View};
use crate::check::fault::{Fault, FaultKind};
use crate::check::traffic::Traffic;
use crate::compile::program::Program;
use crate::execute::engine::{Engine, LANES, MAX_THREADS};
use crate::execute::hooks::set_engine;
use crate::memory::buffers::{Bound, Memory};
use crate::memory::shadow::Shadow;
use forge_msl::Signature;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::io;

/// A device that executes the kernels of one program, one dispatch after another.
pub struct Sim<'p> {
    program: &'p Program,
    /// The buffers.
    pub memory: Memory,
    engine: Box<Engine>,
    counters: BTreeMap<String, Counters>,
    /// Whether each barrier command was required_barriers. The last entry is final only after the next barrier.
    required_barriers: Vec<bool>,
    /// Clock tick of the last barrier.
    interval: u32,
    /// Clock tick of the barrier before it, to find out whether the last one was required_barriers.
    previous: u32,
    /// Whether a dispatch was aborted.
    stopped: bool,
}

impl<'p> Sim<'p> {
    /// Creates a device without buffers.
    pub fn new(program: &'p Program) -> io::Result<Sim<'p>> {
        Ok(Sim {
            program,
            memory: Memory::new(),
            engine: Box::new(Engine::new()?),
            counters: BTreeMap::new(),
            required_barriers: Vec::new(),
            interval: 2,
            previous: 2,
            stopped: false,
        })
    }

    /// Runs a kernel over `groups` threadgroups of its declared size. `bindings` are in the order of its
    /// buffers. Returns whether it ran to completion; faults are in [`Sim::faults`].
    pub fn dispatch(&mut self, kernel: &str, bindings: &[Bound], scalars: &[u32], groups: [u32; 3]) -> bool {
        self.dispatch_with(kernel, bindings, scalars, groups, None)
    }

    /// Like [`Sim::dispatch`], with an explicit threadgroup size.
    pub fn dispatch_with(
        &mut self,
        kernel: &str,
        bindings: &[Bound],
        scalars: &[u32],
        groups: [u32; 3],
        threads: Option<u32>,
    ) -> bool {
        let Some(index) = self.program.find(kernel) else {
            self.reject(kernel, 0, format!("there is no kernel `{kernel}`"));
            return false;
        };
        let signature = &self.program.kernels()[index].signature;
        let Some(threads) = self.check(signature, bindings, scalars, groups, threads) else { return false };
        #[cfg(feature = "gpu")]
        if let Some(gpu) = &self.program.gpu {
            let outcome = gpu.run(&mut self.memory, signature, bindings, scalars, groups, threads);
            return outcome.map_err(|message| self.reject(kernel, signature.line, message)).is_ok();
        }
        self.engine.watch.clear();
        self.engine.watch.program = self.program;
        self.engine.watch.kernel = index;
        self.engine.pointers = [std::ptr::null_mut(); Signature::MOST_SLOTS];
        if let Err(message) = self.bind(signature, bindings, scalars) {
            self.reject(kernel, signature.line, message);
            return false;
        }
        self.launch(index, groups, threads as usize)
    }

    /// Checks that a dispatch matches its kernel; returns the number of threads.
    fn check(
        &mut self,
        signature: &Signature,
        bindings: &[Bound],
        scalars: &[u32],
        groups: [u32; 3],
        stated: Option<u32>,
    ) -> Option<u32> {
        let (name, line) = (&signature.name, signature.line);
        let threads = match (signature.threads, stated) {
            (Some(own), Some(given)) if own != given => {
                self.reject(name, line, format!("launched with {given} threads, but it declares {own}"));
                return None;
            }
            (own, given) => own.or(given),
        };
        let Some(threads) = threads else {
            self.reject(
                name,
                line,
                "neither the kernel nor the launch declares a number of threads".to_owned(),
            );
            return None;
        };
        if threads == 0 || threads as usize > MAX_THREADS {
            self.reject(
                name,
                line,
                format!("invalid threadgroup size {threads}: expected 1 to {MAX_THREADS}"),
            );
            return None;
        }
        if groups.contains(&0) {
            self.reject(name, line, format!("empty launch over {groups:?} threadgroups"));
            return None;
        }
        let buffers = signature.buffers.len();
        if buffers != bindings.len() {
            self.reject(name, line, format!("it has {buffers} buffers and is given {}", bindings.len()));
            return None;
        }
        let index = self.program.find(name)?;
        let bytes = self.program.kernels()[index].scalar_bytes;
        if bytes != scalars.len() * 4 {
            self.reject(
                name,
                line,
                format!("its scalars are {bytes} bytes and it is given {}", scalars.len() * 4),
            );
            return None;
        }
        Some(threads)
    }

    /// Binds the kernel's buffers and scalars.
    fn bind(&mut self, signature: &Signature, bindings: &[Bound], scalars: &[u32]) -> Result<(), String> {
        self.memory.reserve_windows(bindings.len());
        for (parameter, bound) in signature.buffers.iter().zip(bindings) {
            let size = self.memory.size(bound.buffer);
            let bytes =
                if bound.bytes == usize::MAX { size.saturating_sub(bound.offset) } else { bound.bytes };
            if bound.offset.checked_add(bytes).is_none_or(|end| end > size) {
                let (offset, name) = (bound.offset, &parameter.name);
                return Err(format!("`{name}`: {bytes} bytes at {offset} exceed its buffer of {size} bytes"));
            }
            let window =
                self.memory.window(bound.buffer, bound.offset, bytes).map_err(|error| error.to_string())?;
            let buffer = &mut self.memory.buffers[bound.buffer.index()];
            let shadow =
                buffer.shadow.as_deref_mut().map_or(std::ptr::null_mut(), |shadow| shadow as *mut Shadow);
            self.engine.pointers[parameter.slot as usize] = window.start as *mut c_void;
            self.engine.watch.views.push(View {
                start: window.start,
                bytes,
                low: window.low,
                reach: window.reach,
                written: bound.written && parameter.written && !shadow.is_null(),
                device: true,
                shadow,
                origin: bound.offset,
                floor: buffer.floor,
                name: parameter.name.clone(),
            });
        }
        if let Some(parameter) = &signature.scalars {
            // The scalars are read-only and outlive the dispatch.
            let start = scalars.as_ptr() as usize;
            self.engine.pointers[parameter.slot as usize] = start as *mut c_void;
            self.engine.watch.views.push(View {
                start,
                bytes: scalars.len() * 4,
                low: start,
                reach: scalars.len() * 4,
                written: false,
                device: false,
                shadow: std::ptr::null_mut(),
                origin: 0,
                floor: 0,
                name: parameter.name.clone(),
            });
        }
        Ok(())
    }

    fn launch(&mut self, index: usize, groups: [u32; 3], threads: usize) -> bool {
        let kernel = &self.program.kernels()[index];
        let name = kernel.signature.name.clone();
        if let Err(error) = self.engine.prepare(threads) {
            self.reject(&name, kernel.signature.line, error.to_string());
            return false;
        }
        let engine: *mut Engine = &mut *self.engine;
        self.engine.call = kernel.call;
        self.engine.stopped = false;
        let start = self.engine.tick();
        self.engine.watch.dispatches.push((start, name.clone()));
        self.engine.watch.groups.clear();
        let device = &mut self.engine.watch.device;
        (device.dispatch, device.interval, device.previous) = (start, self.interval, self.previous);
        let all = groups.map(|groups| groups.wrapping_mul(1));
        let words = &mut self.engine.words;
        words[7..9].fill(0);
        words[9..12].copy_from_slice(&[threads as u32, 1, 1]);
        words[12..15].copy_from_slice(&all);
        words[15..18].copy_from_slice(&[all[0].wrapping_mul(threads as u32), all[1], all[2]]);
        words[21] = threads.div_ceil(LANES) as u32;
        words[22] = LANES as u32;
        let watch = &mut self.engine.watch;
        if let Some(counting) = &mut watch.counting {
            counting.begin(threads, watch.views.iter().filter(|view| view.device).map(|view| view.bytes));
        }
        let before = set_engine(engine);
        'groups: for z in 0..groups[2] {
            for y in 0..groups[1] {
                for x in 0..groups[0] {
                    // SAFETY: the engine is set for this system thread, and only this call borrows `self`.
                    unsafe {
                        Engine::run_group(engine, [x, y, z]);
                        if let Some(counting) = &mut (*engine).watch.counting {
                            counting.end_group();
                        }
                        if (*engine).stopped {
                            break 'groups;
                        }
                    }
                }
            }
        }
        set_engine(before);
        self.stopped |= self.engine.stopped;
        let watch = &mut self.engine.watch;
        if let Some(counting) = &mut watch.counting {
            watch.counters.traffic = counting.end();
        }
        let total = self.counters.entry(name).or_default();
        *total += self.engine.watch.counters;
        total.dispatches += 1;
        !self.engine.stopped
    }

    /// A barrier command: orders all later dispatches behind all earlier ones.
    pub fn barrier(&mut self) {
        let before = self.interval;
        self.fence();
        self.previous = before.min(self.interval);
        self.required_barriers.push(false);
    }

    /// The host's wait for the device: a barrier that is always required_barriers.
    pub fn fence(&mut self) {
        if let Some(last) = self.required_barriers.last_mut() {
            *last |= self.engine.watch.would_conflict;
        }
        if self.engine.clock > u32::MAX / 2 {
            self.memory.clear_times();
            self.engine.restart();
        }
        self.interval = self.engine.tick();
        self.previous = self.interval;
        self.engine.watch.would_conflict = false;
        self.engine.watch.dispatches.clear();
    }

    /// Whether two dispatches would conflict without a barrier, for each barrier so far. The entry of the
    /// last barrier is final only after the next barrier or fence.
    pub fn required_barriers(&self) -> &[bool] {
        &self.required_barriers
    }

    /// Records that the host reads uninitialized memory.
    pub(crate) fn report_uninitialized_read(&mut self, message: String) {
        let fault =
            Fault { kind: FaultKind::NeverWritten, kernel: "host".to_owned(), line: 0, message, count: 1 };
        self.engine.watch.faults.add(fault, None);
    }

    /// Records an invalid launch.
    pub(crate) fn reject(&mut self, kernel: &str, line: usize, message: String) {
        let fault = Fault { kind: FaultKind::Launch, kernel: kernel.to_owned(), line, message, count: 1 };
        self.engine.watch.faults.add(fault, None);
    }

    /// Sets the maximum accesses per dispatch, so that an endless loop is reported as a fault.
    pub fn limit(&mut self, accesses: u64) {
        self.engine.watch.budget = accesses;
    }

    /// All faults so far.
    pub fn faults(&self) -> &[Fault] {
        self.engine.watch.faults.all()
    }

    /// Removes and returns all faults so far.
    pub fn take_faults(&mut self) -> Vec<Fault> {
        self.engine.watch.faults.take()
    }

    /// Enables or disables memory traffic counters for later dispatches. TrafficCounter slows them down.
    pub fn count_traffic(&mut self, on: bool) {
        let counting = &mut self.engine.watch.counting;
        *counting = on.then(|| counting.take().unwrap_or_default());
    }

    /// The memory traffic of the last dispatch, if counted.
    pub fn traffic(&self) -> Traffic {
        self.engine.watch.counters.traffic
    }

    /// Adds the traffic of a dispatch that was not counted because an identical one was.
    pub(crate) fn add_traffic(&mut self, kernel: &str, traffic: Traffic) {
        if let Some(counters) = self.counters.get_mut(kernel) {
            counters.traffic += traffic;
        }
    }

    /// Counters of each kernel so far.
    pub fn counters(&self) -> &BTreeMap<String, Counters> {
        &self.counters
    }

    /// Whether a dispatch was aborted, which makes later values meaningless.
    pub fn stopped(&self) -> bool {
        self.stopped
    }
}
