//! The Metal device: the weight file as one buffer that is never copied, and one command buffer a pass.
//!
//! Kernels are compiled from their text when the device is made. State, scratch and rows are shared buffers, which
//! the host reads and writes in place, none of whose bytes a pass on its way touches. A pass is one concurrent encoder:
//! dispatches between two barriers may overlap, as [`Pass`] says, and the barriers are those that the model encodes. Passes
//! are of one queue, and Metal has each wait for those before it whose buffers it uses, which is all of them.

use super::device::{Buffer, Device, Kernel, Lead, Pass, Program};
use super::model::Layout;
use super::weights::WeightFile;
use encoding::Encoding;
use memmap2::Mmap;
use memory::{Memory, memory, over};
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLBuffer, MTLCommandBuffer, MTLCommandEncoder, MTLCommandQueue, MTLCreateSystemDefaultDevice, MTLDevice,
    MTLDispatchType,
};
use pipelines::{Pipeline, compile};
use std::collections::{HashMap, VecDeque};
use std::ptr::NonNull;
use std::sync::Arc;

mod encoding;
mod memory;
mod pipelines;

// MTLCreateSystemDefaultDevice gives nothing unless CoreGraphics is linked.
#[cfg_attr(target_vendor = "apple", link(name = "CoreGraphics", kind = "framework"))]
unsafe extern "C" {}

type Commands = Retained<ProtocolObject<dyn MTLCommandBuffer>>;

/// The GPU of a Mac, as a device.
pub struct MetalDevice {
    device: Retained<ProtocolObject<dyn MTLDevice>>,
    queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    pipelines: HashMap<&'static str, Pipeline>,
    /// Weights, state, scratch and rows: in the order of [`Buffer::ALL`].
    buffers: [Memory; 4],
    lengths: [usize; 4],
    cores: u32,
    /// Passes that nobody has waited for, in their order.
    underway: VecDeque<Commands>,
    /// What the first buffer lies over; dropped after it.
    _weights: Arc<Mmap>,
}

/// Whether this machine has a GPU for Metal: some virtual ones have none.
pub fn has_metal() -> bool {
    autoreleasepool(|_| MTLCreateSystemDefaultDevice().is_some())
}

impl MetalDevice {
    /// Compiles `text`, makes a pipeline of each of `kernels`, and buffers of `layout`'s sizes.
    pub fn new(
        text: &str,
        kernels: &[&'static Kernel],
        file: &WeightFile,
        layout: &Layout,
    ) -> Result<MetalDevice, String> {
        autoreleasepool(|_| {
            let device =
                MTLCreateSystemDefaultDevice().ok_or("this machine has no Metal device: use --device cpu")?;
            let queue = device.newCommandQueue().ok_or("Metal gave no command queue")?;
            let pipelines = compile(&device, text, kernels)?;
            let weights = file.map();
            let buffers = [
                over(&device, &weights)?,
                memory(&device, layout.state.bytes(), "state")?,
                memory(&device, layout.scratch_bytes, "scratch")?,
                memory(&device, layout.rows_bytes, "rows")?,
            ];
            let lengths = [weights.len(), layout.state.bytes(), layout.scratch_bytes, layout.rows_bytes];
            let cores = cores(&device.name().to_string());
            let underway = VecDeque::new();
            Ok(MetalDevice { device, queue, pipelines, buffers, lengths, cores, underway, _weights: weights })
        })
    }

    /// The bytes of a buffer from `offset`, if it has so many.
    fn bytes(&self, buffer: Buffer, offset: usize, count: usize) -> NonNull<u8> {
        let length = self.lengths[buffer.index()];
        assert!(
            offset.checked_add(count).is_some_and(|end| end <= length),
            "bytes {offset}..+{count} of {}, which has {length}",
            buffer.name()
        );
        // SAFETY: shared buffers have contents, and the offset lies inside them.
        unsafe { self.buffers[buffer.index()].contents().cast::<u8>().add(offset) }
    }
}

impl Device for MetalDevice {
    fn describe(&self) -> String {
        autoreleasepool(|_| format!("Metal, {}", self.device.name()))
    }

    fn write(&mut self, buffer: Buffer, offset: usize, bytes: &[u8]) {
        assert!(buffer != Buffer::Weights, "weights are never written");
        let to = self.bytes(buffer, offset, bytes.len());
        // SAFETY: as many bytes as there are, and no pass touches them.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
    }

    fn read(&mut self, buffer: Buffer, offset: usize, bytes: &mut [u8]) {
        let from = self.bytes(buffer, offset, bytes.len());
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
    }

    fn run(&mut self, program: Program, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        self.begin(program, encode)?;
        self.wait(0)
    }

    fn begin(&mut self, _program: Program, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        autoreleasepool(|_| {
            let commands = self.queue.commandBuffer().ok_or("Metal gave no command buffer")?;
            let encoder = commands
                .computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent)
                .ok_or("Metal gave no encoder")?;
            let mut pass = Encoding::new(self, &encoder);
            encode(&mut pass);
            let outcome = pass.outcome;
            encoder.endEncoding();
            outcome?;
            commands.commit();
            self.underway.push_back(commands);
            Ok(())
        })
    }

    fn wait(&mut self, left: usize) -> Result<(), String> {
        autoreleasepool(|_| {
            let mut outcome = Ok(());
            while self.underway.len() > left {
                let Some(commands) = self.underway.pop_front() else { break };
                commands.waitUntilCompleted();
                if let Some(error) = commands.error() {
                    let said = error.localizedDescription();
                    outcome = outcome.and(Err(format!("the GPU did not finish a pass: {said}")));
                }
            }
            outcome
        })
    }

    /// Predicted, not measured: two passes hide what the host does for each, four ids of a pass share the time between passes,
    /// and a reader sees four ids at once.
    fn lead(&self) -> Lead {
        Lead { ids: 4, passes: 2 }
    }
}

/// GPU cores of a chip of that name, the most that its series has: Metal does not tell.
fn cores(name: &str) -> u32 {
    match name.rsplit(' ').next() {
        Some("Ultra") => 80,
        Some("Max") => 40,
        Some("Pro") => 20,
        _ => 10,
    }
}
