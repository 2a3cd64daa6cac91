//! Metal's classes.

pub(crate) mod archive;
pub(crate) mod buffer;
pub(crate) mod commands;
pub(crate) mod device;
pub(crate) mod encoder;
pub(crate) mod event;
pub(crate) mod library;
pub(crate) mod residency;
