//! Objects, the Objective-C runtime, and the libraries of the system that are not Metal.

pub(crate) mod blocks;
pub(crate) mod data;
pub(crate) mod foundation;
pub(crate) mod object;
pub(crate) mod runtime;
