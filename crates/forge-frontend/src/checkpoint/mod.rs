//! Files of a checkpoint, safetensors headers, and the tensors of all files.

pub(crate) mod files;
mod open;
pub(crate) mod safetensors_header;
pub(crate) mod tensors;
pub(crate) mod tied_copies;
