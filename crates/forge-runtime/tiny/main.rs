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
    runtime::cli::main(&PROGRAM, runtime::cli::COMMANDS)
}

static PROGRAM: runtime::program::CompiledModel = runtime::program::CompiledModel {
    directory: env!("CARGO_MANIFEST_DIR"),
    metal: "",
    metallib: None,
    tensor_metallib: None,
    ptx: &[],
    info: &model::INFO,
    load: model::Tiny::load,
    kernels: kernels::ALL,
    tunable: None,
};
