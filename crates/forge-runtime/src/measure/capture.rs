//! A device that has everything done by another and notes what passes did, so that it can be done again: whole, a dispatch at
//! a time, or with another kernel in a dispatch's place.

use crate::device::{Binding, Buffer, Device, Kernel, Pass, PeakOps, RunAhead, Schedule};
use crate::offload::CacheStats;
use std::time::Duration;

/// One dispatch.
#[derive(Clone)]
pub struct CapturedDispatch {
    /// The kernel.
    pub kernel: &'static Kernel,
    /// Its buffers.
    pub bindings: Vec<Binding>,
    /// Its scalars, of which the first are the rows.
    pub scalars: Vec<u32>,
    /// Its threadgroups.
    pub groups: [u32; 3],
    /// Whether there is a barrier before it.
    pub waits: bool,
}

/// One pass.
pub struct CapturedPass {
    /// What it is of.
    pub program: Schedule,
    /// What the host said of its rows: where, and bytes.
    said: Vec<(usize, Vec<u8>)>,
    /// Its dispatches.
    pub notes: Vec<CapturedDispatch>,
}

/// A device that is listened to.
pub struct CapturingDevice<D> {
    device: D,
    said: Vec<(usize, Vec<u8>)>,
    passes: Vec<CapturedPass>,
}

impl CapturedDispatch {
    /// The same dispatch once more.
    pub fn encode(&self, pass: &mut dyn Pass) {
        pass.dispatch(self.kernel, &self.bindings, &self.scalars, self.groups);
    }

    /// Rows that it computes.
    pub fn rows(&self) -> u32 {
        self.scalars.first().copied().unwrap_or(1)
    }
}

impl CapturedPass {
    /// The same pass once more.
    pub fn encode(&self, pass: &mut dyn Pass) {
        self.encode_first(self.notes.len(), pass);
    }

    /// As many of its dispatches, from the first.
    pub fn encode_first(&self, count: usize, pass: &mut dyn Pass) {
        for note in &self.notes[..count] {
            if note.waits {
                pass.barrier();
            }
            note.encode(pass);
        }
    }

    /// Says of the rows what was said then.
    pub fn say(&self, device: &mut dyn Device) {
        for (offset, bytes) in &self.said {
            device.write(Buffer::Rows, *offset, bytes);
        }
    }
}

impl<D> CapturingDevice<D> {
    /// Begins to listen.
    pub fn new(device: D) -> CapturingDevice<D> {
        CapturingDevice { device, said: Vec::new(), passes: Vec::new() }
    }

    /// The passes since it was asked last.
    pub fn take(&mut self) -> Vec<CapturedPass> {
        std::mem::take(&mut self.passes)
    }

    /// The device that does it.
    pub fn device(&mut self) -> &mut D {
        &mut self.device
    }
}

impl<D: Device> CapturingDevice<D> {
    /// Has the device do a pass, and notes it as it is encoded.
    fn listen(
        &mut self,
        program: Schedule,
        encode: &mut dyn FnMut(&mut dyn Pass),
        done: impl FnOnce(&mut D, &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut notes = Vec::new();
        let outcome = done(&mut self.device, &mut |pass| {
            let mut listening = CapturingPass { pass, notes: Vec::new(), waits: false };
            encode(&mut listening);
            notes = listening.notes;
        });
        self.passes.push(CapturedPass { program, said: std::mem::take(&mut self.said), notes });
        outcome
    }
}

/// A pass that is listened to while it is encoded.
struct CapturingPass<'a> {
    pass: &'a mut dyn Pass,
    notes: Vec<CapturedDispatch>,
    waits: bool,
}

impl Pass for CapturingPass<'_> {
    fn dispatch(&mut self, kernel: &'static Kernel, bindings: &[Binding], scalars: &[u32], groups: [u32; 3]) {
        let waits = std::mem::take(&mut self.waits);
        self.notes.push(CapturedDispatch {
            kernel,
            bindings: bindings.to_vec(),
            scalars: scalars.to_vec(),
            groups,
            waits,
        });
        self.pass.dispatch(kernel, bindings, scalars, groups);
    }

    fn barrier(&mut self) {
        self.waits = true;
        self.pass.barrier();
    }

    fn cores(&self) -> u32 {
        self.pass.cores()
    }

    fn least_share(&self, planned: u32) -> u32 {
        self.pass.least_share(planned)
    }

    fn unfolds_from(&self, planned: u32) -> Option<u32> {
        self.pass.unfolds_from(planned)
    }
}

impl<D: Device> Device for CapturingDevice<D> {
    fn describe(&self) -> String {
        self.device.describe()
    }

    fn kernels(&self) -> Option<String> {
        self.device.kernels()
    }

    fn write(&mut self, buffer: Buffer, offset: usize, bytes: &[u8]) {
        if buffer == Buffer::Rows {
            self.said.push((offset, bytes.to_vec()));
        }
        self.device.write(buffer, offset, bytes);
    }

    fn read(&mut self, buffer: Buffer, offset: usize, bytes: &mut [u8]) {
        self.device.read(buffer, offset, bytes);
    }

    fn run(&mut self, program: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        self.listen(program, encode, |device, listened| device.run(program, listened))
    }

    fn begin(&mut self, program: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        self.listen(program, encode, |device, listened| device.begin(program, listened))
    }

    fn wait(&mut self, left: usize) -> Result<(), String> {
        self.device.wait(left)
    }

    fn timed(
        &mut self,
        program: Schedule,
        stretches: usize,
        encode: &mut dyn FnMut(usize, &mut dyn Pass),
    ) -> Result<Vec<[f64; 2]>, String> {
        self.device.timed(program, stretches, encode)
    }

    fn settle(&mut self, within: Duration) -> Result<Option<[usize; 2]>, String> {
        self.device.settle(within)
    }

    fn lead(&self) -> RunAhead {
        self.device.lead()
    }

    fn read_speed(&mut self) -> Result<Option<f64>, String> {
        self.device.read_speed()
    }

    fn compute_speed(&mut self) -> Result<Option<PeakOps>, String> {
        self.device.compute_speed()
    }

    fn published_speed(&self) -> Option<f64> {
        self.device.published_speed()
    }

    fn streamed(&self) -> Option<CacheStats> {
        self.device.streamed()
    }

    fn disk_speed(&mut self) -> Result<Option<f64>, String> {
        self.device.disk_speed()
    }
}
