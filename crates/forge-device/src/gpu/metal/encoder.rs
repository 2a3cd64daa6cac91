//! Encoder of a pass: bindings, dispatches and the model's barriers.
//!
//! A pass is one command buffer, or several if it is long ([`crate::gpu::command_split`]). With streamed
//! experts it is several, which wait for a shared event until the host has fetched experts
//! ([`crate::gpu::metal::expert_streaming`]).

use crate::device::{Binding, Kernel, Pass, Schedule};
use crate::gpu::command_split::CommandSplit;
use crate::gpu::metal::device::{Commands, MetalDevice, Submitted};
use crate::gpu::metal::expert_streaming::SlotTableWrite;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLBarrierScope, MTLCommandBuffer, MTLCommandEncoder, MTLCommandQueue, MTLComputeCommandEncoder,
    MTLDispatchType, MTLSize,
};
use std::ptr::NonNull;

type Encoder = Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>;

/// A pass being encoded, and its first error.
pub(crate) struct Encoding<'a> {
    pub(crate) device: &'a mut MetalDevice,
    schedule: Schedule,
    /// The open command buffer and encoder; none if nothing was encoded since the last commit.
    open: Option<(Commands, Encoder)>,
    /// Dispatches in the open command buffer, and their predicted time.
    dispatches: u64,
    split: CommandSplit,
    /// Largest position plus 1 of the rows.
    max_length: u32,
    /// The value of the shared event that further command buffers wait for.
    awaited: Option<u64>,
    /// The first committed command buffer.
    first: Option<Commands>,
    outcome: Result<(), String>,
}

/// A dispatch as the model encodes it.
#[derive(Clone, Copy)]
pub(crate) struct Dispatch<'a> {
    pub(crate) kernel: &'static Kernel,
    pub(crate) bindings: &'a [Binding],
    pub(crate) scalars: &'a [u32],
    pub(crate) groups: [u32; 3],
}

impl<'a> Encoding<'a> {
    /// Starts a pass.
    pub(crate) fn new(device: &'a mut MetalDevice, schedule: Schedule) -> Encoding<'a> {
        Encoding {
            device,
            schedule,
            open: None,
            dispatches: 0,
            split: CommandSplit::new(),
            max_length: 0,
            awaited: None,
            first: None,
            outcome: Ok(()),
        }
    }

    /// Commits the rest of the pass; returns its first and last command buffers.
    pub(crate) fn finish(mut self) -> Result<[Commands; 2], String> {
        let outcome = std::mem::replace(&mut self.outcome, Ok(()));
        if let Err(what) = outcome {
            self.close();
            // Committed commands may be waiting.
            let _ = self.serve_request();
            return Err(what);
        }
        self.encoder()?;
        let last = self.commit().ok_or("a pass has no command buffer")?;
        self.serve_request()?;
        if let Some(submitted) = self.device.underway.back_mut() {
            submitted.ends_pass = true;
        }
        Ok([self.first.unwrap_or_else(|| last.clone()), last])
    }

    /// The open encoder, created if needed.
    fn encoder(&mut self) -> Result<&Encoder, String> {
        if self.open.is_none() {
            let queue = &self.device.queue;
            let commands = queue
                .commandBufferWithUnretainedReferences()
                .ok_or("cannot create a Metal command buffer")?;
            if let Some((streaming, value)) = self.device.streaming.as_ref().zip(self.awaited) {
                commands.encodeWaitForEvent_value(streaming.event(), value);
            }
            let encoder = commands
                .computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent)
                .ok_or("cannot create a Metal compute encoder")?;
            let label = NSString::from_str(match self.schedule {
                Schedule::Decode => "decode",
                Schedule::Batch => "batch",
            });
            commands.setLabel(Some(&label));
            encoder.setLabel(Some(&label));
            self.open = Some((commands, encoder));
        }
        self.open
            .as_ref()
            .map(|(_, encoder)| encoder)
            .ok_or("cannot create a Metal compute encoder".to_owned())
    }

    /// Ends encoding.
    fn close(&mut self) -> Option<Commands> {
        let (commands, encoder) = self.open.take()?;
        encoder.endEncoding();
        Some(commands)
    }

    /// Commits what is encoded. The GPU then sets the shared event to `value`, and does not start what follows in the
    /// pass before the host has set the next value.
    pub(crate) fn commit_and_signal(&mut self, value: u64) -> Result<(), String> {
        self.encoder()?;
        let commands = self.close().ok_or("a pass has no command buffer")?;
        if let Some(streaming) = &self.device.streaming {
            commands.encodeSignalEvent_value(streaming.event(), value);
        }
        self.submit(commands);
        self.awaited = Some(value + 1);
        Ok(())
    }

    /// Commits the open command buffer, if any.
    pub(crate) fn commit(&mut self) -> Option<Commands> {
        let commands = self.close()?;
        self.submit(commands.clone());
        Some(commands)
    }

    fn submit(&mut self, commands: Commands) {
        commands.commit();
        let dispatches = std::mem::take(&mut self.dispatches);
        self.device.underway.push_back(Submitted {
            commands: commands.clone(),
            dispatches,
            ends_pass: false,
        });
        self.first.get_or_insert(commands);
    }

    /// Encodes a dispatch. `table` selects the slot table, if the dispatch uses streamed experts.
    pub(crate) fn encode(
        &mut self,
        dispatch: Dispatch<'_>,
        table: Option<SlotTableWrite>,
    ) -> Result<(), String> {
        let Dispatch { kernel, bindings, scalars, groups } = dispatch;
        let encoder = self.encoder()?.clone();
        let pipeline = self.device.pipelines.by_name.get(kernel.name).ok_or("unknown kernel")?;
        if bindings.len() != kernel.buffers.len() {
            return Err(format!("{} bindings for {} buffers", bindings.len(), kernel.buffers.len()));
        }
        encoder.setComputePipelineState(pipeline);
        for (slot, binding) in bindings.iter().enumerate() {
            let (buffer, offset) = self.device.place(binding, table)?;
            // SAFETY: the offset is in bounds, and slots match the kernel's signature.
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
        self.dispatches += 1;
        let rows = scalars.first().copied().unwrap_or(1);
        self.split.add(kernel.cost.of(rows, 1, self.max_length.max(rows)));
        Ok(())
    }
}

impl Pass for Encoding<'_> {
    fn dispatch(&mut self, kernel: &'static Kernel, bindings: &[Binding], scalars: &[u32], groups: [u32; 3]) {
        if self.outcome.is_ok() {
            let dispatch = Dispatch { kernel, bindings, scalars, groups };
            let outcome = match self.device.experts_of(bindings) {
                Some(bound) => self.streamed(dispatch, bound),
                None => self.encode_lookahead(dispatch).and_then(|()| self.encode(dispatch, None)),
            };
            self.outcome = outcome.map_err(|what| format!("kernel {}: {what}", kernel.name));
        }
    }

    fn gpu_cores(&self) -> u32 {
        self.device.cores
    }

    fn set_max_length(&mut self, max_length: u32) {
        self.max_length = max_length;
    }

    /// Command buffers committed before are ordered by the queue.
    fn barrier(&mut self) {
        if self.split.is_full() {
            self.commit();
        } else if let Some((_, encoder)) = &self.open {
            encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
        }
    }
}
