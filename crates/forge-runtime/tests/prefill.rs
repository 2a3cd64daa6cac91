//! Prefill passes in flight: their inputs do not change before they have run, and a failed pass is not counted.

use forge_runtime as runtime;
use runtime::cpu::CpuDevice;
use runtime::device::{Binding, Buffer, Device, Kernel, Pass, Schedule};
use runtime::engine::{Engine, Output};
use runtime::weights::WeightFile;
use std::collections::VecDeque;
use support::reference::Reference;

#[allow(dead_code, unreachable_pub, missing_docs)]
#[path = "../tiny/kernels.rs"]
mod kernels;
#[allow(dead_code, unreachable_pub, missing_docs)]
#[path = "../tiny/model.rs"]
mod model;
mod support;
use model::Tiny;

/// A command of a pass that has not run.
enum Command {
    Dispatch(&'static Kernel, Vec<Binding>, Vec<u32>, [u32; 3]),
    Barrier,
}

/// An asynchronous device: a pass runs when the host waits for it, and not before.
struct Late {
    inner: CpuDevice,
    in_flight: VecDeque<(Schedule, Vec<Command>)>,
    /// The largest number of passes in flight so far.
    most: usize,
    /// Passes that succeed before one fails.
    until_failure: usize,
}

/// Captures the commands of a pass.
struct Encoder<'a>(&'a mut Vec<Command>);

impl Pass for Encoder<'_> {
    fn dispatch(&mut self, kernel: &'static Kernel, bindings: &[Binding], scalars: &[u32], groups: [u32; 3]) {
        self.0.push(Command::Dispatch(kernel, bindings.to_vec(), scalars.to_vec(), groups));
    }

    fn barrier(&mut self) {
        self.0.push(Command::Barrier);
    }

    fn gpu_cores(&self) -> u32 {
        0
    }
}

impl Device for Late {
    fn describe(&self) -> String {
        "late".to_owned()
    }

    fn write(&mut self, buffer: Buffer, offset: usize, bytes: &[u8]) {
        self.inner.write(buffer, offset, bytes);
    }

    fn read(&mut self, buffer: Buffer, offset: usize, bytes: &mut [u8]) {
        self.inner.read(buffer, offset, bytes);
    }

    fn run(&mut self, schedule: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        self.begin(schedule, encode)?;
        self.wait(0)
    }

    fn begin(&mut self, schedule: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        let mut commands = Vec::new();
        encode(&mut Encoder(&mut commands));
        self.in_flight.push_back((schedule, commands));
        self.most = self.most.max(self.in_flight.len());
        Ok(())
    }

    fn wait(&mut self, left: usize) -> Result<(), String> {
        while self.in_flight.len() > left {
            let Some((schedule, commands)) = self.in_flight.pop_front() else { break };
            if self.until_failure == 0 {
                self.in_flight.clear();
                return Err("the device is lost".to_owned());
            }
            self.until_failure -= 1;
            self.inner.run(schedule, &mut |pass| {
                for command in &commands {
                    match command {
                        Command::Dispatch(kernel, bindings, scalars, groups) => {
                            pass.dispatch(kernel, bindings, scalars, *groups);
                        }
                        Command::Barrier => pass.barrier(),
                    }
                }
            })?;
        }
        Ok(())
    }

    fn overlaps_prefill(&self) -> bool {
        true
    }
}

fn engine(until_failure: usize) -> Engine<Late> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    Reference::new().write_weights(&path);
    let weights = WeightFile::open(&path).unwrap();
    let tiny = Tiny::load(&weights, 64, 1).unwrap();
    let inner = CpuDevice::new(&weights, tiny.layout(), Some(1)).unwrap().exact(true);
    Engine::new(tiny, Late { inner, in_flight: VecDeque::new(), most: 0, until_failure }, 64, 1)
}

/// A prompt of that many tokens.
fn prompt(count: usize) -> Vec<u32> {
    (0..count as u32).map(|index| 5 + index * 7 % 23).collect()
}

#[test]
fn passes_in_flight_give_the_same_tokens() {
    // The tiny model's passes have 8 rows.
    for (count, most) in [(5, 1), (8, 1), (9, 2), (16, 2), (17, 2), (25, 2), (32, 2), (40, 2)] {
        let prompt = prompt(count);
        let wanted = Reference::new().greedy(&prompt, 1);
        let mut engine = engine(usize::MAX);
        let found = engine.run_tokens(0, &prompt, Output::Greedy).unwrap().next_tokens;
        assert_eq!(found, wanted, "{count} tokens");
        assert_eq!(engine.device().most, most, "{count} tokens: passes in flight");
        assert_eq!(engine.length(0) as usize, count);
        engine.truncate(0, 0);
        engine.run_tokens(0, &prompt, Output::Nothing).unwrap();
        assert!(engine.device().in_flight.is_empty(), "{count} tokens: nothing is left in flight");
    }
}

#[test]
fn a_failed_pass_in_flight_takes_back_all_tokens_of_the_call() {
    for until_failure in 1..5 {
        let mut engine = engine(until_failure);
        engine.run_tokens(0, &prompt(3), Output::Nothing).unwrap();
        let failure = engine.run_tokens(0, &prompt(40), Output::Greedy).unwrap_err().to_string();
        assert!(failure.contains("the device is lost"), "{failure}");
        assert_eq!(engine.length(0), 3, "after {until_failure} passes");
        engine.device().until_failure = usize::MAX;
        engine.truncate(0, 0);
        let found = engine.run_tokens(0, &prompt(20), Output::Greedy).unwrap().next_tokens;
        assert_eq!(found, Reference::new().greedy(&prompt(20), 1));
    }
}
