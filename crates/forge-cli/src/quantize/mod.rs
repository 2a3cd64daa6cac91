//! The number formats of weights: names, llama.cpp's mixes, selection by measured errors, and statistics of
//! activations.

pub(crate) mod auto;
pub(crate) mod calibration;
pub(crate) mod format_names;
pub(crate) mod mix;
mod sensitivity;
