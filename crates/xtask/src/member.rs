//! Generated crates as members of one workspace, so that one `cargo build` builds them side by side.

use std::path::Path;

/// Turns a generated crate, which is its own workspace, into a member of the enclosing workspace. It does not ask for the
/// server: what the workspace enables of the runtime, all members have.
pub fn make_member(directory: &Path) -> Result<(), String> {
    let file = directory.join("Cargo.toml");
    let trouble = |error: std::io::Error| format!("{}: {error}", file.display());
    let text = std::fs::read_to_string(&file).map_err(trouble)?;
    // Profiles and the lock file come from the workspace.
    let (member, _) = text
        .split_once("# CPU kernels are very slow without optimization.")
        .ok_or_else(|| format!("{}: unexpected content: {text}", file.display()))?;
    let member = member.replace("default = [\"serve\"]", "default = []");
    std::fs::write(&file, member).map_err(trouble)?;
    let lock = directory.join("Cargo.lock");
    std::fs::remove_file(&lock).map_err(|error| format!("{}: {error}", lock.display()))
}
