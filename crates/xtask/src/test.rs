//! `cargo xtask test`: all checks that a change must pass, fastest first.

use std::path::Path;
use std::process::Command;

/// Runs all checks.
pub(crate) fn test() -> Result<(), String> {
    ensure_clang()?;
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    // Only `cargo xtask gpu` builds this feature.
    cargo(&["clippy", "--package", "forge-sim", "--features", "card", "--", "-D", "warnings"])?;
    // Rustdoc with warnings as errors, mainly for broken links.
    run(Command::new(env!("CARGO"))
        .args(["doc", "--workspace", "--no-deps", "--document-private-items"])
        .env("RUSTDOCFLAGS", "-D warnings"))?;
    // Reports all failures at once.
    cargo(&["test", "--workspace", "--no-fail-fast"])
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
