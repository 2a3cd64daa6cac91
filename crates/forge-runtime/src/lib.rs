//! The runtime of generated crates: generation, the CLI and the HTTP server, on the devices of `forge_device`.
//!
//! `forge` copies this crate into each crate that it writes, as `runtime/`. A generated crate adds four
//! files: `model.rs` implements [`model::Model`], `kernels.rs` has a [`device::Kernel`] for each kernel of
//! `kernels.metal`, `lib.rs` has the [`program::CompiledModel`] made of them, and `main.rs` lists the
//! commands of its [`cli`].
//!
//! Modules, from the bottom up:
//!
//! - `forge_device` has the devices, their kernels and the interface to generated code. Its modules are also
//!   modules of this crate, so that a generated crate has one dependency.
//! - The devices in [`measure`] capture, record and time the passes of another device.
//! - [`engine`] runs batches of tokens and returns logits.
//! - [`text`] has the tokenizer and chat templates.
//! - [`session`] generates one sequence; `serve` batches many requests.
//! - [`load`] makes an engine from files; [`cli`] is the command line.

pub mod cli;
pub mod engine;
pub mod load;
pub mod measure;
#[cfg(feature = "serve")]
pub mod serve;
pub mod session;
pub mod text;

pub use forge_device::{cpu, device, error, gpu, model, offload, program, sampling, tuning_space, weights};
pub use forge_device::{f16, ops};
