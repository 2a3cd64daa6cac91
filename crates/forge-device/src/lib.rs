//! The devices that execute a compiled model's kernels: the CPU with its own kernels, Metal and CUDA.
//!
//! `forge` copies this crate into each crate that it writes, as `runtime/device/`. It contains what generated code
//! refers to, and nothing above one forward pass: text, batching, the command line and the server are in
//! `forge-runtime`.
//!
//! Modules, from the bottom up:
//!
//! - [`ops`] declares the operations.
//! - [`weights`] maps the weight file.
//! - [`device`] defines the device interface; [`cpu`] and [`gpu`] implement it.
//! - [`model`] is the interface to generated code; [`program`] is what a generated crate declares, and
//!   [`tuning_space`] the kernels that it may contain for `tune`.
//! - [`offload`] is the cache of experts that are streamed from disk.
//! - [`sampling`] chooses the next token.

pub mod atomic_write;
#[cfg_attr(
    not(feature = "cpu-kernels"),
    allow(dead_code, unused_imports, reason = "a model uses a subset of the kernels")
)]
pub mod cpu;
pub mod device;
pub mod error;
pub mod gpu;
pub mod model;
pub mod offload;
pub mod program;
pub mod sampling;
pub mod tuning_space;
pub mod weights;

pub use forge_ops as ops;
pub use half::f16;
