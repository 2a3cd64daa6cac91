//! Metal on Linux, emulated: an Objective-C runtime, the classes of Metal that a generated program's host code uses, and
//! `forge-sim` as the GPU.
//!
//! The host code is the unmodified `metal` of `forge-runtime`, whose `objc2` sends every message through
//! `objc_msg_lookup` where it is built for GNUstep's runtime. This crate is that runtime: linked into a program it defines the
//! C functions that `objc2` declares, and `MTLCreateSystemDefaultDevice`. It knows nothing of `objc2`. Objects stay on the
//! thread that made them.
//!
//! A command buffer keeps what is encoded into it. When the host waits for it, its dispatches are executed from the
//! library's own text on the buffers' bytes, under the referee, which so sees what the real host code submits: bounds,
//! bytes that nobody has written, misalignment, races between dispatches that no barrier separates. Until then nothing
//! happens, so a host that does not wait reads what is not there yet. Arguments are checked as Metal's validation layer
//! checks them. Whatever is wrong is a complaint, for [`complaints`]; a command buffer with complaints ends in an error.
//!
//! What is not found: reads by the host of what nobody has written (such bytes are no numbers, which shows), what runs over
//! the end of a weight into the next (a Metal buffer is bound to its end), and whatever Apple's compiler, driver or GPU do
//! otherwise than the documents say. Memory that is bound without a copy is copied all the same, for windows to be opened on
//! it. If the host cannot write it, it is compared with the copy before each pass; if it can, what it has written is copied when a
//! pass is committed or executed.
//!
//! `object`, `runtime`: objects and the runtime's functions. `text`: Foundation's classes, `data`: libdispatch's. `device`,
//! `library`, `archive`, `buffer`, `residency`, `commands`, `encoder`: Metal's. `machine`: the GPU. `account`: what is counted and complained of.

#![cfg(target_os = "linux")]

mod archive;
mod buffer;
mod commands;
mod counters;
mod data;
mod device;
mod encoder;
mod foundation;
mod library;
mod machine;
mod object;
mod residency;
mod runtime;

pub use crate::counters::{Counts, complaints, counts, execute, limit_buffers, living};
pub use crate::runtime::emulate;
