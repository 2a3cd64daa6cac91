//! The programs of all models for macOS, on any system: code that only compiles there is linted, and the programs are linked.
//! Nothing is executed.
//!
//! `sdk` replaces Apple's SDK with lists of the exported symbols that programs use. A missing symbol means that no program has
//! used it before: check Apple's documentation and add it. (The C functions are all in the `libSystem` list of other cross
//! compilers, version 1359.)
//!
//! The test needs Rust's standard library for `aarch64-apple-darwin`, which is a download: `cargo xtask darwin` runs it.

use std::path::{Path, PathBuf};
use std::process::Command;
use tests::{PROGRAMS, compile_member, model, models, root, run, scratch, write_programs};

const TARGET: &str = "aarch64-apple-darwin";

/// A model with attention and experts.
const TUNABLE: &str = "qwen3_moe";

/// The linker that comes with Rust.
fn linker() -> PathBuf {
    let output = run(Command::new("rustc").args(["--print", "sysroot"]));
    let sysroot = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let host = run(Command::new("rustc").args(["--print", "host-tuple"]));
    let host = String::from_utf8_lossy(&host.stdout).trim().to_owned();
    sysroot.join("lib/rustlib").join(host).join("bin/rust-lld")
}

/// Cargo for a Mac, in a workspace.
fn cargo(workspace: &Path, arguments: &[&str]) {
    let environment = [
        ("CARGO_TARGET_DIR", scratch().join("darwin/target")),
        ("CARGO_BUILD_TARGET", PathBuf::from(TARGET)),
        ("CARGO_TARGET_AARCH64_APPLE_DARWIN_LINKER", linker()),
        ("CARGO_TARGET_AARCH64_APPLE_DARWIN_RUSTFLAGS", PathBuf::from("-Clinker-flavor=ld64.lld")),
        ("SDKROOT", root().join("tests/darwin/sdk")),
    ];
    let mut command = Command::new(env!("CARGO"));
    run(command.args(arguments).current_dir(workspace).envs(environment));
}

#[test]
#[ignore = "takes Rust's standard library for a Mac: cargo xtask darwin"]
fn programs_of_all_models_are_clean_and_link() {
    let workspace = scratch().join("darwin");
    let names = models();
    for name in &names {
        // One crate has candidate layouts for `tune`.
        let more = (name == TUNABLE).then_some("--with-tuning");
        let arguments: Vec<&str> =
            ["--quant", "f32", "--no-reference-logits"].into_iter().chain(more).collect();
        compile_member(&model(name), &arguments, &workspace.join(name));
    }
    write_programs(&workspace, &names);
    let members = names.iter().map(String::as_str).chain([PROGRAMS]);
    let members: Vec<String> = members.map(|name| format!("{name:?}")).collect();
    // Nothing is executed, so no optimization is needed.
    let manifest = format!(
        "[workspace]\nresolver = \"3\"\nmembers = [{}]\n[profile.dev]\nopt-level = 0\ndebug = false\n",
        members.join(", ")
    );
    std::fs::write(workspace.join("Cargo.toml"), manifest).expect("the build folder is writable");
    let lock = workspace.join("Cargo.lock");
    if !lock.exists() {
        std::fs::copy(root().join("Cargo.lock"), lock).expect("the build folder is writable");
    }
    cargo(&workspace, &["clippy", "--workspace", "--", "-D", "warnings"]);
    cargo(&workspace, &["build", "--package", PROGRAMS]);
    let program = workspace.join("target").join(TARGET).join("debug").join(PROGRAMS);
    let bytes = std::fs::read(&program).unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    // A Mach-O file of 64 bits, for a processor of ARM's, that is a program.
    let words = bytes.chunks_exact(4).take(4).map(|word| [word[0], word[1], word[2], word[3]]);
    let words: Vec<u32> = words.map(u32::from_le_bytes).collect();
    assert_eq!([words[0], words[1], words[3]], [0xfeed_facf, 0x0100_000c, 2]);
}
