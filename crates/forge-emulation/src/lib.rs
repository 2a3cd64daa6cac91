//! A Metal emulator for Linux: an Objective-C runtime, the Metal classes that generated programs use, and
//! `forge-sim` as the GPU.
//!
//! The host code is the unmodified Metal backend of `forge-runtime`. Its `objc2`, built for GNUstep, sends
//! every message through `objc_msg_lookup`. This crate defines that function, the other C functions that
//! `objc2` declares, and `MTLCreateSystemDefaultDevice`. Objects may only be used on the thread that created
//! them.
//!
//! When the host waits for a command buffer, its dispatches run in the kernel checker, from the library's own
//! source. The checker therefore checks what the real host code submits: bounds, uninitialized memory,
//! misalignment, and races between dispatches without a barrier. Nothing is executed before, so a host that
//! does not wait reads stale data. Arguments are validated as by Metal's validation layer. [`take_violations`]
//! returns the errors; a command buffer with an error completes with an error.
//!
//! Not detected:
//! - reads of uninitialized memory by the host (such bytes are NaN, which shows in results);
//! - overruns from one weight into the next (a Metal binding extends to the end of its buffer);
//! - deviations of Apple's compiler, driver or GPU from their documentation.
//!
//! No-copy memory is copied nevertheless, because the checker maps it. Read-only memory is compared with its
//! copy before each pass. Changes of writable memory are copied when a pass is committed or executed.
//!
//! # Modules
//!
//! - `objc`: objects and the Objective-C runtime (`object`, `runtime`), Foundation classes (`foundation`),
//!   closures (`blocks`) and libdispatch (`data`).
//! - `metal`: Metal classes.
//! - `gpu`: the emulated GPU.
//! - `machine`: the system and the GPU that are emulated; `counters`: statistics and errors.

#![cfg(target_os = "linux")]

mod counters;
mod gpu;
mod machine;
mod metal;
mod objc;

pub use crate::counters::{Counts, counts, execute, labels, live_objects, take_violations};
pub use crate::machine::{Machine, Matrices, machine, set_machine};
pub use crate::metal::library::metallib;
pub use crate::objc::runtime::emulate;
