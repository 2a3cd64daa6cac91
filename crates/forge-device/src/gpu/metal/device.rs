//! The GPU, its queue, pipelines and buffers.

use crate::device::{Binding, Buffer};
use crate::gpu::metal::buffers::{Mapped, Place, Region, ResidencySet, keep_resident};
use crate::gpu::metal::expert_streaming::{ExpertStreaming, SlotTableWrite, without_experts};
use crate::gpu::metal::pipelines::{Pipelines, Report};
use crate::gpu::metal::probe::check_matrices;
use crate::model::Layout;
use crate::offload::ExpertCache;
use crate::program::CompiledModel;
use crate::weights::WeightFile;
use memmap2::Mmap;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLBuffer, MTLCommandBuffer, MTLCommandQueue, MTLCreateSystemDefaultDevice, MTLDevice};
use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

/// A command buffer.
pub(super) type Commands = Retained<ProtocolObject<dyn MTLCommandBuffer>>;

/// A committed command buffer.
pub(super) struct Submitted {
    pub(super) commands: Commands,
    /// Number of its dispatches.
    pub(super) dispatches: u64,
    /// Whether it is the last one of its pass.
    pub(super) ends_pass: bool,
}

/// The GPU of an Apple system as a [`Device`].
pub struct MetalDevice {
    pub(super) device: Retained<ProtocolObject<dyn MTLDevice>>,
    pub(super) queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    pub(super) pipelines: Pipelines,
    /// Buffers in the order of [`Buffer::ALL`].
    pub(super) regions: [Region; 4],
    pub(super) cores: u32,
    /// Expert streaming from disk; none if all experts are resident.
    pub(super) streaming: Option<ExpertStreaming>,
    /// Command buffers in flight, oldest first. They do not retain the resources they use.
    pub(super) underway: VecDeque<Submitted>,
    /// Dispatches of all command buffers that the GPU has completed without an error.
    pub(super) completed_dispatches: u64,
    /// The set of all buffers, if the system has residency sets.
    pub(super) residency: Option<ResidencySet>,
    /// The mapping under the first region; dropped after it.
    _weights: Arc<Mmap>,
}

/// The Metal GPU of this machine, if it can run the kernels.
pub(super) fn system_device() -> Result<Retained<ProtocolObject<dyn MTLDevice>>, String> {
    let device = MTLCreateSystemDefaultDevice().ok_or("no Metal device found: use --device cpu")?;
    check_matrices(&device)?;
    Ok(device)
}

impl MetalDevice {
    /// Creates a pipeline for each kernel, cached in the folder `cache` if given, and buffers of `layout`'s
    /// sizes. `report` is called with the number of compiled pipelines. Streamed experts are not part of the GPU's weight buffer.
    pub fn new(
        program: &CompiledModel,
        file: &WeightFile,
        layout: &Layout,
        cache: Option<&Path>,
        experts: Option<ExpertCache>,
        report: Report<'_>,
    ) -> Result<MetalDevice, String> {
        autoreleasepool(|_| {
            let device = system_device()?;
            let queue = device.newCommandQueue().ok_or("cannot create a Metal command queue")?;
            let pipelines = Pipelines::make(&device, program, cache, report)?;
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
            let residency = keep_resident(&device, &queue, &regions.iter().chain(slots).collect::<Vec<_>>());
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
                completed_dispatches: 0,
                residency,
                _weights: weights,
            })
        })
    }

    pub(super) fn region(&self, buffer: Buffer) -> &Region {
        &self.regions[buffer.index()]
    }

    /// Resolves a binding to a buffer. Expert planes and slot tables resolve to the expert cache, if experts
    /// are streamed.
    pub(super) fn place(
        &self,
        binding: &Binding,
        table: Option<SlotTableWrite>,
    ) -> Result<Place<'_>, String> {
        let streamed = self.streaming.as_ref().zip(table);
        let place = streamed.and_then(|(streaming, table)| streaming.place(binding, table));
        place.unwrap_or_else(|| self.region(binding.buffer).place(binding.offset, binding.bytes))
    }

    /// Address of a buffer range; panics if it is out of bounds.
    pub(super) fn bytes(&self, buffer: Buffer, offset: usize, count: usize) -> NonNull<u8> {
        let (memory, offset) =
            self.region(buffer).place(offset, count).unwrap_or_else(|what| panic!("{what}"));
        // SAFETY: shared buffers have contents, and the offset is in bounds.
        unsafe { memory.contents().cast::<u8>().add(offset) }
    }
}

/// GPU cores of a chip by name: the maximum of its series, because Metal does not report the number. On iOS
/// names are like `Apple A15 GPU`.
fn cores(name: &str) -> u32 {
    match name.trim_end_matches(" GPU").rsplit(' ').next() {
        _ if name.starts_with("Apple A") => 6,
        Some("Ultra") => 80,
        Some("Max") => 40,
        Some("Pro") => 20,
        _ => 10,
    }
}
