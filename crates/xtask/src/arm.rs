//! `cargo xtask arm`: the CPU device's kernels as 64-bit ARM runs them, on a machine that is none: built for it, and executed by an emulator
//! that knows all of its instructions. What comes out is compared as everywhere; how fast it is says nothing.

use crate::races::TESTS;
use crate::test::run;
use std::process::Command;

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// What runs a program for ARM, with the libraries that it was linked with.
const RUNNER: &str = "qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu";

/// Runs them.
pub(crate) fn arm() -> Result<(), String> {
    let needs = [("qemu-aarch64", "qemu-user"), ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu")];
    for (program, package) in needs {
        if Command::new(program).arg("--version").output().is_err() {
            return Err(format!(
                "there is no {program}: on Debian or Ubuntu type: sudo apt-get install {package}"
            ));
        }
    }
    // A level's instructions have to be inlined into its functions, or the assembler refuses them; where everything is optimised
    // they are, whatever is written.
    let unoptimised = "profile.dev.package.forge-runtime.opt-level=0";
    run(cargo("build").args(["--lib", "--config", unoptimised])).map_err(missing)?;
    let tests = TESTS.iter().flat_map(|test| ["--test", test]);
    run(cargo("test").args(["--no-fail-fast", "--lib"]).args(tests)).map_err(missing)
}

fn missing(error: String) -> String {
    format!("{error}; if Rust's library for ARM is missing, type: rustup target add {TARGET}")
}

/// Cargo for ARM, for the runtime with its kernels.
fn cargo(what: &str) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args([what, "--target", TARGET, "--package", "forge-runtime"]);
    command.args(["--no-default-features", "--features", "cpu-kernels,tune"]);
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", RUNNER);
    // For what of C there is in dependencies.
    command.env("CC_aarch64_unknown_linux_gnu", "aarch64-linux-gnu-gcc");
    command
}
