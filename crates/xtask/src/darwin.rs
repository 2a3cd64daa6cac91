//! `cargo xtask darwin`: what every program carries, checked as for a Mac, on any system: the Metal device and whatever else only
//! Apple's systems compile. Nothing is linked and nothing runs.

use crate::test::cargo;

const TARGET: &str = "aarch64-apple-darwin";

/// Runs clippy for a Mac, without warnings.
pub(crate) fn darwin() -> Result<(), String> {
    let arguments =
        ["clippy", "-p", "forge-runtime", "--lib", "--bins", "--target", TARGET, "--", "-D", "warnings"];
    cargo(&arguments)
        .map_err(|error| format!("{error}; if the target is not installed, type: rustup target add {TARGET}"))
}
