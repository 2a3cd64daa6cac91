//! Executes `kernels.metal` on a CPU, with a referee watching every access.

mod arena;
mod blame;
mod compile;
mod diverge;
mod engine;
mod fault;
mod fibre;
mod hooks;
mod memory;
pub mod mutants;
mod program;
pub mod recording;
mod replay;
mod rewrite;
mod sample;
mod shadow;
mod signature;
mod sim;
mod text;
mod watch;

pub use compile::{Clang, CompileError, clang};
pub use fault::{Fault, Kind};
pub use memory::{Bound, BufferId, Memory};
pub use program::{Kernel, Options, Program};
pub use recording::{Recording, What};
pub use replay::{Replay, Report, Values, Wait, Weights};
pub use sample::{Outcome, Sample, Samples};
pub use signature::{Malformed, Parameter, Signature, Source, Space, kernels};
pub use sim::Sim;
pub use watch::Counters;
