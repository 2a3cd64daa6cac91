//! `cargo xtask test`: what must pass before anything lands, in the order in which it fails fastest.

use std::path::Path;
use std::process::Command;

/// Runs everything.
pub(crate) fn test() -> Result<(), String> {
    have_clang()?;
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    // What only `cargo xtask gpu` builds.
    cargo(&["clippy", "--package", "forge-sim", "--features", "card", "--", "-D", "warnings"])?;
    // Pages for which something is missing, most of all what links name.
    run(Command::new(env!("CARGO"))
        .args(["doc", "--workspace", "--no-deps", "--document-private-items"])
        .env("RUSTDOCFLAGS", "-D warnings"))?;
    // Everything that is wrong is told at once.
    cargo(&["test", "--workspace", "--no-fail-fast"])
}

/// The referee compiles kernels with clang. Where it is missing it is installed if that needs nobody's password;
/// otherwise the tests stop here, and say what to type.
fn have_clang() -> Result<(), String> {
    if forge_kernels::check::find_clang().is_some() {
        return Ok(());
    }
    if cfg!(target_os = "macos") {
        return Err("the referee needs clang; type: xcode-select --install".to_owned());
    }
    let root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n");
    if !(root && Path::new("/usr/bin/apt-get").exists()) {
        return Err("the referee needs clang 15 or later; type: sudo apt-get install clang-19 (or clang-16)"
            .to_owned());
    }
    run(Command::new("apt-get").args(["update", "--quiet"]))?;
    // Debian's releases carry different versions; any of these will do.
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

/// Runs a command, shown as it would be typed.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let program =
        Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
    let shown = format!("{program} {}", arguments.join(" "));
    eprintln!("$ {shown}");
    let status = command.status().map_err(|error| format!("{shown}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{shown} failed")) }
}
