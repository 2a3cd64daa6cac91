//! `cargo xtask arm`: runs the CPU device's tests for 64-bit ARM in QEMU, which supports all instruction set extensions. The
//! results are checked as on any machine; the speed is meaningless.

use crate::checks::races::{FEATURES, TESTS};
use crate::checks::test::run;
use std::process::Command;

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// The command that runs ARM programs, with the sysroot of their libraries.
const RUNNER: &str = "qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu";

/// Builds and runs the tests.
pub(crate) fn arm() -> Result<(), String> {
    let needs = [("qemu-aarch64", "qemu-user"), ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu")];
    for (program, package) in needs {
        if Command::new(program).arg("--version").output().is_err() {
            return Err(format!(
                "{program} not found; on Debian or Ubuntu type: sudo apt-get install {package}"
            ));
        }
    }
    // Intrinsics of an ISA level must be inlined into functions of that level, or the assembler rejects them. An optimized build
    // inlines them anyway and hides the error.
    let unoptimized = "profile.dev.package.forge-device.opt-level=0";
    run(cargo("build").args(["--lib", "--config", unoptimized])).map_err(missing)?;
    let tests = TESTS.iter().flat_map(|test| ["--test", test]);
    run(cargo("test").args(["--no-fail-fast", "--lib"]).args(tests)).map_err(missing)
}

fn missing(error: String) -> String {
    format!("{error}; if the Rust target is missing, type: rustup target add {TARGET}")
}

/// A cargo command for ARM on the runtime crate.
fn cargo(what: &str) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args([what, "--target", TARGET, "--package", "forge-device", "--package", "forge-runtime"]);
    command.args(["--no-default-features", "--features", FEATURES]);
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", RUNNER);
    // For C code in dependencies.
    command.env("CC_aarch64_unknown_linux_gnu", "aarch64-linux-gnu-gcc");
    command
}
