//! The data of a graph, before and after validation, and its text.

pub(crate) mod draft;
mod print;
pub(crate) mod routing;
pub(crate) mod state;
