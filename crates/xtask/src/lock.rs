//! `cargo xtask lock`: writes the `Cargo.lock` of generated crates, with the same versions as this workspace.

use std::path::Path;
use std::process::Command;

/// A temporary package that depends on the runtime.
const MANIFEST: &str = "[package]\nname = \"generated\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n\
                        [dependencies]\nforge-runtime = { path = \"runtime\" }\n\n[workspace]\n";

/// The lock file, without the temporary package.
pub(crate) fn lock(root: &Path) -> Result<String, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let write = |path: &str, bytes: &[u8]| {
        let file = folder.path().join(path);
        let made = std::fs::create_dir_all(file.parent().unwrap_or(folder.path()));
        made.and_then(|()| std::fs::write(&file, bytes))
            .map_err(|error| format!("{}: {error}", file.display()))
    };
    write("Cargo.toml", MANIFEST.as_bytes())?;
    write("src/lib.rs", b"")?;
    for (path, bytes) in forge_codegen::runtime() {
        write(&format!("runtime/{path}"), &bytes)?;
    }
    let all = std::fs::read(root.join("Cargo.lock")).map_err(|error| format!("Cargo.lock: {error}"))?;
    write("Cargo.lock", &all)?;
    // Cargo removes unused packages from the lock file.
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1"])
        .current_dir(folder.path())
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let text =
        std::fs::read_to_string(folder.path().join("Cargo.lock")).map_err(|error| error.to_string())?;
    let packages = text.split("\n\n").filter(|package| !package.contains("name = \"generated\""));
    Ok(packages.collect::<Vec<_>>().join("\n\n").trim_end().to_owned() + "\n")
}

/// Writes the lock file to the templates.
pub(crate) fn write(root: &Path) -> Result<(), String> {
    let file = root.join("templates/crate/Cargo.lock");
    std::fs::write(&file, lock(root)?).map_err(|error| format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn crate_lock_file_matches_the_workspace() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let written = std::fs::read_to_string(root.join("templates/crate/Cargo.lock")).unwrap();
        assert_eq!(written, super::lock(&root).unwrap(), "cargo xtask lock");
    }
}
