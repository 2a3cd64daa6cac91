//! The compute command encoder. It validates bindings and dispatches like Metal's validation layer.

use crate::buffer::{Buffer, Held};
use crate::commands::{SharedCommands, Stage};
use crate::library::Function;
use crate::machine::{Command, Dispatch};
use crate::object::{Class, Id, methods};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Maximum bytes of `setBytes`.
const MOST_BYTES: usize = 4096;
/// Number of buffer slots.
const SLOTS: usize = 31;
/// `MTLBarrierScopeBuffers`.
const BUFFERS: usize = 1;

/// The contents of a slot.
enum Bound {
    Buffer(Rc<Buffer>, usize),
    Bytes(Vec<u8>),
}

/// An `MTLSize`: width, height and depth.
#[derive(Clone, Copy)]
#[repr(C)]
struct Size([usize; 3]);

/// A compute command encoder.
struct Encoder {
    commands: SharedCommands,
    /// Whether dispatches may overlap. Otherwise each is followed by a barrier.
    concurrent: bool,
    pipeline: Option<Rc<Function>>,
    bound: BTreeMap<usize, Bound>,
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
        "setBuffer:offset:atIndex:" => |encoder, buffer: Id, offset: usize, slot: usize| {
            encoder.get::<Cell>().borrow_mut().set_buffer(buffer, offset, slot);
        }
        "setBytes:length:atIndex:" => |encoder, bytes: *const u8, length: usize, slot: usize| {
            let encoder = encoder.get::<Cell>();
            let mut encoder = encoder.borrow_mut();
            if encoder.takes_bytes(length, slot) {
                // SAFETY: the caller passes this many bytes.
                let bytes = unsafe { std::slice::from_raw_parts(bytes, length) };
                encoder.bound.insert(slot, Bound::Bytes(bytes.to_vec()));
            }
        }
        "dispatchThreadgroups:threadsPerThreadgroup:" => |encoder, groups: Size, threads: Size| {
            encoder.get::<Cell>().borrow_mut().dispatch(groups, threads);
        }
        "memoryBarrierWithScope:" => |encoder, scope: usize| {
            let encoder = encoder.get::<Cell>();
            let encoder = encoder.borrow();
            if scope & BUFFERS == 0 {
                encoder.complain(format!("barrier scope {scope} does not include buffers"));
            } else if encoder.is_open("memoryBarrier") {
                encoder.commands.borrow_mut().encoded.push(Command::Barrier);
            }
        }
        "endEncoding" => |encoder| { encoder.get::<Cell>().borrow_mut().end() }
    },
};

/// Creates an encoder of a command buffer.
pub(crate) fn create(commands: SharedCommands, concurrent: bool) -> Id {
    let (pipeline, bound) = (None, BTreeMap::new());
    let encoder = Encoder { commands, concurrent, pipeline, bound, ended: false };
    Id::new(&ENCODER, RefCell::new(encoder))
}

impl Encoder {
    fn complain(&self, what: String) {
        self.commands.borrow_mut().complain(what);
    }

    fn is_open(&self, message: &str) -> bool {
        if self.ended {
            self.complain(format!("{message} after the encoder has ended"));
        }
        !self.ended
    }

    fn set_buffer(&mut self, buffer: Id, offset: usize, slot: usize) {
        if !self.is_open("setBuffer") {
            return;
        }
        let Some(buffer) = buffer.find::<Held>() else {
            self.bound.remove(&slot);
            return;
        };
        let buffer = buffer.0.clone();
        if offset >= buffer.length || slot >= SLOTS {
            let length = buffer.length;
            return self.complain(format!(
                "offset {offset} of a buffer of {length} bytes, for slot {slot} of {SLOTS}"
            ));
        }
        self.bound.insert(slot, Bound::Buffer(buffer, offset));
    }

    fn takes_bytes(&self, length: usize, slot: usize) -> bool {
        let fits = (1..=MOST_BYTES).contains(&length) && slot < SLOTS;
        if !fits {
            self.complain(format!(
                "setBytes of {length} bytes for slot {slot}: it takes 1 to {MOST_BYTES} bytes"
            ));
        }
        fits && self.is_open("setBytes")
    }

    fn dispatch(&mut self, groups: Size, threads: Size) {
        if !self.is_open("dispatchThreadgroups") {
            return;
        }
        match self.dispatched(groups, threads) {
            Ok(dispatch) => {
                let mut commands = self.commands.borrow_mut();
                commands.encoded.push(Command::Dispatch(dispatch));
                if !self.concurrent {
                    commands.encoded.push(Command::Barrier);
                }
            }
            Err(what) => {
                let name = self.pipeline.as_ref().map_or("no kernel", |pipeline| pipeline.name());
                self.complain(format!("dispatch of {name}: {what}"));
            }
        }
    }

    /// A dispatch of the current pipeline with the current bindings.
    fn dispatched(&self, Size(groups): Size, Size(threads): Size) -> Result<Dispatch, String> {
        let function = self.pipeline.clone().ok_or("no pipeline is set")?;
        let stated = function.kernel().signature.threads;
        let count = threads.iter().product::<usize>();
        if threads != [count, 1, 1] || stated.is_some_and(|stated| stated as usize != count) {
            return Err(format!("threadgroups of {threads:?} threads, but the kernel declares {stated:?}"));
        }
        if groups.contains(&0) {
            return Err(format!("empty grid of {groups:?} threadgroups"));
        }
        let groups = groups.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        let mut buffers = Vec::new();
        for (slot, name, alignment) in function.buffers() {
            match self.bound.get(&slot) {
                Some(Bound::Buffer(_, offset)) if offset % alignment != 0 => {
                    return Err(format!(
                        "`{name}` is bound at byte {offset}, which is not a multiple of {alignment}"
                    ));
                }
                Some(Bound::Buffer(buffer, offset)) => buffers.push((buffer.clone(), *offset)),
                Some(Bound::Bytes(_)) => return Err(format!("`{name}` is a buffer, but bytes are bound")),
                None => return Err(format!("`{name}` in slot {slot} is not bound")),
            }
        }
        let scalars = match function.scalars().map(|(slot, bytes)| (self.bound.get(&slot), bytes)) {
            None => Vec::new(),
            Some((Some(Bound::Bytes(bytes)), stated)) if bytes.len() == stated => bytes
                .chunks_exact(4)
                .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
                .collect(),
            Some((Some(Bound::Bytes(bytes)), stated)) => {
                return Err(format!("its scalars are {stated} bytes, but {} are bound", bytes.len()));
            }
            Some((_, stated)) => return Err(format!("its scalars, {stated} bytes, are not bound as bytes")),
        };
        Ok(Dispatch { function, buffers, scalars, groups, threads: count as u32 })
    }

    fn end(&mut self) {
        if !self.is_open("endEncoding") {
            return;
        }
        self.ended = true;
        let mut commands = self.commands.borrow_mut();
        if commands.stage == Stage::Encoding {
            commands.stage = Stage::Open;
        }
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        if !self.ended {
            self.complain("an encoder was released before endEncoding".to_owned());
        }
    }
}
