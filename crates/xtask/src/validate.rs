//! `cargo xtask validate`: Apple's own compiler over rendered kernels. Only a Mac has it.

use std::path::PathBuf;
use std::process::Command;

/// Compiles each file with `xcrun metal` as the version of the language that the host code asks for, warnings as errors.
pub(crate) fn validate(files: &[PathBuf]) -> Result<(), String> {
    if !cfg!(target_os = "macos") {
        return Err(
            "Apple's Metal compiler runs on a Mac only; here, `forge verify` executes the kernels".to_owned()
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
