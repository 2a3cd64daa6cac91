//! The kernel checker: executes `kernels.metal` on a CPU and checks every memory access.
//!
//! clang compiles the same source as Metal does, as C++ with the `metal_stdlib` in `stdlib/`. The code is
//! instrumented as for ThreadSanitizer; this crate implements the callbacks. Each thread of a threadgroup is
//! a fiber that runs until it reaches a barrier or a simdgroup operation. Lanes do not run in lockstep, so
//! code that relies on lockstep fails here.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let text = "";
//! use forge_sim::{Program, Sim};
//!
//! let program = Program::compile(text)?;
//! let mut sim = Sim::new(&program)?;
//! let x = sim.memory.floats(&[1.0; 128])?;
//! let y = sim.memory.unwritten(128 * 4)?;
//! sim.dispatch("scale", &[x.read(), y.write()], &[128], [1, 1, 1]);
//! assert!(sim.faults().is_empty());
//! assert_eq!(sim.memory.read_floats(y)[0], 2.0);
//! # Ok(())
//! # }
//! ```
//!
//! [`Replay`] executes the recorded dispatches of a generated program. [`mutants`] injects faults into
//! kernels to test the checker itself.
//!
//! # Detected faults
//!
//! - Out-of-bounds accesses of a binding or an array, at any distance; writes to a read-only binding.
//! - Reads of uninitialized memory, which neither the host nor a kernel has written.
//! - Misaligned accesses.
//! - Data races between threads, threadgroups or dispatches. A barrier orders only the memory that its flags
//!   name; simdgroup operations order none.
//! - Divergence: a barrier, a simdgroup operation, or a matrix load or store that not all of its threads
//!   reach.
//! - Too much threadgroup memory, a launch that does not match its kernel, a kernel that does not terminate,
//!   an index past the end of a thread's own array, division by zero.
//!
//! # Undetected faults
//!
//! - An access whose result is unused: clang removes it.
//! - An access past the end of a thread's own array through a pointer, and reads of uninitialized thread
//!   variables. Such variables start as NaN, so the results show it.
//! - Stale bytes, which an earlier pass wrote and this pass should have overwritten before reading them.
//! - Deviations of Apple's compiler or hardware from the language. A separate compile checks address spaces.
//!
//! Vectors wider than 16 bytes are not supported: the instrumentation cannot observe their loads and stores.
//!
//! # Modules
//!
//! - `compile`: from source text to callable code.
//! - `memory`: buffers and threadgroup memory, with their access history.
//! - `execute`: execution of threads.
//! - `check`: the checks, their messages, and memory traffic counters.
//! - `sim`, `recording`, `replay`, `sample`, `mutants`: the public interface.
//! - `gpu`: runs the dispatches on an NVIDIA GPU instead; `precision`: the numeric tolerances of both.

mod check;
mod compile;
mod execute;
#[cfg(feature = "gpu")]
mod gpu;
mod memory;
pub mod mutants;
mod precision;
pub mod recording;
mod replay;
mod sample;
mod sim;

pub use crate::check::checker::Counters;
pub use crate::check::fault::{Fault, FaultKind};
pub use crate::check::traffic::Traffic;
pub use crate::compile::clang::{Clang, CompileError, clang};
pub use crate::compile::program::{Kernel, Options, Program};
pub use crate::memory::buffers::{Bound, BufferId, Memory};
pub use crate::precision::Precision;
pub use crate::recording::{Command, Dispatch, Pass, Read, ReadKind, Recording};
pub use crate::replay::{Replay, ReplayedBarrier, Report, Values, Weights};
pub use crate::sample::{Outcome, Sample, Samples};
pub use crate::sim::Sim;
pub use forge_msl::Signature;
