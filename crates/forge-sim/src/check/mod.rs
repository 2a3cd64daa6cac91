//! The checks of every access, their messages, and the memory traffic.

pub(crate) mod checker;
pub(crate) mod diagnostics;
pub(crate) mod fault;
pub(crate) mod traffic;
