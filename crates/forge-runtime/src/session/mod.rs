//! Generation of one sequence, and a session with one slot.

pub mod generation;
#[expect(clippy::module_inception, reason = "the file has the name of the type `Session`")]
pub mod session;
