//! The Metal device: the weight file as a buffer that is never copied, and one command buffer a pass, or several where experts are
//! streamed from disk.
//!
//! State, scratch and rows are shared buffers, which
//! the host reads and writes in place, none of whose bytes a pass on its way touches. A pass is one concurrent encoder:
//! dispatches between two barriers may overlap, as [`Pass`] says, and the barriers are those that the model encodes. Passes
//! are of one queue, and Metal has each wait for those before it whose buffers it uses, which is all of them.

pub(crate) mod buffers;
pub(crate) mod encoder;
pub(crate) mod expert_streaming;
pub(crate) mod pipelines;

use crate::device::{Binding, Buffer, Device, Pass, RunAhead, Schedule};
use crate::gpu::chip_bandwidth;
use crate::gpu::metal::buffers::{Mapped, Place, Region, keep_resident};
use crate::gpu::metal::encoder::Encoding;
use crate::gpu::metal::expert_streaming::{ExpertStreaming, SlotTableWrite, without_experts};
use crate::gpu::metal::pipelines::{Pipelines, archive_path, source};
use crate::model::Layout;
use crate::offload::{CacheStats, ExpertCache};
use crate::program::CompiledModel;
use crate::weights::WeightFile;
use memmap2::Mmap;
use objc2::msg_send;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLBuffer, MTLCommandBuffer, MTLCommandQueue, MTLCreateSystemDefaultDevice, MTLDevice, MTLGPUFamily,
};
use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

// MTLCreateSystemDefaultDevice gives nothing unless CoreGraphics is linked.
#[cfg_attr(target_vendor = "apple", link(name = "CoreGraphics", kind = "framework"))]
unsafe extern "C" {}

type Commands = Retained<ProtocolObject<dyn MTLCommandBuffer>>;

/// The GPU of a Mac, as a device.
pub struct MetalDevice {
    device: Retained<ProtocolObject<dyn MTLDevice>>,
    queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    pipelines: Pipelines,
    /// In the order of [`Buffer::ALL`].
    regions: [Region; 4],
    cores: u32,
    /// Experts that are read from disk; none where all are among the weights.
    streaming: Option<ExpertStreaming>,
    /// Command buffers that nobody has waited for, in their order. They do not keep what they use.
    underway: VecDeque<Commands>,
    /// What the first region lies over; dropped after it.
    _weights: Arc<Mmap>,
}

/// Whether this machine has a GPU for Metal that kernels can run on: some virtual ones have none.
pub fn has_metal() -> bool {
    autoreleasepool(|_| MTLCreateSystemDefaultDevice().is_some_and(|device| has_matrices(&device)))
}

/// Whether a GPU multiplies matrices of simdgroups, which all of Apple's own in Macs do.
fn has_matrices(device: &ProtocolObject<dyn MTLDevice>) -> bool {
    device.supportsFamily(MTLGPUFamily::Apple7)
}

/// Where the kernels of a program come from and where its pipelines are kept, for people who have not started it.
pub fn route(program: &CompiledModel, cache: Option<&Path>) -> String {
    let kept = cache.map(|cache| archive_path(program, cache));
    let kept = match kept {
        Some(path) if path.is_file() => format!("pipelines from {}", path.display()),
        Some(path) => format!("pipelines will be kept in {}", path.display()),
        None => "pipelines are not kept".to_owned(),
    };
    format!("kernels {}; {kept}", source(program))
}

impl MetalDevice {
    /// Makes a pipeline of each kernel, kept in the folder `cache` if there is one, and buffers of `layout`'s sizes. Experts that
    /// are streamed are not among the weights that the GPU sees.
    pub fn new(
        program: &CompiledModel,
        file: &WeightFile,
        layout: &Layout,
        cache: Option<&Path>,
        experts: Option<ExpertCache>,
    ) -> Result<MetalDevice, String> {
        autoreleasepool(|_| {
            let device =
                MTLCreateSystemDefaultDevice().ok_or("this machine has no Metal device: use --device cpu")?;
            if !has_matrices(&device) {
                let name = device.name();
                return Err(format!("{name} is not of Apple's family 7 or later: use --device cpu"));
            }
            let queue = device.newCommandQueue().ok_or("Metal gave no command queue")?;
            let pipelines = Pipelines::make(&device, program, cache)?;
            let weights = file.map();
            let parts = without_experts(experts.as_ref().map_or(&[], |_| &layout.experts), weights.len());
            let longest = parts.iter().map(Range::len).max().unwrap_or(0).min(file.longest());
            let mapped = Mapped {
                name: Buffer::Weights.name(),
                start: weights.as_ptr().cast_mut(),
                length: weights.len(),
                parts: &parts,
                longest,
            };
            let regions = [
                // SAFETY: the device keeps the map for longer, and nobody writes it.
                unsafe { Region::over(&device, mapped)? },
                Region::own(&device, layout.state.bytes(), Buffer::State.name())?,
                Region::own(&device, layout.scratch_bytes, Buffer::Scratch.name())?,
                Region::own(&device, layout.rows_bytes, Buffer::Rows.name())?,
            ];
            let streaming =
                experts.map(|experts| ExpertStreaming::new(&device, layout, experts)).transpose()?;
            let seats = streaming.iter().flat_map(ExpertStreaming::regions);
            keep_resident(&device, &queue, &regions.iter().chain(seats).collect::<Vec<_>>())?;
            let cores = cores(&device.name().to_string());
            let underway = VecDeque::new();
            Ok(MetalDevice {
                device,
                queue,
                pipelines,
                regions,
                cores,
                streaming,
                underway,
                _weights: weights,
            })
        })
    }

