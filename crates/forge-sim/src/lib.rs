//! The kernel checker: executes `kernels.metal` on a CPU and checks every memory access.
//!
//! clang compiles the same source as Metal does, as C++ with the `metal_stdlib` in `stdlib/`. The code is instrumented as
//! for ThreadSanitizer; this crate implements the callbacks. Each thread of a threadgroup is a fibre that runs until it
//! reaches a barrier or a simdgroup operation. Lanes do not run in lockstep, so code that relies on lockstep fails here.
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
//! [`Replay`] executes the recorded dispatches of a generated program. [`mutants`] injects faults into kernels to test the
//! checker itself.
//!
//! # Detected faults
//!
//! - Out-of-bounds accesses of a binding or an array, at any distance; writes to a read-only binding.
//! - Reads of uninitialized memory, which neither the host nor a kernel has written.
//! - Misaligned accesses.
//! - Data races between threads, threadgroups or dispatches. A barrier orders only the memory that its flags name;
//!   simdgroup operations order none.
//! - Divergence: a barrier, a simdgroup operation, or a matrix load or store that not all of its threads reach.
//! - Too much threadgroup memory, a launch that does not match its kernel, a kernel that does not terminate, an index past
//!   the end of a thread's own array, division by zero.
//!
//! # Undetected faults
//!
//! - An access whose result is unused: clang removes it.
//! - An access past the end of a thread's own array through a pointer, and reads of uninitialized thread variables. Such
//!   variables start as NaN, so the results show it.
//! - Stale bytes, which an earlier pass wrote and this pass should have overwritten before reading them.
//! - Deviations of Apple's compiler or hardware from the language. A separate compile checks address spaces.
//!
//! Vectors wider than 16 bytes are not supported: the instrumentation cannot observe their loads and stores.
//!
//! # Modules
//!
//! - `text`, `signature`, `rewrite`, `compile`, `program`: from source text to callable code.
//! - `memory`, `poison`, `map`, `arena`, `shadow`: memory and its access history.
//! - `fibre`, `engine`, `waits`, `diverge`, `hooks`: execution of threads.
//! - `watch`, `blame`, `fault`: the checks and their messages; `traffic`: memory traffic counters.
//! - `sim`, `recording`, `replay`, `sample`, `mutants`: the public interface.
//! - `card`: runs the dispatches on an NVIDIA GPU instead; `exactness`: the numeric tolerances of both.

mod barriers;
mod checker;
mod compile;
mod diagnostics;
mod diverge;
mod engine;
mod fault;
mod fibre;
#[cfg(feature = "card")]
mod gpu;
mod hooks;
mod lexer;
mod memory;
mod mmap;
pub mod mutants;
mod poison;
mod precision;
mod program;
pub mod recording;
mod replay;
mod rewrite;
mod sample;
mod shadow;
mod signature;
mod sim;
mod threadgroup_memory;
mod traffic;

pub use crate::checker::Counters;
pub use crate::compile::{Clang, CompileError, clang};
pub use crate::fault::{Fault, Kind};
pub use crate::memory::{Bound, BufferId, Memory};
pub use crate::precision::Exactness;
pub use crate::program::{Kernel, Options, Program};
pub use crate::recording::{Command, Dispatch, Pass, Read, Recording, What};
pub use crate::replay::{Replay, Report, Values, Wait, Weights};
pub use crate::sample::{Outcome, Sample, Samples};
pub use crate::signature::{Malformed, Parameter, Signature, Source, Space, kernels};
pub use crate::sim::Sim;
pub use crate::traffic::Traffic;
