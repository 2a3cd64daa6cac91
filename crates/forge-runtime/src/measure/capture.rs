//! A device that captures the dispatches of another device, so that a pass can be replayed: as a whole, one
//! dispatch at a time, or with another kernel.

use forge_device::device::{Binding, Buffer, Device, Kernel, Pass, PeakOps, RunAhead, Schedule};
use forge_device::offload::CacheStats;
use std::time::Duration;

/// A captured dispatch.
#[derive(Clone)]
pub struct CapturedDispatch {
    /// The kernel.
    pub kernel: &'static Kernel,
    /// Its buffer bindings.
    pub bindings: Vec<Binding>,
    /// Its scalars; the first is the number of rows.
    pub scalars: Vec<u32>,
    /// Its number of threadgroups.
    pub groups: [u32; 3],
    /// Whether a barrier precedes it.
    pub waits: bool,
}

/// A captured pass.
pub struct CapturedPass {
    /// Its schedule.
    pub schedule: Schedule,
    /// The host's writes to [`Buffer::Rows`]: offset and bytes.
    inputs: Vec<(usize, Vec<u8>)>,
    /// Its dispatches.
    pub dispatches: Vec<CapturedDispatch>,
}

/// A device that captures every pass.
pub struct CapturingDevice<D> {
    device: D,
    inputs: Vec<(usize, Vec<u8>)>,
    passes: Vec<CapturedPass>,
}

impl CapturedDispatch {
    /// Encodes the dispatch again.
    pub fn encode(&self, pass: &mut dyn Pass) {
        pass.dispatch(self.kernel, &self.bindings, &self.scalars, self.groups);
    }

    /// The number of rows.
    pub fn rows(&self) -> u32 {
        self.scalars.first().copied().unwrap_or(1)
    }
}

impl CapturedPass {
    /// Encodes the pass again.
    pub fn encode(&self, pass: &mut dyn Pass) {
        self.encode_first(self.dispatches.len(), pass);
    }

    /// Encodes its first `count` dispatches.
    pub fn encode_first(&self, count: usize, pass: &mut dyn Pass) {
        for note in &self.dispatches[..count] {
            if note.waits {
                pass.barrier();
            }
            note.encode(pass);
        }
    }

    /// Writes the host's inputs again.
    pub fn write_inputs(&self, device: &mut dyn Device) {
        for (offset, bytes) in &self.inputs {
            device.write(Buffer::Rows, *offset, bytes);
        }
    }
}

impl<D> CapturingDevice<D> {
    /// Starts capturing.
    pub fn new(device: D) -> CapturingDevice<D> {
        CapturingDevice { device, inputs: Vec::new(), passes: Vec::new() }
    }

    /// The passes captured since the last call.
    pub fn take(&mut self) -> Vec<CapturedPass> {
        std::mem::take(&mut self.passes)
    }

    /// The wrapped device.
    pub fn device(&mut self) -> &mut D {
        &mut self.device
    }
}

impl<D: Device> CapturingDevice<D> {
    /// Runs a pass on the device and captures it while it is encoded.
    fn capture(
        &mut self,
        program: Schedule,
        encode: &mut dyn FnMut(&mut dyn Pass),
        submit: impl FnOnce(&mut D, &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut notes = Vec::new();
        let outcome = submit(&mut self.device, &mut |pass| {
            let mut capturing = CapturingPass { pass, notes: Vec::new(), waits: false };
            encode(&mut capturing);
            notes = capturing.notes;
        });
        self.passes.push(CapturedPass {
            schedule: program,
            inputs: std::mem::take(&mut self.inputs),
            dispatches: notes,
        });
        outcome
    }
}

/// A pass that is captured while it is encoded.
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

    fn gpu_cores(&self) -> u32 {
        self.pass.gpu_cores()
    }

    fn set_max_length(&mut self, max_length: u32) {
        self.pass.set_max_length(max_length);
    }

    fn min_kv_split(&self, planned: u32) -> u32 {
        self.pass.min_kv_split(planned)
    }

    fn mla_expand_min_rows(&self, planned: u32) -> Option<u32> {
        self.pass.mla_expand_min_rows(planned)
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
            self.inputs.push((offset, bytes.to_vec()));
        }
        self.device.write(buffer, offset, bytes);
    }

    fn read(&mut self, buffer: Buffer, offset: usize, bytes: &mut [u8]) {
        self.device.read(buffer, offset, bytes);
    }

    fn run(&mut self, program: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        self.capture(program, encode, |device, captured| device.run(program, captured))
    }

    fn begin(&mut self, program: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        self.capture(program, encode, |device, captured| device.begin(program, captured))
    }

    fn wait(&mut self, left: usize) -> Result<(), String> {
        self.device.wait(left)
    }

    fn time_parts(
        &mut self,
        program: Schedule,
        stretches: usize,
        encode: &mut dyn FnMut(usize, &mut dyn Pass),
    ) -> Result<Vec<[f64; 2]>, String> {
        self.device.time_parts(program, stretches, encode)
    }

    fn finish_background_work(&mut self, within: Duration) -> Result<Option<[usize; 2]>, String> {
        self.device.finish_background_work(within)
    }

    fn decodes_batches(&self) -> bool {
        self.device.decodes_batches()
    }

    fn overlaps_prefill(&self) -> bool {
        self.device.overlaps_prefill()
    }

    fn run_ahead(&self) -> RunAhead {
        self.device.run_ahead()
    }

    fn measure_read_bandwidth(&mut self) -> Result<Option<f64>, String> {
        self.device.measure_read_bandwidth()
    }

    fn measure_peak_ops(&mut self) -> Result<Option<PeakOps>, String> {
        self.device.measure_peak_ops()
    }

    fn published_bandwidth(&self) -> Option<f64> {
        self.device.published_bandwidth()
    }

    fn expert_cache_stats(&self) -> Option<CacheStats> {
        self.device.expert_cache_stats()
    }

    fn measure_disk_bandwidth(&mut self) -> Result<Option<f64>, String> {
        self.device.measure_disk_bandwidth()
    }
}
