//! The device: what the system has one of, and what everything else is made by.

use crate::account::complain;
use crate::buffer;
use crate::commands;
use crate::library;
use crate::machine::Machine;
use crate::object::{Class, Id, methods};
use crate::text;
use std::cell::RefCell;
use std::rc::Rc;

/// The most bytes of a buffer.
const LONGEST: usize = 8 << 30;

/// What a device and all that it makes share.
pub(crate) type Shared = Rc<RefCell<Machine>>;

/// A device.
struct Device(Shared);

static DEVICE: Class = Class {
    name: "MTLDevice",
    method: methods! {
        "name" => |_device| -> Id { text::string("Emulated GPU").autorelease() }
        "maxBufferLength" => |_device| -> usize { LONGEST }
        "newCommandQueue" => |device| -> Id { commands::queue(device.get::<Device>().0.clone()) }
        "newLibraryWithSource:options:error:" => |device, source: Id, options: Id, error: *mut Id| -> Id {
            match options.find::<text::Options>() {
                Some(options) => options.complaint().into_iter().for_each(complain),
                None => complain("the library is compiled with no options, so with fast mathematics".to_owned()),
            }
            match library::compile(&device.get::<Device>().0, &text::read(source)) {
                Ok(library) => library,
                Err(what) => text::fail(error, &what),
            }
        }
        "newComputePipelineStateWithFunction:error:" => |_device, function: Id, _error: *mut Id| -> Id {
            library::pipeline(function)
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

/// `MTLCreateSystemDefaultDevice`; a program has as many as it asks for.
pub(crate) fn create() -> Id {
    Id::new(&DEVICE, Device(Rc::new(RefCell::new(Machine::default()))))
}

fn check(length: usize, options: usize) -> Result<(), String> {
    match (length, options) {
        (0, _) => Err("a buffer of no bytes".to_owned()),
        (LONGEST.., _) => Err(format!("a buffer of {length} bytes, and there are at most {LONGEST}")),
        (_, 0) => Ok(()),
        _ => Err(format!(
            "a buffer with options {options:#x}: only shared ones, which are cached, are emulated"
        )),
    }
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
            complain("a command buffer is committed and nobody waits for it".to_owned());
        }
    }
}
