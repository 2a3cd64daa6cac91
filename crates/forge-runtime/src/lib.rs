//! What every generated crate carries: devices that run a model's passes, and the program around them.
//!
//! `forge` pastes this folder into each generated crate as `src/runtime/`, this file as its `mod.rs`; so modules
//! name each other by `super::` alone, and nothing here knows `forge`. A generated crate adds three files:
//! `model.rs` implements [`model::Model`], `kernels.rs` holds one [`device::Kernel`] for each kernel of
//! `kernels.metal`, and `main.rs` is
//!
//! ```ignore
//! mod kernels;
//! mod model;
//! #[allow(dead_code, reason = "the runtime is the same for every model; no model needs all of it")]
//! mod runtime;
//!
//! fn main() -> std::process::ExitCode {
//!     runtime::cli::main::<model::Llama>(&runtime::cli::Program {
//!         directory: env!("CARGO_MANIFEST_DIR"),
//!         metal: include_str!("kernels.metal"),
//!         kernels: kernels::ALL,
//!     })
//! }
//! ```
//!
//! and a `Cargo.toml` (edition 2024, Rust 1.90) with these dependencies, none of which builds any C:
//!
//! ```toml
//! [dependencies]
//! clap = { version = "4.6", default-features = false, features = ["std", "derive", "help", "usage", "error-context", "suggestions"] }
//! half = { version = "2.7", default-features = false, features = ["std"] }
//! memmap2 = "0.9"
//! safetensors = { version = "0.8", default-features = false, features = ["alloc"] }
//! serde = { version = "1.0", features = ["derive"] }
//! serde_json = "1.0"
//! tokenizers = { version = "0.23", default-features = false, features = ["fancy-regex"] }
//!
//! [target.'cfg(target_vendor = "apple")'.dependencies]
//! objc2 = "0.6.5"
//! objc2-foundation = { version = "0.3.2", default-features = false, features = ["std", "NSString", "NSError"] }
//! objc2-metal = { version = "0.3.2", default-features = false, features = ["std", "block2", "MTLAllocation", "MTLBuffer", "MTLCommandBuffer", "MTLCommandEncoder", "MTLCommandQueue", "MTLComputeCommandEncoder", "MTLComputePipeline", "MTLDevice", "MTLLibrary", "MTLResource", "MTLTypes"] }
//!
//! [profile.dev]
//! opt-level = 3 # kernels that are not inlined are far slower
//! ```
//!
//! From the bottom up: [`weights`] maps the weight file, [`device`] says what a device is, [`cpu`] and `metal` are
//! devices and [`recorder`] is one that only takes notes; [`model`] is the seam to the generated code; [`engine`]
//! feeds ids through a model and gives logits back; [`sampler`] and [`text`] turn logits to ids and ids to text;
//! [`cli`] is the program.

pub mod cli;
pub mod cpu;
pub mod device;
pub mod engine;
pub mod failure;
pub mod golden;
pub mod memory;
#[cfg(target_vendor = "apple")]
pub mod metal;
pub mod model;
pub mod recorder;
pub mod sampler;
pub mod text;
pub mod weights;
