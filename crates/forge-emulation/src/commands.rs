//! The queue and its command buffers: what is encoded, when it is committed, and what came of it.

use crate::counters::{committed, complain};
use crate::device::Shared;
use crate::encoder;
use crate::foundation;
use crate::machine::Command;
use crate::object::{Class, Id, methods};
use crate::residency::Set;
use std::cell::RefCell;
use std::rc::Rc;

/// How far a command buffer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Commands can be encoded.
    Open,
    /// One of its encoders has not ended.
    Encoding,
    /// The host is done with it.
    Committed,
    /// The machine is done with it.
    Completed,
}

/// A command buffer.
pub(crate) struct Commands {
    shared: Shared,
    /// Whether it keeps what it uses until it has ended; otherwise the host has to.
    pub(crate) retains: bool,
    pub(crate) stage: Stage,
    pub(crate) encoded: Vec<Command>,
    /// What is wrong with it.
    pub(crate) wrong: Vec<String>,
    /// When the machine began with it and when it was done, in seconds; 0 before.
    pub(crate) times: [f64; 2],
}

/// A command buffer as its encoders and its queue share it.
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
                shared.borrow_mut().complain(format!("an encoder is made of a command buffer that is {before:?}"));
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

/// A new queue.
pub(crate) fn queue(shared: Shared) -> Id {
    Id::new(&QUEUE, shared)
}

/// A new command buffer.
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
        Stage::Encoding => commands.complain("it is committed before its encoder has ended".to_owned()),
        stage => return commands.complain(format!("it is committed and is {stage:?} already")),
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
        // Metal would wait for ever.
        stage => return complain(format!("a command buffer is waited for and is {stage:?}, not committed")),
    }
    shared.borrow_mut().complete(own);
}

impl Commands {
    /// Notes what is wrong, for the host and for whoever looks on.
    pub(crate) fn complain(&mut self, what: String) {
        complain(what.clone());
        self.wrong.push(what);
    }
}
