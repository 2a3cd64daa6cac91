//! The command queue and its command buffers.

use crate::counters::{committed, count, labelled, report_violation};
use crate::gpu::Command;
use crate::metal::device::SharedGpu;
use crate::metal::encoder;
use crate::metal::event::SharedEvent;
use crate::metal::residency::ResidencySet;
use crate::objc::foundation;
use crate::objc::object::{Class, Id, methods};
use std::cell::RefCell;
use std::rc::Rc;

/// The state of a command buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Accepts encoders.
    Open,
    /// Has an encoder that has not ended.
    Encoding,
    /// Committed by the host.
    Committed,
    /// Executed by the emulated GPU.
    Completed,
}

/// A command buffer.
pub(crate) struct CommandBuffer {
    shared: SharedGpu,
    /// Whether it retains the resources that it uses until completion; otherwise the host must.
    pub(crate) retains_references: bool,
    pub(crate) status: Status,
    pub(crate) encoded: Vec<Command>,
    /// Complaints about it.
    pub(crate) violations: Vec<String>,
    /// Start and end of its execution in seconds; 0 before.
    pub(crate) times: [f64; 2],
}

/// A command buffer, shared by its encoders and its queue.
pub(crate) type SharedCommandBuffer = Rc<RefCell<CommandBuffer>>;

static QUEUE: Class = Class {
    name: "MTLCommandQueue",
    method: methods! {
        "commandBuffer" => |queue| -> Id { open(&queue.get::<SharedGpu>(), true) }
        "commandBufferWithUnretainedReferences" => |queue| -> Id { open(&queue.get::<SharedGpu>(), false) }
        "addResidencySet:" => |_queue, set: Id| { set.get::<ResidencySet>().check() }
    },
};

static COMMANDS: Class = Class {
    name: "MTLCommandBuffer",
    method: methods! {
        "computeCommandEncoderWithDispatchType:" => |commands, kind: usize| -> Id {
            let shared = commands.get::<SharedCommandBuffer>().as_ref().clone();
            let before = std::mem::replace(&mut shared.borrow_mut().status, Status::Encoding);
            if before != Status::Open {
                shared.borrow_mut().report_violation(format!("an encoder is created from a command buffer that is {before:?}"));
            }
            encoder::create(shared, kind == 1).autorelease()
        }
        "encodeWaitForEvent:value:" => |commands, event: Id, value: u64| {
            let wait = Command::WaitForEvent(event.get::<Rc<SharedEvent>>().as_ref().clone(), value);
            commands.get::<SharedCommandBuffer>().borrow_mut().encode(wait);
        }
        "encodeSignalEvent:value:" => |commands, event: Id, value: u64| {
            let signal = Command::SignalEvent(event.get::<Rc<SharedEvent>>().as_ref().clone(), value);
            commands.get::<SharedCommandBuffer>().borrow_mut().encode(signal);
        }
        "setLabel:" => |object, label: Id| { labelled(object.class().name, &foundation::read(label)) }
        "commit" => |commands| { commit(&commands.get::<SharedCommandBuffer>()) }
        "waitUntilCompleted" => |commands| { wait(&commands.get::<SharedCommandBuffer>()) }
        "GPUStartTime" => |commands| -> f64 { commands.get::<SharedCommandBuffer>().borrow().times[0] }
        "GPUEndTime" => |commands| -> f64 { commands.get::<SharedCommandBuffer>().borrow().times[1] }
        "error" => |commands| -> Id {
            let commands = commands.get::<SharedCommandBuffer>();
            let commands = commands.borrow();
            if commands.status != Status::Completed || commands.violations.is_empty() {
                return Id::NIL;
            }
            foundation::error(&commands.violations.join("; ")).autorelease()
        }
    },
};

/// Creates a queue.
pub(crate) fn queue(shared: SharedGpu) -> Id {
    Id::new(&QUEUE, shared)
}

/// Creates a command buffer.
fn open(shared: &SharedGpu, retains_references: bool) -> Id {
    let (shared, status) = (shared.clone(), Status::Open);
    let (encoded, violations, times) = (Vec::new(), Vec::new(), [0.0; 2]);
    let commands = CommandBuffer { shared, retains_references, status, encoded, violations, times };
    Id::new(&COMMANDS, Rc::new(RefCell::new(commands))).autorelease()
}

fn commit(own: &SharedCommandBuffer) {
    let mut commands = own.borrow_mut();
    match commands.status {
        Status::Open => {}
        Status::Encoding => commands.report_violation("committed before its encoder has ended".to_owned()),
        status => return commands.report_violation(format!("committed, but it is {status:?} already")),
    }
    commands.status = Status::Committed;
    let number = |of: fn(&Command) -> bool| commands.encoded.iter().filter(|command| of(command)).count();
    let dispatches = number(|command| matches!(command, Command::Dispatch(_)));
    committed(dispatches, number(|command| matches!(command, Command::Barrier)));
    let shared = commands.shared.clone();
    drop(commands);
    shared.borrow_mut().submit(own.clone());
}

fn wait(own: &SharedCommandBuffer) {
    let shared = own.borrow().shared.clone();
    match own.borrow().status {
        Status::Committed => {}
        Status::Completed => return,
        // Metal would wait forever.
        status => {
            return report_violation(format!(
                "waiting for a command buffer that is {status:?}, not committed"
            ));
        }
    }
    count(|counts| counts.waits += 1);
    shared.borrow_mut().complete(own);
}

impl CommandBuffer {
    /// Appends a command that is not part of an encoder.
    fn encode(&mut self, command: Command) {
        if self.status != Status::Open {
            self.report_violation(format!(
                "an event is encoded in a command buffer that is {:?}",
                self.status
            ));
        }
        self.encoded.push(command);
    }

    /// Records a violation, which the host also gets as an error.
    pub(crate) fn report_violation(&mut self, what: String) {
        report_violation(what.clone());
        self.violations.push(what);
    }
}
