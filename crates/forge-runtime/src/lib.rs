//! What every generated crate depends on: devices that run a model's forward passes, and the program around them.
//!
//! `forge` copies this crate into each crate that it writes, as `runtime/`. A generated crate adds `model.rs`, which implements
//! [`model::Model`], `kernels.rs`, which holds a [`device::Kernel`] for each kernel of `kernels.metal`, `lib.rs` with the
//! [`program::Program`] that they make, and `main.rs`, which lists the commands of its [`cli`].
//!
//! From the bottom up: [`weights`] maps the weight file, [`device`] says what a device is, [`cpu`] and `metal` are
//! devices, [`recorder`] is one that only takes notes and [`notes`] one that has what it notes done, of which [`profile`] and [`tune`] make tables; [`model`] is the seam to the generated code, and [`state`] where
//! it has what slots remember; [`experts`] reads from disk what memory has no room for; [`engine`] feeds ids through a model and gives logits back; [`sampler`] and [`text`] turn logits to ids and ids to text, which
//! [`completion`] does for one text that is being written; [`template`] makes text of conversations; [`open`] makes an
//! engine out of files, [`session`] holds one conversation on it, and `serve` many; [`cli`] is the program.

pub mod cli;
pub mod completion;
#[cfg_attr(
    not(feature = "cpu-kernels"),
    allow(dead_code, unused_imports, reason = "a model needs few of the kernels")
)]
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod device;
pub mod draw;
pub mod engine;
pub mod experts;
pub mod failure;
pub mod golden;
pub mod memory;
#[cfg(target_vendor = "apple")]
pub mod metal;
pub mod model;
pub mod notes;
pub mod open;
pub mod profile;
pub mod program;
pub mod published;
pub mod recorder;
pub mod sampler;
#[cfg(feature = "serve")]
pub mod serve;
pub mod session;
pub mod state;
pub mod template;
pub mod text;
pub mod tune;
pub mod weights;
mod whole;
pub mod work;

pub use half::f16;
