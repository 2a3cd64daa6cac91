//! `cargo xtask darwin`: what only Apple's systems compile, checked on any system: the runtime, and every model's program, which
//! is linked too. Nothing runs.

use crate::test::cargo;

const TARGET: &str = "aarch64-apple-darwin";

/// Runs clippy for a Mac, without warnings, over the runtime, and over the programs of all models, and links these.
pub(crate) fn darwin() -> Result<(), String> {
    let runtime =
        ["clippy", "-p", "forge-runtime", "--lib", "--bins", "--target", TARGET, "--", "-D", "warnings"];
    cargo(&runtime).map_err(|error| {
        format!("{error}; if the target is not installed, type: rustup target add {TARGET}")
    })?;
    // As a part of the workspace: alone it would have dependencies with fewer features, all built once more.
    cargo(&["test", "--workspace", "--test", "darwin", "--", "--ignored"])
}
