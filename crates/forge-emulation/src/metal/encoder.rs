//! The compute command encoder. It validates bindings and dispatches like Metal's validation layer.

use crate::counters::labelled;
use crate::gpu::{Command, Dispatch};
use crate::metal::buffer::{Buffer, RetainedBuffer};
use crate::metal::commands::{SharedCommandBuffer, Status};
use crate::metal::library::Function;
use crate::objc::foundation;
use crate::objc::object::{Class, Id, methods};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Maximum bytes of `setBytes`.
const MAX_SET_BYTES: usize = 4096;
/// Number of buffer slots.
const SLOTS: usize = 31;
/// `MTLBarrierScopeBuffers`.
const BARRIER_SCOPE_BUFFERS: usize = 1;

/// The contents of a slot.
enum Binding {
    Buffer(Rc<Buffer>, usize),
    Bytes(Vec<u8>),
}

/// An `MTLSize`: width, height and depth.
#[derive(Clone, Copy)]
#[repr(C)]
struct Size([usize; 3]);

/// A compute command encoder.
struct Encoder {
    commands: SharedCommandBuffer,
    /// Whether dispatches may overlap. Otherwise each is followed by a barrier.
    concurrent: bool,
    pipeline: Option<Rc<Function>>,
    bindings: BTreeMap<usize, Binding>,
    ended: bool,
}

type Cell = RefCell<Encoder>;

static ENCODER: Class = Class {
    name: "MTLComputeCommandEncoder",
    method: methods! {
        "setComputePipelineState:" => |encoder, pipeline: Id| {
            let encoder = encoder.get::<Cell>();
            let mut encoder = encoder.borrow_mut();
            if encoder.is_open("setComputePipelineState") {
                encoder.pipeline = Some(pipeline.get::<Rc<Function>>().as_ref().clone());
            }
        }
        "setLabel:" => |object, label: Id| { labelled(object.class().name, &foundation::read(label)) }
        "setBuffer:offset:atIndex:" => |encoder, buffer: Id, offset: usize, slot: usize| {
            encoder.get::<Cell>().borrow_mut().set_buffer(buffer, offset, slot);
        }
        "setBytes:length:atIndex:" => |encoder, bytes: *const u8, length: usize, slot: usize| {
            let encoder = encoder.get::<Cell>();
            let mut encoder = encoder.borrow_mut();
            if encoder.accepts_bytes(length, slot) {
                // SAFETY: the caller passes this many bytes.
                let bytes = unsafe { std::slice::from_raw_parts(bytes, length) };
                encoder.bindings.insert(slot, Binding::Bytes(bytes.to_vec()));
            }
        }
        "dispatchThreadgroups:threadsPerThreadgroup:" => |encoder, groups: Size, threads: Size| {
            encoder.get::<Cell>().borrow_mut().dispatch(groups, threads);
        }
        "memoryBarrierWithScope:" => |encoder, scope: usize| {
            let encoder = encoder.get::<Cell>();
            let encoder = encoder.borrow();
            if scope & BARRIER_SCOPE_BUFFERS == 0 {
                encoder.report_violation(format!("barrier scope {scope} does not include buffers"));
            } else if encoder.is_open("memoryBarrier") {
                encoder.commands.borrow_mut().encoded.push(Command::Barrier);
            }
        }
        "endEncoding" => |encoder| { encoder.get::<Cell>().borrow_mut().end() }
    },
};

/// Creates an encoder of a command buffer.
pub(crate) fn create(commands: SharedCommandBuffer, concurrent: bool) -> Id {
    let (pipeline, bindings) = (None, BTreeMap::new());
    let encoder = Encoder { commands, concurrent, pipeline, bindings, ended: false };
    Id::new(&ENCODER, RefCell::new(encoder))
}

impl Encoder {
    fn report_violation(&self, what: String) {
        self.commands.borrow_mut().report_violation(what);
    }

    fn is_open(&self, message: &str) -> bool {
        if self.ended {
            self.report_violation(format!("{message} after the encoder has ended"));
        }
        !self.ended
    }

