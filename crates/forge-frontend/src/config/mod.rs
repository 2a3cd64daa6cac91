//! config.json: its keys, which of them have been read, and which of the others affect the output.

pub(crate) mod conventions;
pub(crate) mod file;
pub(crate) mod ignored_keys;
mod reference;
pub(crate) mod section;
mod unread;
