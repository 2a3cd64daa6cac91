//! `cargo xtask test`: all checks that a change must pass, fastest first.

use crate::checks::durations::Durations;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;

/// Runs all checks.
pub(crate) fn test() -> Result<(), String> {
    ensure_clang()?;
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    // Only `cargo xtask gpu` builds this feature.
    cargo(&["clippy", "--package", "forge-sim", "--features", "gpu", "--", "-D", "warnings"])?;
    // Rustdoc with warnings as errors, mainly for broken links.
    run(Command::new(env!("CARGO"))
        .args(["doc", "--workspace", "--no-deps", "--document-private-items"])
        .env("RUSTDOCFLAGS", "-D warnings"))?;
    // Reports all failures at once.
    timed_tests(&["test", "--workspace", "--no-fail-fast"])
}

/// Runs `cargo test` with these arguments, prints its output, and then the test programs that took longest.
pub(crate) fn timed_tests(arguments: &[&str]) -> Result<(), String> {
    eprintln!("$ cargo {}", arguments.join(" "));
    let failed = |error: std::io::Error| format!("cargo {}: {error}", arguments.join(" "));
    // One pipe for both, because cargo names a program on standard error and its duration is on standard output.
    let (output, input) = std::io::pipe().map_err(failed)?;
    let mut command = Command::new(env!("CARGO"));
    command.args(arguments).stdout(input.try_clone().map_err(failed)?).stderr(input);
    let mut child = command.spawn().map_err(failed)?;
    // This process's ends of the pipe, so that the output ends with the child.
    drop(command);
    let mut durations = Durations::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = String::from_utf8_lossy(&line.map_err(failed)?).into_owned();
        durations.read(&line);
        println!("{line}");
    }
    print!("{durations}");
    if child.wait().map_err(failed)?.success() {
        Ok(())
    } else {
        Err(format!("cargo {} failed", arguments.join(" ")))
    }
}

/// Ensures that clang is installed, which the kernel checker needs. Installs it if that needs no password; otherwise returns an
/// error with the command to type.
fn ensure_clang() -> Result<(), String> {
    if forge_kernels::check::find_clang().is_some() {
        return Ok(());
    }
    if cfg!(target_os = "macos") {
        return Err("the kernel checker needs clang; type: xcode-select --install".to_owned());
    }
    let root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n");
    if !(root && Path::new("/usr/bin/apt-get").exists()) {
        return Err(
            "the kernel checker needs clang 15 or later; type: sudo apt-get install clang-19 (or clang-16)"
                .to_owned(),
        );
    }
    run(Command::new("apt-get").args(["update", "--quiet"]))?;
    // Debian releases have different versions; any of these is sufficient.
    let packages = ["clang-19", "clang-16", "clang"];
    let installed = packages.into_iter().any(|package| {
        let mut command = Command::new("apt-get");
        command.args(["install", "--yes", "--quiet", package]).env("DEBIAN_FRONTEND", "noninteractive");
        run(&mut command).is_ok() && forge_kernels::check::find_clang().is_some()
    });
    if installed {
        Ok(())
    } else {
        Err(format!("none of {} could be installed by apt-get", packages.join(", ")))
    }
}

/// Runs cargo.
pub(crate) fn cargo(arguments: &[&str]) -> Result<(), String> {
    run(Command::new(env!("CARGO")).args(arguments))
}

/// Prints and runs a command.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let program =
        Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
    let shown = format!("{program} {}", arguments.join(" "));
    eprintln!("$ {shown}");
    let status = command.status().map_err(|error| format!("{shown}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{shown} failed")) }
}
