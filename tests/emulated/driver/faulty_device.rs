//! Multi-token passes with injected faults: a wrapper modifies the engine's device commands.

use forge_runtime::device::{Binding, Buffer, Device, Kernel, RunAhead, Pass, Schedule};

/// A device that modifies the engine's commands.
pub struct FaultyDevice {
    device: Box<dyn Device>,
    fault: Fault,
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// Omits the barrier between two rows.
    NoBarrier,
    /// Shifts the result of a row by one element.
    NextPlace,
    /// A row uses the token ring entry of the row before it.
    SamePosition,
}

impl FaultyDevice {
    /// The device with the fault of that name.
    pub fn new(device: Box<dyn Device>, fault: &str) -> FaultyDevice {
        let fault = match fault {
            "rows_without_a_barrier" => Fault::NoBarrier,
            "an_id_for_another_row" => Fault::NextPlace,
            "a_position_twice" => Fault::SamePosition,
            _ => panic!("there is no fault {fault}"),
        };
        FaultyDevice { device, fault }
    }
}

impl Device for FaultyDevice {
    fn describe(&self) -> String {
        self.device.describe()
    }

    fn write(&mut self, buffer: Buffer, offset: usize, bytes: &[u8]) {
        self.device.write(buffer, offset, bytes);
    }

    fn read(&mut self, buffer: Buffer, offset: usize, bytes: &mut [u8]) {
        self.device.read(buffer, offset, bytes);
    }

    fn run(&mut self, program: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        self.device.run(program, encode)
    }

    fn begin(&mut self, program: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        let fault = self.fault;
        self.device.begin(program, &mut |pass| encode(&mut FaultyPass { pass, fault, rows: 0, ended: false }))
    }

    fn wait(&mut self, left: usize) -> Result<(), String> {
        self.device.wait(left)
    }

    fn run_ahead(&self) -> RunAhead {
        self.device.run_ahead()
    }
}

/// A pass in flight.
struct FaultyPass<'a> {
    pass: &'a mut dyn Pass,
    fault: Fault,
    /// Number of rows whose token has been chosen.
    rows: usize,
    /// Whether there was no command since the last row chose its token.
    ended: bool,
}

impl Pass for FaultyPass<'_> {
    fn dispatch(&mut self, kernel: &'static Kernel, bindings: &[Binding], scalars: &[u32], groups: [u32; 3]) {
        let mut bindings = bindings.to_vec();
        self.ended = false;
        for (name, binding) in kernel.buffers.iter().zip(&mut bindings) {
            let chooses = *name == "ids" && binding.written;
            if chooses {
                self.rows += 1;
                self.ended = true;
            }
            match self.fault {
                Fault::NextPlace if chooses => binding.offset += 4,
                Fault::SamePosition if *name == "positions" && self.rows > 0 => binding.offset -= 4,
                _ => {}
            }
        }
        self.pass.dispatch(kernel, &bindings, scalars, groups);
    }

    fn barrier(&mut self) {
        if !(self.ended && self.fault == Fault::NoBarrier) {
            self.pass.barrier();
        }
    }

    fn gpu_cores(&self) -> u32 {
        self.pass.gpu_cores()
    }

    fn min_kv_split(&self, planned: u32) -> u32 {
        self.pass.min_kv_split(planned)
    }

    fn mla_expand_min_rows(&self, planned: u32) -> Option<u32> {
        self.pass.mla_expand_min_rows(planned)
    }
}
