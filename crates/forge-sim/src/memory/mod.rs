//! Buffers and threadgroup memory, with the access history of every byte.

pub(crate) mod buffers;
pub(crate) mod mmap;
pub(crate) mod poison;
pub(crate) mod shadow;
pub(crate) mod threadgroup_memory;
