//! A pass as it is encoded: what is bound to each slot, each dispatch, and the barriers that the model says.

use super::super::device::{Binding, Kernel, Pass};
use super::MetalDevice;
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLBarrierScope, MTLComputeCommandEncoder, MTLSize};
use std::ptr::NonNull;

/// A pass that is being encoded, or why it cannot be.
pub(super) struct Encoding<'a> {
    device: &'a MetalDevice,
    encoder: &'a ProtocolObject<dyn MTLComputeCommandEncoder>,
    pub(super) outcome: Result<(), String>,
}

impl<'a> Encoding<'a> {
    /// Nothing yet.
    pub(super) fn new(
        device: &'a MetalDevice,
        encoder: &'a ProtocolObject<dyn MTLComputeCommandEncoder>,
    ) -> Encoding<'a> {
        Encoding { device, encoder, outcome: Ok(()) }
    }

    fn encode(
        &self,
        kernel: &Kernel,
        bindings: &[Binding],
        scalars: &[u32],
        groups: [u32; 3],
    ) -> Result<(), String> {
        let pipeline =
            self.device.pipelines.by_name.get(kernel.name).ok_or("it is not among the program's kernels")?;
        if bindings.len() != kernel.buffers.len() {
            return Err(format!("{} bindings for {} buffers", bindings.len(), kernel.buffers.len()));
        }
        self.encoder.setComputePipelineState(pipeline);
        for (slot, binding) in bindings.iter().enumerate() {
            let (buffer, offset) = self.device.region(binding.buffer).place(binding.offset, binding.bytes)?;
            // SAFETY: the offset lies inside the buffer, and slots are those of the kernel's signature.
            unsafe { self.encoder.setBuffer_offset_atIndex(Some(buffer), offset, slot) };
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
