//! Compiles a checkpoint into a crate: the steps of `pipeline`.

pub(crate) mod ignored_tensors;
mod messages;
pub(crate) mod options;
pub(crate) mod output;
mod pack;
pub(crate) mod pipeline;
pub(crate) mod plan;
mod ptx;
mod reference_logits;
pub(crate) mod text_files;
