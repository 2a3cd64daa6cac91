//! The Metal device: the weight file as one buffer that is never copied, and one command buffer a pass.
//!
//! Kernels are compiled from their text when the device is made. State, scratch and rows are shared buffers, which
//! the host reads and writes in place, none of whose bytes a pass on its way touches. A pass is one concurrent encoder:
//! dispatches between two barriers may overlap, as [`Pass`] says, and the barriers are those that the model encodes. Passes
//! are of one queue, and Metal has each wait for those before it whose buffers it uses, which is all of them.

use super::device::{Binding, Buffer, Device, Kernel, Lead, Pass, Program};
use super::model::Layout;
use super::weights::WeightFile;
use memmap2::Mmap;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::sel;
use objc2_foundation::{NSError, NSString};
use objc2_metal::{
    MTLBarrierScope, MTLBuffer, MTLCommandBuffer, MTLCommandEncoder, MTLCommandQueue, MTLCompileOptions,
    MTLComputeCommandEncoder, MTLComputePipelineState, MTLCreateSystemDefaultDevice, MTLDevice,
    MTLDispatchType, MTLLanguageVersion, MTLLibrary, MTLMathMode, MTLResourceOptions, MTLSize,
};
use std::collections::{HashMap, VecDeque};
use std::ptr::NonNull;
use std::sync::Arc;

// MTLCreateSystemDefaultDevice gives nothing unless CoreGraphics is linked.
#[cfg_attr(target_vendor = "apple", link(name = "CoreGraphics", kind = "framework"))]
unsafe extern "C" {}

/// What buffers over mapped memory have to be a whole number of.
const PAGE: usize = 16384;

/// The SIMD width that kernels are written for.
const SIMD_WIDTH: usize = 32;

type Pipeline = Retained<ProtocolObject<dyn MTLComputePipelineState>>;
type Commands = Retained<ProtocolObject<dyn MTLCommandBuffer>>;
type Memory = Retained<ProtocolObject<dyn MTLBuffer>>;

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
            let mut pass = Encoding { device: self, encoder: &encoder, outcome: Ok(()) };
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

/// A pass that is being encoded, or why it cannot be.
struct Encoding<'a> {
    device: &'a MetalDevice,
    encoder: &'a ProtocolObject<dyn MTLComputeCommandEncoder>,
    outcome: Result<(), String>,
}

impl Encoding<'_> {
    fn encode(
        &self,
        kernel: &Kernel,
        bindings: &[Binding],
        scalars: &[u32],
        groups: [u32; 3],
    ) -> Result<(), String> {
        let pipeline =
            self.device.pipelines.get(kernel.name).ok_or("it is not among the program's kernels")?;
        if bindings.len() != kernel.buffers.len() {
            return Err(format!("{} bindings for {} buffers", bindings.len(), kernel.buffers.len()));
        }
        self.encoder.setComputePipelineState(pipeline);
        for (slot, binding) in bindings.iter().enumerate() {
            let Binding { buffer, offset, bytes, .. } = *binding;
            let length = self.device.lengths[buffer.index()];
            if offset.checked_add(bytes).is_none_or(|end| end > length) {
                return Err(format!("bytes {offset}..+{bytes} of {}, which has {length}", buffer.name()));
            }
            // SAFETY: the offset lies inside the buffer, and slots are those of the kernel's signature.
            unsafe {
                self.encoder.setBuffer_offset_atIndex(
                    Some(&self.device.buffers[buffer.index()]),
                    offset,
                    slot,
                );
            }
        }
        if let Some(first) = scalars.first() {
            // SAFETY: Metal copies the scalars before the call returns.
            unsafe {
                self.encoder.setBytes_length_atIndex(
                    NonNull::from(first).cast(),
                    size_of_val(scalars),
                    bindings.len(),
                );
            }
        }
        let [width, height, depth] = groups.map(|count| count as usize);
        self.encoder.dispatchThreadgroups_threadsPerThreadgroup(
            MTLSize { width, height, depth },
            MTLSize { width: kernel.threads as usize, height: 1, depth: 1 },
        );
        Ok(())
    }
}

