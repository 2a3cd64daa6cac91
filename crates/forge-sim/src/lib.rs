//! Executes `kernels.metal` on a CPU, with a referee watching every access.
//!
//! The text that is executed is the very text that Metal compiles. clang compiles it as C++ against a `metal_stdlib`
//! of our own (`stdlib/`), instrumented as for its thread sanitizer; but the functions that the instrumentation calls
//! are ours. Each thread of a threadgroup is a fibre that runs until it has to wait for others: lanes do not run in
//! lockstep, so what relies on that goes wrong here.
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
//! [`Replay`] carries out what a generated program recorded of a run; [`mutants`] plants faults in kernels, to see
//! that the referee finds them.
//!
//! # What is found
//!
//! - An access outside its binding or its array, however near the next one is; a write to what is bound to be read.
//! - A read of bytes that neither the host nor a kernel has written.
//! - An access that is not aligned as its type needs.
//! - Two threads, two threadgroups or two dispatches that touch the same bytes, one of them writing, with nothing to
//!   order them. Barriers order only the memory that their flags name; operations of a simdgroup order none.
//! - A barrier, an operation of a simdgroup, or a load or store of a matrix that not all of its threads reach.
//! - More threadgroup memory than there is, a launch that does not fit its kernel, a kernel that does not end, an index
//!   past the end of a thread's own array, a division by zero.
//!
//! # What is not
//!
//! - An access whose result nothing uses: clang removes it.
//! - An access past the end of a thread's own array through a pointer into it, and reads of a thread's own variables
//!   before they are set. Those start as NaN, so results show them.
//! - Bytes that an earlier pass has written and this one should have written again, before it read them.
//! - What Apple's compiler or hardware does otherwise than the language says. Address spaces are checked by a compile
//!   with them on, elsewhere.
//!
//! Loads and stores of vectors wider than 16 bytes could not be seen, so there are no such types: they are refused.
//!
//! # Where things are
//!
//! `text`, `signature`, `rewrite`, `compile`, `program`: from text to code that can be called. `memory`, `poison`, `map`, `arena`,
//! `shadow`: bytes, and what is remembered of them. `fibre`, `engine`, `waits`, `diverge`, `hooks`: threads. `watch`,
//! `blame`, `fault`: the referee; `traffic`: what it counts. `sim`, `recording`, `replay`, `sample`, `mutants`: what others use. `card`:
//! a GPU in the referee's place; `exactness`: what either may lose.

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
