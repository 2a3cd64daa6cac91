//! Weights: tensors of the checkpoint with their encodings, and the tensors of the packed weight file.

pub(crate) mod blocks;
pub(crate) mod encoding;
pub(crate) mod importance;
pub(crate) mod packing;
pub(crate) mod record;
pub(crate) mod small_float;
pub(crate) mod weight;
pub(crate) mod weight_source;