    fn set_buffer(&mut self, buffer: Id, offset: usize, slot: usize) {
        if !self.is_open("setBuffer") {
            return;
        }
        let Some(buffer) = buffer.find::<RetainedBuffer>() else {
            self.bindings.remove(&slot);
            return;
        };
        let buffer = buffer.0.clone();
        if offset >= buffer.length || slot >= SLOTS {
            let length = buffer.length;
            return self.report_violation(format!(
                "offset {offset} of a buffer of {length} bytes, for slot {slot} of {SLOTS}"
            ));
        }
        self.bindings.insert(slot, Binding::Buffer(buffer, offset));
    }

    fn accepts_bytes(&self, length: usize, slot: usize) -> bool {
        let fits = (1..=MAX_SET_BYTES).contains(&length) && slot < SLOTS;
        if !fits {
            self.report_violation(format!(
                "setBytes of {length} bytes for slot {slot}: it takes 1 to {MAX_SET_BYTES} bytes"
            ));
        }
        fits && self.is_open("setBytes")
    }

    fn dispatch(&mut self, groups: Size, threads: Size) {
        if !self.is_open("dispatchThreadgroups") {
            return;
        }
        match self.make_dispatch(groups, threads) {
            Ok(dispatch) => {
                let mut commands = self.commands.borrow_mut();
                commands.encoded.push(Command::Dispatch(dispatch));
                if !self.concurrent {
                    commands.encoded.push(Command::Barrier);
                }
            }
            Err(what) => {
                let name = self.pipeline.as_ref().map_or("no kernel", |pipeline| pipeline.name());
                self.report_violation(format!("dispatch of {name}: {what}"));
            }
        }
    }

    /// A dispatch of the current pipeline with the current bindings.
    fn make_dispatch(&self, Size(groups): Size, Size(threads): Size) -> Result<Dispatch, String> {
        let function = self.pipeline.clone().ok_or("no pipeline is set")?;
        let declared = function.kernel().signature.threads;
        let count = threads.iter().product::<usize>();
        if threads != [count, 1, 1] || declared.is_some_and(|declared| declared as usize != count) {
            return Err(format!("threadgroups of {threads:?} threads, but the kernel declares {declared:?}"));
        }
        if groups.contains(&0) {
            return Err(format!("empty grid of {groups:?} threadgroups"));
        }
        let groups = groups.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        let mut buffers = Vec::new();
        for (slot, name, alignment) in function.buffers() {
            match self.bindings.get(&slot) {
                Some(Binding::Buffer(_, offset)) if offset % alignment != 0 => {
                    return Err(format!(
                        "`{name}` is bound at byte {offset}, which is not a multiple of {alignment}"
                    ));
                }
                Some(Binding::Buffer(buffer, offset)) => buffers.push((buffer.clone(), *offset)),
                Some(Binding::Bytes(_)) => {
                    return Err(format!("`{name}` is a buffer, but bytes are bound"));
                }
                None => return Err(format!("`{name}` in slot {slot} is not bound")),
            }
        }
        let scalars = match function.scalars().map(|(slot, bytes)| (self.bindings.get(&slot), bytes)) {
            None => Vec::new(),
            Some((Some(Binding::Bytes(bytes)), declared)) if bytes.len() == declared => bytes
                .chunks_exact(4)
                .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
                .collect(),
            Some((Some(Binding::Bytes(bytes)), declared)) => {
                return Err(format!("its scalars are {declared} bytes, but {} are bound", bytes.len()));
            }
            Some((_, declared)) => {
                return Err(format!("its scalars, {declared} bytes, are not bound as bytes"));
            }
        };
        Ok(Dispatch { function, buffers, scalars, groups, threads: count as u32 })
    }

    fn end(&mut self) {
        if !self.is_open("endEncoding") {
            return;
        }
        self.ended = true;
        let mut commands = self.commands.borrow_mut();
        if commands.status == Status::Encoding {
            commands.status = Status::Open;
        }
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        if !self.ended {
            self.report_violation("an encoder was released before endEncoding".to_owned());
        }
    }
}
