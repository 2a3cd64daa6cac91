//! Converts a Hugging Face checkpoint or a GGUF file into a graph.
//!
//! [`read_model`] takes a [`Checkpoint`], opened by the caller, and returns a [`LoadedCheckpoint`]: the
//! validated graph and the locations of its tensors. Everything that affects the output is used or rejected.
//! These are errors, all reported at once, each with the nearest known name and a fix:
//!
//! * a configuration key that the reference implementation reads and forge does not,
//! * an unused tensor,
//! * a missing tensor.
//!
//! # Modules
//!
//! * `read` reads a checkpoint, with `description` for config.json. `dummy_weights`: a checkpoint with dummy
//!   weights, made from a configuration.
//! * `checkpoint`: files, safetensors headers, and the tensors of all files. `gguf`: GGUF files, translated
//!   into Hugging Face's files and tensor names.
//! * `config`: a configuration that records which keys have been read, and the keys that the reference
//!   implementation reads. `json`: JSON with source locations.
//! * `quantization`: quantized matrices. `mlx_layout`: other changes of MLX's converters. `tokenizer`:
//!   special tokens, and conversion of Mistral's tokenizer format.
//! * `architectures`: one file per architecture. It reads the configuration into a `blueprint`, made of
//!   shared parts: `decoder`, which has `defaults`, and the parts of a layer in `layers`. `multimodal` finds
//!   the text model of a multimodal checkpoint. `architecture_lookup` finds the architecture that a
//!   configuration names; `architecture_info` lists what each supports and finds the one nearest to an
//!   unsupported one.
//! * `imatrix`: importance matrix files of llama.cpp.
//! * `graph`: a blueprint builds the graph with `builder` over tensors found by `binding`.
//!
//! This crate does no disk I/O and depends only on `forge-ir`.

mod architecture_info;
mod architecture_lookup;
mod architectures;
mod blueprint;
mod checkpoint;
mod config;
mod decoder;
mod defaults;
mod description;
mod dummy_weights;
mod gguf;
mod graph;
mod imatrix;
mod json;
mod layers;
mod mlx_layout;
mod multimodal;
mod options;
mod quantization;
mod read;
mod suggest;
mod tokenizer;

pub use crate::architecture_info::{Family, families};
pub use crate::checkpoint::files::{Checkpoint, MemoryCheckpoint};
pub use crate::checkpoint::safetensors_header::{EncodedAs, Tensor};
pub use crate::checkpoint::tensors::Tensors;
pub use crate::config::file::Keys;
pub use crate::dummy_weights::DummyWeights;
pub use crate::imatrix::{Imatrix, read_imatrix};
pub use crate::options::Options;
pub use crate::quantization::resolve::StoredMatrices;
pub use crate::read::{LoadedCheckpoint, read_model};
