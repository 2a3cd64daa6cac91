//! The Metal device, which creates all other objects.

use crate::counters::{count, report_violation};
use crate::gpu::Gpu;
use crate::machine::machine;
use crate::metal::archive;
use crate::metal::archive::PipelineDescriptor;
use crate::metal::buffer;
use crate::metal::commands;
use crate::metal::event;
use crate::metal::library;
use crate::metal::library::Function;
use crate::metal::residency;
use crate::objc::blocks::call_pipeline_handler;
use crate::objc::data;
use crate::objc::foundation;
use crate::objc::object::{Class, Id, methods};
use std::cell::RefCell;
use std::ffi::c_void;
use std::rc::Rc;

/// `MTLPipelineOptionFailOnBinaryArchiveMiss`.
const FAIL_ON_MISS: usize = 4;

/// The emulated GPU, shared by a device and the objects that it creates.
pub(crate) type SharedGpu = Rc<RefCell<Gpu>>;

/// A Metal device.
struct Device(SharedGpu);

static DEVICE: Class = Class {
    name: "MTLDevice",
    method: methods! {
        "name" => |_device| -> Id { foundation::string(machine().name).autorelease() }
        "maxBufferLength" => |_device| -> usize { machine().max_buffer_length }
        "recommendedMaxWorkingSetSize" => |_device| -> u64 { machine().working_set }
        "supportsFamily:" => |_device, family: isize| -> u8 { u8::from(machine().supports_family(family)) }
        "newSharedEvent" => |device| -> Id { event::create(device.get::<Device>().0.clone()) }
        "newCommandQueue" => |device| -> Id { commands::queue(device.get::<Device>().0.clone()) }
        "newLibraryWithSource:options:error:" => |device, source: Id, options: Id, error: *mut Id| -> Id {
            let mut version = 300;
            match options.find::<foundation::Options>() {
                Some(options) => {
                    options.violation().into_iter().for_each(report_violation);
                    version = options.version();
                }
                None => report_violation("the library is compiled without options, so with fast math".to_owned()),
            }
            let library = library::compile(&device.get::<Device>().0, &foundation::read(source), version);
            object_or_error(library, error)
        }
        "newLibraryWithData:error:" => |device, data: *const c_void, error: *mut Id| -> Id {
            // What a compiler has made of a source has no branches for versions any more.
            object_or_error(library::compile(&device.get::<Device>().0, &data::read(data), 300), error)
        }
        "newComputePipelineStateWithFunction:error:" => |_device, function: Id, error: *mut Id| -> Id {
            object_or_error(library::pipeline(function.get::<Rc<Function>>().as_ref().clone()), error)
        }
        "newComputePipelineStateWithDescriptor:options:reflection:error:" =>
            |_device, descriptor: Id, options: usize, _reflection: *mut Id, error: *mut Id| -> Id {
                let function = descriptor.get::<PipelineDescriptor>().function(options & FAIL_ON_MISS != 0);
                object_or_error(function.and_then(library::pipeline), error)
            }
        "newComputePipelineStateWithDescriptor:options:completionHandler:" =>
            |_device, descriptor: Id, options: usize, handler: *const c_void| {
                count(|counts| counts.background_pipelines += 1);
                let function = descriptor.get::<PipelineDescriptor>().function(options & FAIL_ON_MISS != 0);
                let (pipeline, error) = match function.and_then(library::pipeline) {
                    Ok(pipeline) => (pipeline, Id::NIL),
                    Err(what) => (Id::NIL, foundation::error(&what)),
                };
                call_pipeline_handler(handler, pipeline, error);
                pipeline.release();
                error.release();
            }
        "newBinaryArchiveWithDescriptor:error:" => |_device, descriptor: Id, error: *mut Id| -> Id {
            object_or_error(archive::open(descriptor), error)
        }
        "newResidencySetWithDescriptor:error:" => |_device, _description: Id, error: *mut Id| -> Id {
            object_or_error(residency::set(), error)
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

/// `MTLCreateSystemDefaultDevice`. Each call creates a new device, if the machine has one.
pub(crate) fn create() -> Id {
    if !machine().has_device {
        return Id::NIL;
    }
    Id::new(&DEVICE, Device(Rc::new(RefCell::new(Gpu::default()))))
}

fn check_buffer(length: usize, options: usize) -> Result<(), String> {
    let most = machine().max_buffer_length;
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
