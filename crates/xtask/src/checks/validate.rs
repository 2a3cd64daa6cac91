//! `cargo xtask validate`: compiles generated kernels with Apple's Metal compiler, on macOS.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Safe math and precise functions, as options of Xcode 16 and later.
const MATH: [&str; 2] = ["-fmetal-math-mode=safe", "-fmetal-math-fp32-functions=precise"];

/// Compiles each file with `xcrun metal`, with the language version and the math of the host code, warnings as
/// errors.
pub(crate) fn validate(files: &[PathBuf]) -> Result<(), String> {
    if !cfg!(target_os = "macos") {
        return Err(
            "Apple's Metal compiler needs macOS; use `forge verify` to check the kernels here".to_owned()
        );
    }
    // Before Xcode 16 one option sets both.
    let math = if compiles(Path::new("/dev/null"), &MATH, true)? { &MATH[..] } else { &["-fno-fast-math"] };
    for file in files {
        if !compiles(file, math, false)? {
            return Err(format!("{} does not compile", file.display()));
        }
        println!("{}: compiles without warnings", file.display());
    }
    Ok(())
}

/// Whether a file compiles with these options. `is_quiet` hides the messages.
fn compiles(file: &Path, math: &[&str], is_quiet: bool) -> Result<bool, String> {
    let mut command = Command::new("xcrun");
    command.args(["-sdk", "macosx", "metal", "-std=metal3.0", "-Wall", "-Werror", "-x", "metal", "-c"]);
    command.args(math).arg(file).args(["-o", "/dev/null"]);
    if is_quiet {
        command.stderr(std::process::Stdio::null());
    }
    let status = command.status().map_err(|error| format!("xcrun: {error}; type: xcode-select --install"))?;
    Ok(status.success())
}
