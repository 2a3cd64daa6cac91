//! `cargo xtask races`: what runs on the CPU device's threads, under ThreadSanitizer, which watches every access of every
//! thread. The standard library is built for it too, since whatever it does not watch it takes for a race.

use crate::test::run;
use std::process::Command;

/// Where ThreadSanitizer is to be had.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Tests of the pool, of kernels and of what drives them.
pub(crate) const TESTS: [&str; 8] =
    ["attention", "chain", "experts", "kernels", "latents", "memories", "model", "recurrent"];

/// Runs them.
pub(crate) fn races() -> Result<(), String> {
    let mut command = Command::new(env!("CARGO"));
    command
        .args(["test", "-Zbuild-std", "--target", TARGET, "--package", "forge-runtime"])
        .args(["--no-default-features", "--features", "cpu-kernels", "--no-fail-fast", "--lib"])
        .args(TESTS.iter().flat_map(|test| ["--test", test]));
    // The sanitizer is a feature of Rust that is not stable; the compiler is.
    command.env("RUSTC_BOOTSTRAP", "1");
    command.env("RUSTFLAGS", "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer");
    run(&mut command).map_err(|error| {
        format!("{error}; if the standard library's source is missing, type: rustup component add rust-src")
    })
}
