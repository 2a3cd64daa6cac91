//! Metal device: the weight file as a no-copy buffer, and one command buffer per pass. A pass with streamed
//! experts has several command buffers.
//!
//! State, scratch and rows are shared buffers that the host reads and writes in place. The host does not
//! touch bytes that a pass in flight uses. A pass is one concurrent compute encoder: dispatches between two
//! barriers may overlap, as [`Pass`] defines, and the model places the barriers. All passes are on one queue,
//! and Metal's hazard tracking orders them, because they all use the same buffers.

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

// MTLCreateSystemDefaultDevice returns nothing unless CoreGraphics is linked.
#[cfg_attr(target_vendor = "apple", link(name = "CoreGraphics", kind = "framework"))]
unsafe extern "C" {}

type Commands = Retained<ProtocolObject<dyn MTLCommandBuffer>>;

/// The GPU of a Mac as a [`Device`].
pub struct MetalDevice {
    device: Retained<ProtocolObject<dyn MTLDevice>>,
    queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    pipelines: Pipelines,
    /// Buffers in the order of [`Buffer::ALL`].
    regions: [Region; 4],
    cores: u32,
    /// Expert streaming from disk; none if all experts are resident.
    streaming: Option<ExpertStreaming>,
    /// Command buffers in flight, oldest first. They do not retain the resources they use.
    underway: VecDeque<Commands>,
    /// The mapping under the first region; dropped after it.
    _weights: Arc<Mmap>,
}

/// Whether this machine has a Metal GPU that can run the kernels; some virtual GPUs cannot.
pub fn has_metal() -> bool {
    autoreleasepool(|_| MTLCreateSystemDefaultDevice().is_some_and(|device| has_matrices(&device)))
}

/// Whether a GPU has simdgroup matrix multiplication. All Apple GPUs in Macs do.
fn has_matrices(device: &ProtocolObject<dyn MTLDevice>) -> bool {
    device.supportsFamily(MTLGPUFamily::Apple7)
}

/// Describes where a program's kernels come from and where its pipelines are cached, without opening the
/// device.
pub fn route(program: &CompiledModel, cache: Option<&Path>) -> String {
    let kept = cache.map(|cache| archive_path(program, cache));
    let kept = match kept {
        Some(path) if path.is_file() => format!("pipelines from {}", path.display()),
        Some(path) => format!("pipelines will be saved to {}", path.display()),
        None => "pipelines are not saved".to_owned(),
    };
    format!("kernels {}; {kept}", source(program))
}

