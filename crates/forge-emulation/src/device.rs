//! The Metal device, which creates all other objects.

use crate::archive;
use crate::archive::PipelineDescriptor;
use crate::buffer;
use crate::commands;
use crate::counters::{max_buffer_length, report_violation};
use crate::data;
use crate::foundation;
use crate::gpu::Gpu;
use crate::library;
use crate::library::Function;
use crate::object::{Class, Id, methods};
use crate::residency;
use std::cell::RefCell;
use std::ffi::c_void;
use std::rc::Rc;

/// The newest supported `MTLGPUFamily`.
const NEWEST_FAMILY: isize = 1009;

/// `MTLPipelineOptionFailOnBinaryArchiveMiss`.
const FAIL_ON_MISS: usize = 4;

/// The emulated GPU, shared by a device and the objects that it creates.
pub(crate) type SharedGpu = Rc<RefCell<Gpu>>;

/// A Metal device.
struct Device(SharedGpu);

static DEVICE: Class = Class {
    name: "MTLDevice",
    method: methods! {
        "name" => |_device| -> Id { foundation::string("Emulated GPU").autorelease() }
        "maxBufferLength" => |_device| -> usize { max_buffer_length() }
        "supportsFamily:" => |_device, family: isize| -> u8 { u8::from(family <= NEWEST_FAMILY) }
        "newCommandQueue" => |device| -> Id { commands::queue(device.get::<Device>().0.clone()) }
        "newLibraryWithSource:options:error:" => |device, source: Id, options: Id, error: *mut Id| -> Id {
            match options.find::<foundation::Options>() {
                Some(options) => options.violation().into_iter().for_each(report_violation),
                None => report_violation("the library is compiled without options, so with fast math".to_owned()),
            }
            object_or_error(library::compile(&device.get::<Device>().0, &foundation::read(source)), error)
        }
        "newLibraryWithData:error:" => |device, data: *const c_void, error: *mut Id| -> Id {
            object_or_error(library::compile(&device.get::<Device>().0, &data::read(data)), error)
        }
        "newComputePipelineStateWithFunction:error:" => |_device, function: Id, _error: *mut Id| -> Id {
            library::pipeline(function.get::<Rc<Function>>().as_ref().clone())
        }
        "newComputePipelineStateWithDescriptor:options:reflection:error:" =>
            |_device, descriptor: Id, options: usize, _reflection: *mut Id, error: *mut Id| -> Id {
                let function = descriptor.get::<PipelineDescriptor>().function(options & FAIL_ON_MISS != 0);
                object_or_error(function.map(library::pipeline), error)
            }
        "newBinaryArchiveWithDescriptor:error:" => |_device, descriptor: Id, error: *mut Id| -> Id {
            object_or_error(archive::open(descriptor), error)
        }
        "newResidencySetWithDescriptor:error:" => |_device, _description: Id, _error: *mut Id| -> Id {
            residency::set()
        }
        "newBufferWithLength:options:" => |device, length: usize, options: usize| -> Id {
            buffer_or_nil(check_buffer(length, options).and_then(|()| buffer::allocate(&device.get::<Device>().0, length)))
        }
        "newBufferWithBytesNoCopy:length:options:deallocator:" =>
            |device, bytes: *const u8, length: usize, options: usize, _deallocator: *const u8| -> Id {
                let create = |()| buffer::no_copy(&device.get::<Device>().0, bytes, length);
                buffer_or_nil(check_buffer(length, options).and_then(create))
            }
    },
};

/// `MTLCreateSystemDefaultDevice`. Each call creates a new device.
pub(crate) fn create() -> Id {
    Id::new(&DEVICE, Device(Rc::new(RefCell::new(Gpu::default()))))
}

fn check_buffer(length: usize, options: usize) -> Result<(), String> {
    let most = max_buffer_length();
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
fn object_or_error(object: Result<Id, String>, error: *mut Id) -> Id {
    object.unwrap_or_else(|what| foundation::fail(error, &what))
}

fn buffer_or_nil(buffer: Result<Id, String>) -> Id {
    buffer.unwrap_or_else(|what| {
        report_violation(what);
        Id::NIL
    })
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.0.borrow_mut().complete_all() {
            report_violation("a command buffer was committed but never waited for".to_owned());
        }
    }
}
