//! `cargo xtask metal`: compiles models, runs them on the Metal GPU of this machine, and checks the results.
//!
//! It is for continuous integration on hosted Macs. A machine without a usable GPU fails, and so does a program
//! that dispatched nothing. No times are reported: the GPU of a virtual machine says nothing about a Mac's.

mod build;
mod check;
mod models;

pub use check::{MetalProgram, check_programs};

use std::path::Path;

/// Builds the programs in the directory `out` and checks them. `only` selects models by name.
pub fn metal(root: &Path, out: &Path, only: &[String]) -> Result<(), String> {
    let programs = build::build(root, out, only)?;
    check_programs(&programs, &[]).map(|summary| println!("{summary}"))
}
