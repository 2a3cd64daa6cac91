//! Execution of the threads of a dispatch.

pub(crate) mod barriers;
pub(crate) mod diverge;
pub(crate) mod engine;
pub(crate) mod fiber;
pub(crate) mod hooks;
