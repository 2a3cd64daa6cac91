//! What every generated crate depends on: devices that run a model's forward passes, and the program around them.
//!
//! `forge` copies this crate into each crate that it writes, as `runtime/`. A generated crate adds `model.rs`, which implements
//! [`model::Model`], `kernels.rs`, which holds a [`device::Kernel`] for each kernel of `kernels.metal`, `lib.rs` with the
//! [`program::Program`] that they make, and `main.rs`, which lists the commands of its [`cli`].
//!
//! From the bottom up: [`weights`] maps the weight file; [`device`] defines what a device is; [`cpu`] and [`gpu`] are devices, and
//! so are the ones in [`measure`], which capture, record and time what another executes. [`model`] is the interface to generated
//! code, [`offload`] the cache of experts that are read from disk. [`engine`] runs batches of tokens and returns logits;
//! [`sampling`] chooses the next token; [`text`] has the tokenizer and chat templates. [`session`] generates one sequence,
//! [`load`] makes an engine from files, `serve` answers many clients, and [`cli`] is the program.

pub(crate) mod atomic_write;
pub mod cli;
#[cfg_attr(
    not(feature = "cpu-kernels"),
    allow(dead_code, unused_imports, reason = "a model needs few of the kernels")
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

pub use half::f16;
