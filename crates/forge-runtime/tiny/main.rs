//! A generated crate in small: two layers, written by hand. The tests run it as a program and check it as a model.

#![allow(
    unreachable_pub,
    missing_docs,
    reason = "a generated crate is a program, and has no workspace lints"
)]

mod kernels;
mod model;
use forge_runtime as runtime;

fn main() -> std::process::ExitCode {
    runtime::cli::main::<model::Tiny>(&runtime::open::Program {
        directory: env!("CARGO_MANIFEST_DIR"),
        metal: "",
        metallib: None,
        #[cfg(feature = "cuda")]
        ptx: &[],
        kernels: kernels::ALL,
        tunable: None,
    })
}
