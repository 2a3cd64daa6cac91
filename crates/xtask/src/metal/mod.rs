//! `cargo xtask metal`: compiles models, runs them on the Metal GPU of this machine, and checks the results.
//!
//! It is for continuous integration on hosted Macs. A machine without a usable GPU fails, and so does a program
//! that dispatched nothing. No times are reported: the GPU of a virtual machine says nothing about a Mac's.

mod build;
mod check;

pub use check::{MetalProgram, check_programs};

use std::path::Path;

/// Models of `tests/models` that are run, with weight formats. Together they have all kinds of layers.
const MODELS: [(&str, &[&str]); 8] = [
    ("llama", &["f32", "f16", "bf16", "q8_0", "q4_0"]),
    ("qwen3", &["f32", "q4_0"]),
    ("gemma2", &["f32"]),
    ("gpt2", &["f32"]),
    ("qwen3_moe", &["f32", "q8_0"]),
    ("deepseek_v3", &["f32"]),
    ("qwen3_next", &["f32"]),
    ("gpt_oss", &["f32"]),
];

/// Builds the programs in the directory `out` and checks them. `only` selects models by name.
pub fn metal(root: &Path, out: &Path, only: &[String]) -> Result<(), String> {
    let programs = build::build(root, out, only)?;
    check_programs(&programs, &[]).map(|summary| println!("{summary}"))
}
