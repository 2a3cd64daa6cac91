//! `cargo xtask validate`: compiles generated kernels with Apple's Metal compiler, on macOS.

use std::path::PathBuf;
use std::process::Command;

/// Compiles each file with `xcrun metal`, with the language version of the host code, warnings as errors.
pub(crate) fn validate(files: &[PathBuf]) -> Result<(), String> {
    if !cfg!(target_os = "macos") {
        return Err(
            "Apple's Metal compiler needs macOS; use `forge verify` to check the kernels here".to_owned()
        );
    }
    for file in files {
        let mut command = Command::new("xcrun");
        command
            .args(["-sdk", "macosx", "metal", "-std=metal3.0", "-fno-fast-math", "-Wall", "-Werror", "-c"])
            .arg(file)
            .args(["-o", "/dev/null"]);
        let status =
            command.status().map_err(|error| format!("xcrun: {error}; type: xcode-select --install"))?;
        if !status.success() {
            return Err(format!("{} does not compile", file.display()));
        }
        println!("{}: compiles without warnings", file.display());
    }
    Ok(())
}
