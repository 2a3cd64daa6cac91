//! `cargo xtask races`: runs the CPU device's tests under ThreadSanitizer. The standard library is instrumented too, because
//! uninstrumented synchronization causes false positives.

use crate::checks::test::run;
use std::process::Command;

/// A target that supports ThreadSanitizer.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Tests of the thread pool, the kernels and their callers.
pub(crate) const TESTS: [&str; 8] =
    ["attention", "chain", "matmul", "mla", "model", "moe", "recurrent", "recurrent_state"];

/// Tests that repeat what others run with several threads, for more row counts and epilogues. They take two thirds of
/// the time.
const SKIPPED: [&str; 2] = ["projections_are_batch_invariant", "deferred_norms_and_epilogues_are_exact"];

/// Features of the tested packages.
pub(crate) const FEATURES: &str = "cpu-kernels,tune";

/// Checks of pointers and of integer arithmetic, which other builds of the kernels leave out.
const CHECKS: [&str; 3] = [
    "profile.dev.package.forge-device.opt-level=2",
    "profile.dev.package.forge-device.debug-assertions=true",
    "profile.dev.package.forge-device.overflow-checks=true",
];

/// Builds and runs the tests.
pub(crate) fn races() -> Result<(), String> {
    let mut command = Command::new(env!("CARGO"));
    command
        .args([
            "test",
            "-Zbuild-std",
            "--target",
            TARGET,
            "--package",
            "forge-device",
            "--package",
            "forge-runtime",
        ])
        .args(["--no-default-features", "--features", FEATURES, "--no-fail-fast", "--lib"])
        .args(TESTS.iter().flat_map(|test| ["--test", test]))
        .args(CHECKS.iter().flat_map(|check| ["--config", check]))
        .arg("--")
        .args(SKIPPED.iter().flat_map(|test| ["--skip", test]));
    // Sanitizers are unstable, so a stable compiler needs RUSTC_BOOTSTRAP.
    command.env("RUSTC_BOOTSTRAP", "1");
    command.env("RUSTFLAGS", "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer");
    run(&mut command).map_err(|error| {
        format!("{error}; if the standard library's source is missing, type: rustup component add rust-src")
    })
}