impl Pass for Encoding<'_> {
    fn dispatch(&mut self, kernel: &'static Kernel, bindings: &[Binding], scalars: &[u32], groups: [u32; 3]) {
        if self.outcome.is_ok() {
            self.outcome = self
                .encode(kernel, bindings, scalars, groups)
                .map_err(|what| format!("kernel {}: {what}", kernel.name));
        }
    }

    fn cores(&self) -> u32 {
        self.device.cores
    }

    fn barrier(&mut self) {
        self.encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
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

/// A pipeline for each kernel.
fn compile(
    device: &ProtocolObject<dyn MTLDevice>,
    text: &str,
    kernels: &[&'static Kernel],
) -> Result<HashMap<&'static str, Pipeline>, String> {
    let options = MTLCompileOptions::new();
    options.setLanguageVersion(MTLLanguageVersion::Version3_0);
    if options.respondsToSelector(sel!(setMathMode:)) {
        options.setMathMode(MTLMathMode::Safe);
    } else {
        // Before macOS 15 the same was said so.
        #[allow(deprecated)]
        options.setFastMathEnabled(false);
    }
    let explain = |error: Retained<NSError>| error.localizedDescription().to_string();
    let library = device
        .newLibraryWithSource_options_error(&NSString::from_str(text), Some(&options))
        .map_err(|error| format!("kernels.metal does not compile: {}", explain(error)))?;
    let mut pipelines = HashMap::new();
    for kernel in kernels {
        let name = kernel.name;
        let function = library
            .newFunctionWithName(&NSString::from_str(name))
            .ok_or_else(|| format!("kernels.metal has no kernel {name}"))?;
        let pipeline = device
            .newComputePipelineStateWithFunction_error(&function)
            .map_err(|error| format!("kernel {name} makes no pipeline: {}", explain(error)))?;
        let most = pipeline.maxTotalThreadsPerThreadgroup();
        if most < kernel.threads as usize {
            return Err(format!(
                "kernel {name} needs threadgroups of {} threads, and this GPU runs it with at most {most}",
                kernel.threads
            ));
        }
        let width = pipeline.threadExecutionWidth();
        if width != SIMD_WIDTH {
            return Err(format!("kernel {name} is written for a SIMD width of {SIMD_WIDTH}, not {width}"));
        }
        pipelines.insert(name, pipeline);
    }
    Ok(pipelines)
}

/// A buffer over mapped memory.
fn over(device: &ProtocolObject<dyn MTLDevice>, map: &Mmap) -> Result<Memory, String> {
    let length = map.len().next_multiple_of(PAGE);
    check_length(device, length, "the weights")?;
    let start = NonNull::new(map.as_ptr().cast_mut().cast()).ok_or("the weight file is empty")?;
    // SAFETY: mappings start on pages and end on pages, whatever the length of the file; the device keeps the map
    // for as long as the buffer, and no kernel writes it.
    unsafe {
        device.newBufferWithBytesNoCopy_length_options_deallocator(
            start,
            length,
            MTLResourceOptions::StorageModeShared,
            None,
        )
    }
    .ok_or_else(|| format!("Metal gave no buffer over the weights, {length} bytes"))
}

/// A buffer of its own.
fn memory(device: &ProtocolObject<dyn MTLDevice>, bytes: usize, what: &str) -> Result<Memory, String> {
    check_length(device, bytes, what)?;
    device
        .newBufferWithLength_options(bytes.max(16), MTLResourceOptions::StorageModeShared)
        .ok_or_else(|| format!("Metal gave no memory for {what}, {bytes} bytes"))
}

fn check_length(device: &ProtocolObject<dyn MTLDevice>, bytes: usize, what: &str) -> Result<(), String> {
    let most = device.maxBufferLength();
    if bytes > most {
        return Err(format!("{what}: {bytes} bytes, and this GPU takes buffers of at most {most}"));
    }
    Ok(())
}
