//! `cargo xtask darwin`: checks code that only compiles for macOS and iOS, on any system. It lints the runtime, lints and links the
//! programs of all models for macOS, and lints and links an app's library for iOS. Nothing is executed.

use crate::checks::test::cargo;

const TARGETS: [&str; 2] = ["aarch64-apple-darwin", "aarch64-apple-ios"];

/// Runs clippy for macOS and iOS on the runtime, and on the programs and libraries of models, which it also links.
pub(crate) fn darwin() -> Result<(), String> {
    for target in TARGETS {
        let packages = ["clippy", "-p", "forge-device", "-p", "forge-runtime", "--lib", "--bins"];
        let runtime = [&packages[..], &["--target", target, "--", "-D", "warnings"]].concat();
        cargo(&runtime).map_err(|error| {
            format!("{error}; if the target is not installed, type: rustup target add {target}")
        })?;
    }
    // In the workspace, because a single package would rebuild its dependencies with fewer features.
    cargo(&["test", "--workspace", "--test", "darwin", "--", "--ignored"])
}