impl MetalDevice {
    /// Creates a pipeline for each kernel, cached in the folder `cache` if given, and buffers of `layout`'s
    /// sizes. Streamed experts are not part of the GPU's weight buffer.
    pub fn new(
        program: &CompiledModel,
        file: &WeightFile,
        layout: &Layout,
        cache: Option<&Path>,
        experts: Option<ExpertCache>,
    ) -> Result<MetalDevice, String> {
        autoreleasepool(|_| {
            let device = MTLCreateSystemDefaultDevice().ok_or("no Metal device found: use --device cpu")?;
            if !has_matrices(&device) {
                let name = device.name();
                return Err(format!("{name} does not support Apple GPU family 7: use --device cpu"));
            }
            let queue = device.newCommandQueue().ok_or("cannot create a Metal command queue")?;
            let pipelines = Pipelines::make(&device, program, cache)?;
            let weights = file.map();
            let parts = without_experts(experts.as_ref().map_or(&[], |_| &layout.experts), weights.len());
            let longest = parts.iter().map(Range::len).max().unwrap_or(0).min(file.largest_tensor_bytes());
            let mapped = Mapped {
                name: Buffer::Weights.name(),
                start: weights.as_ptr().cast_mut(),
                length: weights.len(),
                parts: &parts,
                longest,
            };
            let regions = [
                // SAFETY: the device outlives the region with the mapping, which is never written.
                unsafe { Region::over(&device, mapped)? },
                Region::own(&device, layout.state.bytes(), Buffer::State.name())?,
                Region::own(&device, layout.scratch_bytes, Buffer::Scratch.name())?,
                Region::own(&device, layout.rows_bytes, Buffer::Rows.name())?,
            ];
            let streaming =
                experts.map(|experts| ExpertStreaming::new(&device, layout, experts)).transpose()?;
            let slots = streaming.iter().flat_map(ExpertStreaming::regions);
            keep_resident(&device, &queue, &regions.iter().chain(slots).collect::<Vec<_>>())?;
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

    /// Resolves a binding to a buffer. Expert planes and slot tables resolve to the expert cache, if experts
    /// are streamed.
    fn place(&self, binding: &Binding, table: Option<SlotTableWrite>) -> Result<Place<'_>, String> {
        let streamed = self.streaming.as_ref().zip(table);
        let place = streamed.and_then(|(streaming, table)| streaming.place(binding, table));
        place.unwrap_or_else(|| self.region(binding.buffer).place(binding.offset, binding.bytes))
    }

    /// Submits a pass; returns its first and last command buffers.
    fn submit(&mut self, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<[Commands; 2], String> {
        let mut pass = Encoding::new(self);
        encode(&mut pass);
        let submitted = pass.finish();
        // On an error, waits for the part that is already submitted.
        submitted.or_else(|what| self.wait(0).and(Err(what)))
    }

    /// Address of a buffer range; panics if it is out of bounds.
    fn bytes(&self, buffer: Buffer, offset: usize, count: usize) -> NonNull<u8> {
        let (memory, offset) =
            self.region(buffer).place(offset, count).unwrap_or_else(|what| panic!("{what}"));
        // SAFETY: shared buffers have contents, and the offset is in bounds.
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
        assert!(buffer != Buffer::Weights, "the weights buffer is read-only");
        let to = self.bytes(buffer, offset, bytes.len());
        // SAFETY: the range is in bounds, and no pass uses it.
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
                    let reason = error.localizedDescription();
                    outcome = outcome.and(Err(format!("the GPU did not finish a pass: {reason}")));
                }
            }
            outcome
        })
    }

    /// Each stretch is a pass; command buffers have timestamps without counters.
    fn time_parts(
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
            // SAFETY: both properties are doubles, and the command buffers have ended.
            unsafe { [msg_send![&**first, GPUStartTime], msg_send![&**last, GPUEndTime]] }
        };
        Ok(timed.iter().map(times).collect())
    }

    fn published_bandwidth(&self) -> Option<f64> {
        autoreleasepool(|_| chip_bandwidth::bandwidth(&self.device.name().to_string()))
    }

    /// Predicted, not measured: with two passes in flight, host work is hidden. Four tokens per pass amortize
    /// the gap between passes, and a reader receives four tokens at a time. With streamed experts the host
    /// takes part in every token.
    fn run_ahead(&self) -> RunAhead {
        if self.streaming.is_some() { RunAhead::NONE } else { RunAhead { tokens_per_pass: 4, passes: 2 } }
    }

    fn expert_cache_stats(&self) -> Option<CacheStats> {
        self.streaming.as_ref().map(ExpertStreaming::stats)
    }

    fn measure_disk_bandwidth(&mut self) -> Result<Option<f64>, String> {
        self.wait(0)?;
        self.streaming.as_mut().map(ExpertStreaming::measure_disk_bandwidth).transpose()
    }
}

/// Waits for passes in flight, which use the device's resources.
impl Drop for MetalDevice {
    fn drop(&mut self) {
        let _ = self.wait(0);
    }
}

/// GPU cores of a chip by name: the maximum of its series, because Metal does not report the number.
fn cores(name: &str) -> u32 {
    match name.rsplit(' ').next() {
        Some("Ultra") => 80,
        Some("Max") => 40,
        Some("Pro") => 20,
        _ => 10,
    }
}
