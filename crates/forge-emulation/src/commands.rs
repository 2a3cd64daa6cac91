//! The command queue and its command buffers.

use crate::counters::{committed, complain};
use crate::device::Shared;
use crate::encoder;
use crate::foundation;
use crate::machine::Command;
use crate::object::{Class, Id, methods};
use crate::residency::Set;
use std::cell::RefCell;
use std::rc::Rc;

/// The state of a command buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
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
pub(crate) struct Commands {
    shared: Shared,
    /// Whether it retains the resources that it uses until completion; otherwise the host must.
    pub(crate) retains: bool,
    pub(crate) stage: Stage,
    pub(crate) encoded: Vec<Command>,
    /// Complaints about it.
    pub(crate) wrong: Vec<String>,
    /// Start and end of its execution in seconds; 0 before.
    pub(crate) times: [f64; 2],
}

/// A command buffer, shared by its encoders and its queue.
pub(crate) type SharedCommands = Rc<RefCell<Commands>>;

static QUEUE: Class = Class {
    name: "MTLCommandQueue",
    method: methods! {
        "commandBuffer" => |queue| -> Id { open(&queue.get::<Shared>(), true) }
        "commandBufferWithUnretainedReferences" => |queue| -> Id { open(&queue.get::<Shared>(), false) }
        "addResidencySet:" => |_queue, set: Id| { set.get::<Set>().check() }
    },
};

static COMMANDS: Class = Class {
    name: "MTLCommandBuffer",
    method: methods! {
        "computeCommandEncoderWithDispatchType:" => |commands, kind: usize| -> Id {
            let shared = commands.get::<SharedCommands>().as_ref().clone();
            let before = std::mem::replace(&mut shared.borrow_mut().stage, Stage::Encoding);
            if before != Stage::Open {
                shared.borrow_mut().complain(format!("an encoder is created from a command buffer that is {before:?}"));
            }
            encoder::create(shared, kind == 1).autorelease()
        }
        "commit" => |commands| { commit(&commands.get::<SharedCommands>()) }
        "waitUntilCompleted" => |commands| { wait(&commands.get::<SharedCommands>()) }
        "GPUStartTime" => |commands| -> f64 { commands.get::<SharedCommands>().borrow().times[0] }
        "GPUEndTime" => |commands| -> f64 { commands.get::<SharedCommands>().borrow().times[1] }
        "error" => |commands| -> Id {
            let commands = commands.get::<SharedCommands>();
            let commands = commands.borrow();
            if commands.stage != Stage::Completed || commands.wrong.is_empty() {
                return Id::NONE;
            }
            foundation::error(&commands.wrong.join("; ")).autorelease()
        }
    },
};

/// Creates a queue.
pub(crate) fn queue(shared: Shared) -> Id {
    Id::new(&QUEUE, shared)
}

/// Creates a command buffer.
fn open(shared: &Shared, retains: bool) -> Id {
    let (shared, stage) = (shared.clone(), Stage::Open);
    let (encoded, wrong, times) = (Vec::new(), Vec::new(), [0.0; 2]);
    let commands = Commands { shared, retains, stage, encoded, wrong, times };
    Id::new(&COMMANDS, Rc::new(RefCell::new(commands))).autorelease()
}

fn commit(own: &SharedCommands) {
    let mut commands = own.borrow_mut();
    match commands.stage {
        Stage::Open => {}
        Stage::Encoding => commands.complain("committed before its encoder has ended".to_owned()),
        stage => return commands.complain(format!("committed, but it is {stage:?} already")),
    }
    commands.stage = Stage::Committed;
    let barriers = commands.encoded.iter().filter(|command| matches!(command, Command::Barrier)).count();
    committed(commands.encoded.len() - barriers, barriers);
    let shared = commands.shared.clone();
    drop(commands);
    shared.borrow_mut().submit(own.clone());
}

fn wait(own: &SharedCommands) {
    let shared = own.borrow().shared.clone();
    match own.borrow().stage {
        Stage::Committed => {}
        Stage::Completed => return,
        // Metal would wait forever.
        stage => return complain(format!("waiting for a command buffer that is {stage:?}, not committed")),
    }
    shared.borrow_mut().complete(own);
}

impl Commands {
    /// Records a complaint, which the host also gets as an error.
    pub(crate) fn complain(&mut self, what: String) {
        complain(what.clone());
        self.wrong.push(what);
    }
}
