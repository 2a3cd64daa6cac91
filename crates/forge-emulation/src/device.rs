//! The Metal device, which creates all other objects.

use crate::archive;
use crate::archive::Description;
use crate::buffer;
use crate::commands;
use crate::counters::{complain, longest};
use crate::data;
use crate::foundation;
use crate::library;
use crate::library::Function;
use crate::machine::Machine;
use crate::object::{Class, Id, methods};
use crate::residency;
use std::cell::RefCell;
use std::ffi::c_void;
use std::rc::Rc;

/// The newest supported `MTLGPUFamily`.
const FAMILY: isize = 1009;

/// `MTLPipelineOptionFailOnBinaryArchiveMiss`.
const FAIL_ON_MISS: usize = 4;

/// The emulated GPU, shared by a device and the objects that it creates.
pub(crate) type Shared = Rc<RefCell<Machine>>;

/// A Metal device.
struct Device(Shared);

static DEVICE: Class = Class {
    name: "MTLDevice",
    method: methods! {
        "name" => |_device| -> Id { foundation::string("Emulated GPU").autorelease() }
        "maxBufferLength" => |_device| -> usize { longest() }
        "supportsFamily:" => |_device, family: isize| -> u8 { u8::from(family <= FAMILY) }
        "newCommandQueue" => |device| -> Id { commands::queue(device.get::<Device>().0.clone()) }
        "newLibraryWithSource:options:error:" => |device, source: Id, options: Id, error: *mut Id| -> Id {
            match options.find::<foundation::Options>() {
                Some(options) => options.complaint().into_iter().for_each(complain),
                None => complain("the library is compiled without options, so with fast math".to_owned()),
            }
            given(library::compile(&device.get::<Device>().0, &foundation::read(source)), error)
        }
        "newLibraryWithData:error:" => |device, data: *const c_void, error: *mut Id| -> Id {
            given(library::compile(&device.get::<Device>().0, &data::read(data)), error)
        }
        "newComputePipelineStateWithFunction:error:" => |_device, function: Id, _error: *mut Id| -> Id {
            library::pipeline(function.get::<Rc<Function>>().as_ref().clone())
        }
        "newComputePipelineStateWithDescriptor:options:reflection:error:" =>
            |_device, description: Id, options: usize, _reflection: *mut Id, error: *mut Id| -> Id {
                let function = description.get::<Description>().function(options & FAIL_ON_MISS != 0);
                given(function.map(library::pipeline), error)
            }
        "newBinaryArchiveWithDescriptor:error:" => |_device, description: Id, error: *mut Id| -> Id {
            given(archive::open(description), error)
        }
        "newResidencySetWithDescriptor:error:" => |_device, _description: Id, _error: *mut Id| -> Id {
            residency::set()
        }
        "newBufferWithLength:options:" => |device, length: usize, options: usize| -> Id {
            made(check(length, options).and_then(|()| buffer::own(&device.get::<Device>().0, length)))
        }
        "newBufferWithBytesNoCopy:length:options:deallocator:" =>
            |device, bytes: *const u8, length: usize, options: usize, _deallocator: *const u8| -> Id {
                let shown = |()| buffer::over(&device.get::<Device>().0, bytes, length);
                made(check(length, options).and_then(shown))
            }
    },
};

/// `MTLCreateSystemDefaultDevice`. Each call creates a new device.
pub(crate) fn create() -> Id {
    Id::new(&DEVICE, Device(Rc::new(RefCell::new(Machine::default()))))
}

fn check(length: usize, options: usize) -> Result<(), String> {
    let most = longest();
    match (length, options) {
        (0, _) => Err("empty buffer".to_owned()),
        _ if length > most => Err(format!("a buffer of {length} bytes exceeds the maximum of {most}")),
        (_, 0) => Ok(()),
        _ => {
            Err(format!("unsupported buffer options {options:#x}: only shared, cached buffers are emulated"))
        }
    }
}

/// Returns an object, or stores an error for the caller.
fn given(object: Result<Id, String>, error: *mut Id) -> Id {
    object.unwrap_or_else(|what| foundation::fail(error, &what))
}

fn made(buffer: Result<Id, String>) -> Id {
    buffer.unwrap_or_else(|what| {
        complain(what);
        Id::NONE
    })
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.0.borrow_mut().complete_all() {
            complain("a command buffer was committed but never waited for".to_owned());
        }
    }
}
