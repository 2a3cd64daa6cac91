//! A device for tests, which uses long-context code paths at short contexts.

use forge_runtime::device::{Binding, Buffer, Device, Kernel, Pass, Schedule};

/// A device with short KV splits, which expands latents (MLA) from the smallest prefill batch on.
pub struct LongContextDevice(pub Box<dyn Device>);

/// The smallest number of rows that is a prefill batch.
pub const MIN_PREFILL_ROWS: u32 = 17;

impl Device for LongContextDevice {
    fn describe(&self) -> String {
        self.0.describe()
    }

    fn write(&mut self, buffer: Buffer, offset: usize, bytes: &[u8]) {
        self.0.write(buffer, offset, bytes);
    }

    fn read(&mut self, buffer: Buffer, offset: usize, bytes: &mut [u8]) {
        self.0.read(buffer, offset, bytes);
    }

    fn run(&mut self, program: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        self.0.run(program, &mut |pass| encode(&mut LongContextPass(pass)))
    }
}

/// A pass in flight.
struct LongContextPass<'a>(&'a mut dyn Pass);

impl Pass for LongContextPass<'_> {
    fn dispatch(&mut self, kernel: &'static Kernel, bindings: &[Binding], scalars: &[u32], groups: [u32; 3]) {
        self.0.dispatch(kernel, bindings, scalars, groups);
    }

    fn barrier(&mut self) {
        self.0.barrier();
    }

    fn gpu_cores(&self) -> u32 {
        self.0.gpu_cores()
    }

    fn min_kv_split(&self, planned: u32) -> u32 {
        planned.min(32)
    }

    fn mla_expand_min_rows(&self, planned: u32) -> Option<u32> {
        Some(planned.min(MIN_PREFILL_ROWS))
    }
}
