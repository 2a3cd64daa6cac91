//! The emulated GPU: its memory, its program, and the pending command buffers.
//!
//! Command buffers execute in order and as late as possible: when the host waits for them. A host that reads earlier gets
//! stale data. A pending command buffer must not access words that the host has written since the commit. To detect these
//! words, the emulator compares all shared memory at every commit and execution.

use crate::counters::executes_kernels;
use crate::metal::buffer::{Backing, Buffer};
use crate::metal::commands::{CommandBuffer, SharedCommandBuffer, Status};
use crate::metal::event::SharedEvent;
use crate::metal::library::Function;
use forge_sim::{BufferId, Memory, Program, Sim};
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::Instant;

/// Maximum accesses of a dispatch; more count as an endless loop.
const MAX_ACCESSES: u64 = 1 << 31;
/// Maximum pending command buffers of a queue, as in Metal. Another one waits for the first.
const MAX_PENDING: usize = 64;

/// A command of a command buffer.
pub(crate) enum Command {
    /// Runs a kernel.
    Dispatch(Dispatch),
    /// Orders later commands behind earlier ones.
    Barrier,
    /// Later commands wait until an event has a value.
    WaitForEvent(Rc<SharedEvent>, u64),
    /// Sets the value of an event when earlier commands have completed.
    SignalEvent(Rc<SharedEvent>, u64),
}

/// A kernel launch with its arguments.
pub(crate) struct Dispatch {
    pub(crate) function: Rc<Function>,
    /// Buffers and offsets, in the order of the kernel's parameters.
    pub(crate) buffers: Vec<(Rc<Buffer>, usize)>,
    pub(crate) scalars: Vec<u32>,
    pub(crate) groups: [u32; 3],
    pub(crate) threads: u32,
}

/// The emulated GPU.
#[derive(Default)]
pub(crate) struct Gpu {
    /// The buffers, until a program is loaded.
    memory: Memory,
    sim: Option<Sim<'static>>,
    /// Buffers that the host may write.
    pub(crate) shared: Vec<BufferId>,
    /// The buffers over writable host memory.
    pub(crate) no_copy_writable: Vec<Rc<Buffer>>,
    pending: VecDeque<Pending>,
    /// Contents of the shared buffers at the last comparison.
    snapshots: Vec<Vec<u8>>,
}

/// A committed command buffer, and the words (buffer and offset) that the host has written since.
struct Pending {
    commands: SharedCommandBuffer,
    host_written: HashSet<(BufferId, usize)>,
}

impl Gpu {
    /// The memory of the GPU.
    pub(crate) fn memory(&mut self) -> &mut Memory {
        match &mut self.sim {
            Some(sim) => &mut sim.memory,
            None => &mut self.memory,
        }
    }

    /// Loads the program.
    pub(crate) fn load(&mut self, program: &'static Program) -> Result<(), String> {
        if self.sim.is_some() {
            return Err("an emulated device supports only one library".to_owned());
        }
        let mut sim = Sim::new(program).map_err(|error| error.to_string())?;
        sim.limit(MAX_ACCESSES);
        sim.memory = std::mem::take(&mut self.memory);
        self.sim = Some(sim);
        Ok(())
    }

    /// Enqueues a command buffer.
    pub(crate) fn submit(&mut self, commands: SharedCommandBuffer) {
        if self.pending.len() == MAX_PENDING {
            self.complete_first();
        }
        self.detect_host_writes();
        self.pending.push_back(Pending { commands, host_written: HashSet::new() });
    }

    /// Executes pending command buffers up to and including this one.
    pub(crate) fn complete(&mut self, commands: &SharedCommandBuffer) {
        let place = self.pending.iter().position(|pending| Rc::ptr_eq(&pending.commands, commands));
        for _ in 0..place.map_or(0, |place| place + 1) {
            self.complete_first();
        }
    }

    /// Executes all pending command buffers. Returns whether there were any.
    pub(crate) fn complete_all(&mut self) -> bool {
        let was_pending = !self.pending.is_empty();
        while self.complete_first() {}
        was_pending
    }

    /// Whether a command buffer is pending.
    pub(crate) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The host sets an event. What it wrote before, command buffers that wait for the value may access, and those
    /// after them.
    pub(crate) fn host_signals(&mut self, event: &Rc<SharedEvent>, value: u64) {
        self.detect_host_writes();
        let waits = |command: &Command| {
            matches!(command, Command::WaitForEvent(of, awaited)
                if Rc::ptr_eq(of, event) && (event.value() + 1..=value).contains(awaited))
        };
        let waits = |pending: &Pending| pending.commands.borrow().encoded.iter().any(waits);
        let first = self.pending.iter().position(waits).unwrap_or(self.pending.len());
        self.pending.iter_mut().skip(first).for_each(|pending| pending.host_written.clear());
        event.set(value);
    }

