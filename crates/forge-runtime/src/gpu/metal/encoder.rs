//! A pass as it is encoded: what is bound to each slot, each dispatch, and the barriers that the model says.
//!
//! It is one command buffer, or several where experts are streamed from disk and the host has to know who was chosen ([`crate::gpu::metal::expert_streaming`]).

use crate::device::{Binding, Kernel, Pass};
use crate::gpu::metal::expert_streaming::SlotTableWrite;
use crate::gpu::metal::{Commands, MetalDevice};
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLBarrierScope, MTLCommandBuffer, MTLCommandEncoder, MTLCommandQueue, MTLComputeCommandEncoder,
    MTLDispatchType, MTLSize,
};
use std::ptr::NonNull;

type Encoder = Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>;

/// A pass that is being encoded, or why it cannot be.
pub(crate) struct Encoding<'a> {
    pub(crate) device: &'a mut MetalDevice,
    /// What is encoded to; none where nothing has been since the last command buffer was committed.
    open: Option<(Commands, Encoder)>,
    /// The first command buffer that was committed.
    first: Option<Commands>,
    outcome: Result<(), String>,
}

/// A dispatch as the model says it.
#[derive(Clone, Copy)]
pub(crate) struct Dispatch<'a> {
    pub(crate) kernel: &'static Kernel,
    pub(crate) bindings: &'a [Binding],
    pub(crate) scalars: &'a [u32],
    pub(crate) groups: [u32; 3],
}

impl<'a> Encoding<'a> {
    /// Nothing yet.
    pub(crate) fn new(device: &'a mut MetalDevice) -> Encoding<'a> {
        Encoding { device, open: None, first: None, outcome: Ok(()) }
    }

    /// Has it begin, but for what has already; gives its first and its last command buffer.
    pub(crate) fn finish(mut self) -> Result<[Commands; 2], String> {
        let outcome = std::mem::replace(&mut self.outcome, Ok(()));
        if let Err(what) = outcome {
            self.close();
            return Err(what);
        }
        self.encoder()?;
        let last = self.commit().ok_or("a pass has no command buffer")?;
        Ok([self.first.unwrap_or_else(|| last.clone()), last])
    }

    /// Where to encode.
    fn encoder(&mut self) -> Result<&Encoder, String> {
        if self.open.is_none() {
            let queue = &self.device.queue;
            let commands =
                queue.commandBufferWithUnretainedReferences().ok_or("Metal gave no command buffer")?;
            let encoder = commands
                .computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent)
                .ok_or("Metal gave no encoder")?;
            self.open = Some((commands, encoder));
        }
        self.open.as_ref().map(|(_, encoder)| encoder).ok_or("Metal gave no encoder".to_owned())
    }

    /// Ends what is encoded.
    fn close(&mut self) -> Option<Commands> {
        let (commands, encoder) = self.open.take()?;
        encoder.endEncoding();
        Some(commands)
    }

    /// Has what is encoded begin, if anything is.
    pub(crate) fn commit(&mut self) -> Option<Commands> {
        let commands = self.close()?;
        commands.commit();
        self.device.underway.push_back(commands.clone());
        self.first.get_or_insert_with(|| commands.clone());
        Some(commands)
    }

    /// Encodes a dispatch; where it reads experts that are streamed, it is told where they are.
    pub(crate) fn encode(
        &mut self,
        dispatch: Dispatch<'_>,
        told: Option<SlotTableWrite>,
    ) -> Result<(), String> {
        let Dispatch { kernel, bindings, scalars, groups } = dispatch;
        let encoder = self.encoder()?.clone();
        let pipeline =
            self.device.pipelines.by_name.get(kernel.name).ok_or("it is not among the program's kernels")?;
        if bindings.len() != kernel.buffers.len() {
            return Err(format!("{} bindings for {} buffers", bindings.len(), kernel.buffers.len()));
        }
        encoder.setComputePipelineState(pipeline);
        for (slot, binding) in bindings.iter().enumerate() {
            let (buffer, offset) = self.device.place(binding, told)?;
            // SAFETY: the offset lies inside the buffer, and slots are those of the kernel's signature.
            unsafe { encoder.setBuffer_offset_atIndex(Some(buffer), offset, slot) };
        }
        if let Some(first) = scalars.first() {
            // SAFETY: Metal copies the scalars before the call returns.
            unsafe {
                encoder.setBytes_length_atIndex(
                    NonNull::from(first).cast(),
                    size_of_val(scalars),
                    bindings.len(),
                );
            }
        }
        let [width, height, depth] = groups.map(|count| count as usize);
        encoder.dispatchThreadgroups_threadsPerThreadgroup(
            MTLSize { width, height, depth },
            MTLSize { width: kernel.threads as usize, height: 1, depth: 1 },
        );
        Ok(())
    }
}

impl Pass for Encoding<'_> {
    fn dispatch(&mut self, kernel: &'static Kernel, bindings: &[Binding], scalars: &[u32], groups: [u32; 3]) {
        if self.outcome.is_ok() {
            let dispatch = Dispatch { kernel, bindings, scalars, groups };
            let outcome = match self.device.experts_of(bindings) {
                Some(bound) => self.streamed(dispatch, bound),
                None => self.foresee(dispatch).and_then(|()| self.encode(dispatch, None)),
            };
            self.outcome = outcome.map_err(|what| format!("kernel {}: {what}", kernel.name));
        }
    }

    fn cores(&self) -> u32 {
        self.device.cores
    }

    /// What was committed before is waited for as a whole.
    fn barrier(&mut self) {
        if let Some((_, encoder)) = &self.open {
            encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
        }
    }
}
