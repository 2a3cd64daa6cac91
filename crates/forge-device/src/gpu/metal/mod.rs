//! Metal device: the weight file as a no-copy buffer, and one command buffer per pass. A pass with streamed
//! experts has several command buffers.
//!
//! State, scratch and rows are shared buffers that the host reads and writes in place. The host does not
//! touch bytes that a pass in flight uses. A pass is one concurrent compute encoder: dispatches between two
//! barriers may overlap, as [`Pass`] defines, and the model places the barriers. All passes are on one queue,
//! and Metal's hazard tracking orders them, because they all use the same buffers.

pub(crate) mod buffers;
pub(crate) mod device;
pub(crate) mod encoder;
pub(crate) mod expert_streaming;
pub(crate) mod library;
pub(crate) mod pipelines;
pub(crate) mod probe;

pub use crate::gpu::metal::device::MetalDevice;

use crate::device::{Buffer, Device, Pass, RunAhead, Schedule};
use crate::gpu::chip_bandwidth;
use crate::gpu::metal::device::{Commands, Submitted, system_device};
use crate::gpu::metal::encoder::Encoding;
use crate::gpu::metal::expert_streaming::ExpertStreaming;
use crate::gpu::metal::library::{Language, source};
use crate::gpu::metal::pipelines::archive_path;
use crate::gpu::metal_backend::{MetalBackend, MetalGpu, validation_layer};
use crate::offload::CacheStats;
use crate::program::CompiledModel;
use objc2::msg_send;
use objc2::rc::autoreleasepool;
use objc2_metal::{MTLCommandBuffer, MTLDevice, MTLResidencySet};
use std::path::Path;

// MTLCreateSystemDefaultDevice returns nothing unless CoreGraphics is linked.
#[cfg_attr(target_vendor = "apple", link(name = "CoreGraphics", kind = "framework"))]
unsafe extern "C" {}

/// The entry points of this backend.
pub const BACKEND: MetalBackend = MetalBackend {
    find,
    open: |program, file, layout, cache, experts, report| {
        Ok(Box::new(MetalDevice::new(program, file, layout, cache, experts, report)?))
    },
    route,
};

/// Finds the Metal GPU of this machine, if it can run the kernels.
pub fn find() -> Result<MetalGpu, String> {
    autoreleasepool(|_| {
        let device = system_device()?;
        let bytes = device.recommendedMaxWorkingSetSize();
        Ok(MetalGpu { name: device.name().to_string(), working_set: (bytes > 0).then_some(bytes) })
    })
}

/// Describes where a program's kernels come from and where its pipelines are cached, without compiling them.
pub fn route(program: &CompiledModel, cache: Option<&Path>) -> String {
    let language = autoreleasepool(|_| system_device().map(|device| Language::of(&device, program).0));
    let language = language.unwrap_or(Language::Metal3);
    let kept = cache.map(|cache| archive_path(program, language, cache));
    let kept = match kept {
        Some(_) if validation_layer().is_some() => {
            "pipelines are not saved under Metal validation".to_owned()
        }
        Some(path) if path.is_file() => format!("pipelines from {}", path.display()),
        Some(path) => format!("pipelines will be saved to {}", path.display()),
        None => "pipelines are not saved".to_owned(),
    };
    format!("kernels {}; {kept}", source(program, language))
}

impl MetalDevice {
    /// Submits a pass; returns its first and last command buffers.
    fn submit(
        &mut self,
        schedule: Schedule,
        encode: &mut dyn FnMut(&mut dyn Pass),
    ) -> Result<[Commands; 2], String> {
        let mut pass = Encoding::new(self, schedule);
        encode(&mut pass);
        let submitted = pass.finish();
        // On an error, waits for the part that is already submitted.
        submitted.or_else(|what| self.wait(0).and(Err(what)))
    }
}

impl MetalDevice {
    /// Number of passes in flight.
    fn passes_underway(&self) -> usize {
        self.underway.iter().filter(|submitted| submitted.ends_pass).count()
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

    fn begin(&mut self, schedule: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        autoreleasepool(|_| self.submit(schedule, encode).map(|_| ()))
    }

    fn wait(&mut self, left: usize) -> Result<(), String> {
        autoreleasepool(|_| {
            let mut outcome = Ok(());
            while left == 0 || self.passes_underway() > left {
                let Some(Submitted { commands, dispatches, .. }) = self.underway.pop_front() else { break };
                commands.waitUntilCompleted();
                match commands.error() {
                    Some(error) => {
                        let reason = error.localizedDescription();
                        outcome = outcome.and(Err(format!("the GPU did not finish a pass: {reason}")));
                    }
                    None => self.completed_dispatches += dispatches,
                }
            }
            outcome
        })
    }

    /// Each stretch is a pass; command buffers have timestamps without counters.
    fn time_parts(
        &mut self,
        schedule: Schedule,
        stretches: usize,
        encode: &mut dyn FnMut(usize, &mut dyn Pass),
    ) -> Result<Vec<[f64; 2]>, String> {
        let mut timed = Vec::with_capacity(stretches);
        for stretch in 0..stretches {
            timed.push(autoreleasepool(|_| self.submit(schedule, &mut |pass| encode(stretch, pass)))?);
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

    /// A decode pass needs all experts of its rows in the cache, which has room for those of one row.
    fn decodes_batches(&self) -> bool {
        self.streaming.is_none()
    }

    /// Streamed experts end a pass in the middle, so nothing overlaps.
    fn overlaps_prefill(&self) -> bool {
        self.streaming.is_none()
    }

    /// Predicted, not measured: with two passes in flight, host work is hidden. Four tokens per pass amortize
    /// the gap between passes, and a reader receives four tokens at a time. With streamed experts the host
    /// takes part in every token.
    fn run_ahead(&self) -> RunAhead {
        if self.streaming.is_some() { RunAhead::NONE } else { RunAhead { tokens_per_pass: 4, passes: 2 } }
    }

    fn completed_dispatches(&self) -> Option<u64> {
        Some(self.completed_dispatches)
    }

    fn renew_residency(&mut self) -> bool {
        let Some(residency) = &self.residency else { return false };
        residency.requestResidency();
        true
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
