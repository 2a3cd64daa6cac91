//! The runtime of generated crates: devices that execute a model's kernels, generation, the CLI and the HTTP
//! server.
//!
//! `forge` copies this crate into each crate that it writes, as `runtime/`. A generated crate adds four
//! files: `model.rs` implements [`model::Model`], `kernels.rs` has a [`device::Kernel`] for each kernel of
//! `kernels.metal`, `lib.rs` has the [`program::CompiledModel`] made of them, and `main.rs` lists the
//! commands of its [`cli`].
//!
//! Modules, from the bottom up:
//!
//! - [`ops`] declares the operations.
//! - [`weights`] maps the weight file.
//! - [`device`] defines the device interface; [`cpu`] and [`gpu`] implement it. The devices in [`measure`]
//!   capture, record and time the passes of another device.
//! - [`model`] is the interface to generated code.
//! - [`offload`] is the cache of experts that are streamed from disk.
//! - [`engine`] runs batches of tokens and returns logits.
//! - [`sampling`] chooses the next token; [`text`] has the tokenizer and chat templates.
//! - [`session`] generates one sequence; `serve` batches many requests.
//! - [`load`] makes an engine from files; [`cli`] is the command line.

pub(crate) mod atomic_write;
pub mod cli;
#[cfg_attr(
    not(feature = "cpu-kernels"),
    allow(dead_code, unused_imports, reason = "a model uses a subset of the kernels")
)]
pub mod cpu;
pub mod device;
pub mod engine;
pub mod error;
pub mod gpu;
pub mod load;
pub mod measure;
pub mod model;
pub mod offload;
pub mod program;
pub mod sampling;
#[cfg(feature = "serve")]
pub mod serve;
pub mod session;
pub mod text;
pub mod weights;

pub use forge_ops as ops;
pub use half::f16;
