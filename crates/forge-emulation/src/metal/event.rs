//! Shared events: values that the GPU and the host set and wait for.

use crate::counters::report_violation;
use crate::metal::device::SharedGpu;
use crate::objc::object::{Class, Id, methods};
use std::cell::Cell;
use std::rc::Rc;

/// A shared event.
pub(crate) struct SharedEvent {
    gpu: SharedGpu,
    value: Cell<u64>,
}

static EVENT: Class = Class {
    name: "MTLSharedEvent",
    method: methods! {
        "waitUntilSignaledValue:timeoutMS:" => |event, value: u64, _milliseconds: u64| -> u8 {
            u8::from(event.get::<Rc<SharedEvent>>().wait(value))
        }
        "signaledValue" => |event| -> u64 { event.get::<Rc<SharedEvent>>().value() }
        "setSignaledValue:" => |event, value: u64| {
            let event = event.get::<Rc<SharedEvent>>().as_ref().clone();
            event.gpu.borrow_mut().host_signals(&event, value);
        }
    },
};

/// Creates an event with value 0.
pub(crate) fn create(gpu: SharedGpu) -> Id {
    Id::new(&EVENT, Rc::new(SharedEvent { gpu, value: Cell::new(0) }))
}

impl SharedEvent {
    pub(crate) fn value(&self) -> u64 {
        self.value.get()
    }

    pub(crate) fn set(&self, value: u64) {
        if value <= self.value.get() {
            report_violation(format!("an event is set to {value}, but has {} already", self.value.get()));
        }
        self.value.set(value);
    }

    /// Executes pending command buffers until the value is reached. Returns false after a timeout: no command buffer is left
    /// that could signal it.
    fn wait(&self, value: u64) -> bool {
        let was_pending = self.gpu.borrow().is_pending();
        while self.value() < value {
            if !self.gpu.borrow_mut().complete_first() {
                if was_pending {
                    return false;
                }
                // Metal would time out again and again.
                report_violation(format!("waiting for value {value} of an event, which nothing signals"));
                return true;
            }
        }
        true
    }
}