    /// Executes the first pending command buffer. Returns whether there was one.
    pub(crate) fn complete_first(&mut self) -> bool {
        self.detect_host_writes();
        let Some(Pending { commands, host_written }) = self.pending.pop_front() else { return false };
        let mut commands = commands.borrow_mut();
        let encoded = std::mem::take(&mut commands.encoded);
        let begin = now();
        for command in &encoded {
            if let Command::WaitForEvent(event, value) = command
                && event.value() < *value
            {
                // Metal would wait forever.
                let what = format!("waiting for value {value} of an event that has {}", event.value());
                commands.report_violation(what);
            }
        }
        // A command buffer with violations is not executed.
        if executes_kernels() && commands.violations.is_empty() {
            host_written.iter().for_each(|(buffer, offset)| self.memory().clear_accesses(*buffer, *offset));
            self.execute(&mut commands, &encoded);
            let touched = host_written
                .iter()
                .filter(|(buffer, offset)| self.memory().was_accessed(*buffer, *offset))
                .count();
            if touched > 0 {
                commands.report_violation(format!(
                    "the host wrote {touched} words that a pass in flight accesses"
                ));
            }
            self.snapshots = self.contents();
        }
        // After an error the GPU does not signal.
        for command in encoded.into_iter().filter(|_| commands.violations.is_empty()) {
            if let Command::SignalEvent(event, value) = command {
                event.set(value);
            }
        }
        commands.status = Status::Completed;
        commands.times = [begin, now()];
        true
    }

    fn execute(&mut self, commands: &mut CommandBuffer, encoded: &[Command]) {
        let Some(sim) = &mut self.sim else { return };
        let used = encoded.iter().flat_map(|command| match command {
            Command::Dispatch(dispatch) => &dispatch.buffers[..],
            _ => &[],
        });
        let used = used.map(|(buffer, _)| buffer);
        if !commands.retains_references && used.clone().any(|buffer| buffer.released.get()) {
            return commands.report_violation(
                "a buffer was released before a pass that uses it has completed".to_owned(),
            );
        }
        let mut no_copy: Vec<&Rc<Buffer>> =
            used.filter(|buffer| buffer.backing != Backing::Allocated).collect();
        no_copy.dedup_by_key(|buffer| buffer.id);
        if no_copy.iter().any(|buffer| !buffer.is_intact(sim.memory.contents(buffer.id))) {
            return commands
                .report_violation("the memory of a no-copy buffer was modified or released".to_owned());
        }
        for command in encoded {
            match command {
                Command::Barrier => sim.barrier(),
                Command::WaitForEvent(..) | Command::SignalEvent(..) => {}
                Command::Dispatch(dispatch) => {
                    let bound = |(buffer, offset): &(Rc<Buffer>, usize)| {
                        buffer.id.span(*offset, usize::MAX, buffer.backing == Backing::Allocated)
                    };
                    let bindings: Vec<_> = dispatch.buffers.iter().map(bound).collect();
                    let (name, threads) = (dispatch.function.name(), Some(dispatch.threads));
                    sim.dispatch_with(name, &bindings, &dispatch.scalars, dispatch.groups, threads);
                }
            }
        }
        sim.fence();
        for fault in sim.take_faults() {
            commands.report_violation(fault.to_string());
        }
    }

    /// Detects host writes since the last comparison.
    fn detect_host_writes(&mut self) {
        if !executes_kernels() {
            return;
        }
        let memory = match &mut self.sim {
            Some(sim) => &mut sim.memory,
            None => &mut self.memory,
        };
        self.no_copy_writable.retain(|buffer| !buffer.released.get());
        self.no_copy_writable.iter().for_each(|buffer| buffer.copy_host_writes(memory));
        for (index, id) in self.shared.iter().enumerate() {
            memory.detect_host_writes(*id);
            if self.pending.is_empty() {
                continue;
            }
            let before = self.snapshots.get(index).map_or(&[][..], Vec::as_slice);
            for offset in differing_words(before, memory.contents(*id)) {
                self.pending.iter_mut().for_each(|pending| _ = pending.host_written.insert((*id, offset)));
            }
        }
        self.snapshots = self.contents();
    }

    /// Contents of the shared buffers.
    fn contents(&mut self) -> Vec<Vec<u8>> {
        let shared = self.shared.clone();
        shared.into_iter().map(|id| self.memory().contents(id).to_vec()).collect()
    }
}

/// Seconds since the first call.
fn now() -> f64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    FIRST.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// Offsets of the words that differ.
pub(crate) fn differing_words(before: &[u8], after: &[u8]) -> Vec<usize> {
    /// Bytes compared at once, because most are equal.
    const STRETCH: usize = 4096;
    let stretches = before.chunks(STRETCH).zip(after.chunks(STRETCH)).enumerate();
    let differ = stretches.filter(|(_, (before, after))| before != after);
    let words = differ.flat_map(|(stretch, (before, after))| {
        let words = before.chunks_exact(4).zip(after.chunks_exact(4)).enumerate();
        let differ = words.filter(|(_, (before, after))| before != after);
        differ.map(move |(word, _)| stretch * STRETCH + word * 4)
    });
    words.collect()
}
