//! The machine behind a device: its memory, the program that it executes, and what waits to be executed.
//!
//! Before passes are executed it finds out what the host has written since the last, and it notes all bytes when a pass is
//! committed: whoever writes after that, and before the pass is done, writes what the GPU may be reading.

use crate::account::executes;
use crate::buffer::Buffer;
use crate::commands::{Commands, SharedCommands, Stage};
use crate::library::Function;
use forge_sim::{BufferId, Memory, Program, Sim};
use std::rc::Rc;

/// Accesses that a dispatch may make before it counts as one that does not end.
const LIMIT: u64 = 1 << 31;

/// What a command buffer has the machine do.
pub(crate) enum Command {
    /// Run a kernel.
    Dispatch(Dispatch),
    /// Let what follows see what came before.
    Barrier,
}

/// A kernel with all that it is given.
pub(crate) struct Dispatch {
    pub(crate) function: Rc<Function>,
    /// Buffers and offsets, in the order of the kernel's.
    pub(crate) buffers: Vec<(Rc<Buffer>, usize)>,
    pub(crate) scalars: Vec<u32>,
    pub(crate) groups: [u32; 3],
    pub(crate) threads: u32,
}

/// The machine.
#[derive(Default)]
pub(crate) struct Machine {
    /// The buffers, until there is a program.
    memory: Memory,
    sim: Option<Sim<'static>>,
    /// Buffers that the host may write.
    pub(crate) shared: Vec<BufferId>,
    pending: Option<SharedCommands>,
    /// What the host's buffers held when it was committed.
    sealed: Option<u64>,
}

impl Machine {
    /// The buffers.
    pub(crate) fn memory(&mut self) -> &mut Memory {
        match &mut self.sim {
            Some(sim) => &mut sim.memory,
            None => &mut self.memory,
        }
    }

    /// Takes the program whose kernels it will execute.
    pub(crate) fn load(&mut self, program: &'static Program) -> Result<(), String> {
        if self.sim.is_some() {
            return Err("an emulated device has one library".to_owned());
        }
        let mut sim = Sim::new(program).map_err(|error| error.to_string())?;
        sim.limit(LIMIT);
        sim.memory = std::mem::take(&mut self.memory);
        self.sim = Some(sim);
        Ok(())
    }

    /// Has a command buffer wait for its turn. One that nobody waits for is carried out when the next comes.
    pub(crate) fn submit(&mut self, commands: SharedCommands) {
        self.complete();
        if executes() {
            self.sealed = Some(self.seal());
        }
        self.pending = Some(commands);
    }

    /// Carries out what is pending. Says whether anything was.
    pub(crate) fn complete(&mut self) -> bool {
        let Some(commands) = self.pending.take() else { return false };
        let disturbed = self.sealed.take().is_some_and(|sealed| sealed != self.seal());
        let mut commands = commands.borrow_mut();
        if disturbed {
            commands.complain("the host wrote into buffers while a pass was on its way".to_owned());
        }
        // What Metal would have stopped the program for is not executed.
        if executes() && commands.wrong.is_empty() {
            self.carry_out(&mut commands);
        }
        commands.stage = Stage::Completed;
        true
    }

    fn carry_out(&mut self, commands: &mut Commands) {
        let Some(sim) = &mut self.sim else { return };
        let encoded = std::mem::take(&mut commands.encoded);
        let used = encoded.iter().flat_map(|command| match command {
            Command::Dispatch(dispatch) => &dispatch.buffers[..],
            Command::Barrier => &[],
        });
        let mut lent: Vec<&Rc<Buffer>> =
            used.map(|(buffer, _)| buffer).filter(|buffer| buffer.lent).collect();
        lent.dedup_by_key(|buffer| buffer.id);
        if lent.iter().any(|buffer| !buffer.is_intact(sim.memory.contents(buffer.id))) {
            return commands.complain(
                "memory that a buffer shows without a copy has been changed or given back".to_owned(),
            );
        }
        for command in &encoded {
            match command {
                Command::Barrier => sim.barrier(),
                Command::Dispatch(dispatch) => {
                    let bound =
                        |(buffer, offset): &(Rc<Buffer>, usize)| buffer.id.span(*offset, usize::MAX, true);
                    let bindings: Vec<_> = dispatch.buffers.iter().map(bound).collect();
                    let (name, threads) = (dispatch.function.name(), Some(dispatch.threads));
                    sim.dispatch_with(name, &bindings, &dispatch.scalars, dispatch.groups, threads, &[]);
                }
            }
        }
        sim.fence();
        for fault in sim.take_faults() {
            commands.complain(fault.to_string());
        }
    }

    /// Notices what the host has written, and gives a number that changes with every byte.
    fn seal(&mut self) -> u64 {
        let mut sum = 0u64;
        for id in self.shared.clone() {
            let memory = self.memory();
            memory.notice(id);
            for word in memory.contents(id).chunks(8) {
                let mut bytes = [0; 8];
                bytes[..word.len()].copy_from_slice(word);
                sum = (sum ^ u64::from_le_bytes(bytes)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
            }
        }
        sum
    }
}
