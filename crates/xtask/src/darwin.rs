//! `cargo xtask darwin`: checks code that only compiles for macOS, on any system. It lints the runtime, and
//! lints and links the programs of all models. Nothing is executed.

use crate::test::cargo;

const TARGET: &str = "aarch64-apple-darwin";

/// Runs clippy for macOS on the runtime and on the programs of all models, and links the programs.
pub(crate) fn darwin() -> Result<(), String> {
    let runtime = [
        "clippy",
        "-p",
        "forge-device",
        "-p",
        "forge-runtime",
        "--lib",
        "--bins",
        "--target",
        TARGET,
        "--",
        "-D",
        "warnings",
    ];
    cargo(&runtime).map_err(|error| {
        format!("{error}; if the target is not installed, type: rustup target add {TARGET}")
    })?;
    // In the workspace, because a single package would rebuild its dependencies with fewer features.
    cargo(&["test", "--workspace", "--test", "darwin", "--", "--ignored"])
}