    fn region(&self, buffer: Buffer) -> &Region {
        &self.regions[buffer.index()]
    }

    /// Where what is bound lies; where it is of experts that are streamed, that is among their seats, and what is told of those.
    fn place(&self, binding: &Binding, told: Option<SlotTableWrite>) -> Result<Place<'_>, String> {
        let streamed = self.streaming.as_ref().zip(told);
        let place = streamed.and_then(|(streaming, told)| streaming.place(binding, told));
        place.unwrap_or_else(|| self.region(binding.buffer).place(binding.offset, binding.bytes))
    }

    /// Has a pass begin; gives its first and its last command buffer.
    fn submit(&mut self, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<[Commands; 2], String> {
        let mut pass = Encoding::new(self);
        encode(&mut pass);
        let submitted = pass.finish();
        // What has begun of a pass that cannot go on comes to its end.
        submitted.or_else(|what| self.wait(0).and(Err(what)))
    }

    /// The bytes of a buffer from `offset`, if it has so many.
    fn bytes(&self, buffer: Buffer, offset: usize, count: usize) -> NonNull<u8> {
        let (memory, offset) =
            self.region(buffer).place(offset, count).unwrap_or_else(|what| panic!("{what}"));
        // SAFETY: shared buffers have contents, and the offset lies inside them.
        unsafe { memory.contents().cast::<u8>().add(offset) }
    }
}

impl Device for MetalDevice {
    fn describe(&self) -> String {
        autoreleasepool(|_| format!("Metal, {}", self.device.name()))
    }

    fn kernels(&self) -> Option<String> {
        Some(self.pipelines.route.clone())
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

    fn run(&mut self, schedule: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        self.begin(schedule, encode)?;
        self.wait(0)
    }

    fn begin(&mut self, _schedule: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        autoreleasepool(|_| self.submit(encode).map(|_| ()))
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

    /// Each stretch is a pass, whose command buffers have times without any counters.
    fn timed(
        &mut self,
        _schedule: Schedule,
        stretches: usize,
        encode: &mut dyn FnMut(usize, &mut dyn Pass),
    ) -> Result<Vec<[f64; 2]>, String> {
        let mut timed = Vec::with_capacity(stretches);
        for stretch in 0..stretches {
            timed.push(autoreleasepool(|_| self.submit(&mut |pass| encode(stretch, pass)))?);
        }
        self.wait(0)?;
        let times = |[first, last]: &[Commands; 2]| {
            // SAFETY: both give a double, and the buffers have ended.
            unsafe { [msg_send![&**first, GPUStartTime], msg_send![&**last, GPUEndTime]] }
        };
        Ok(timed.iter().map(times).collect())
    }

    fn published_speed(&self) -> Option<f64> {
        autoreleasepool(|_| chip_bandwidth::bandwidth(&self.device.name().to_string()))
    }

    /// Predicted, not measured: two passes hide what the host does for each, four ids of a pass share the time between passes,
    /// and a reader sees four ids at once. Where experts are streamed the host is there in the middle of each id.
    fn lead(&self) -> RunAhead {
        if self.streaming.is_some() { RunAhead::NONE } else { RunAhead { ids: 4, passes: 2 } }
    }

    fn streamed(&self) -> Option<CacheStats> {
        self.streaming.as_ref().map(ExpertStreaming::counts)
    }

    fn disk_speed(&mut self) -> Result<Option<f64>, String> {
        self.wait(0)?;
        self.streaming.as_mut().map(ExpertStreaming::disk_speed).transpose()
    }
}

/// What a pass uses has to be there until it has ended.
impl Drop for MetalDevice {
    fn drop(&mut self) {
        let _ = self.wait(0);
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
