//! Embeds the source and the manifest of `forge-runtime`, which generated crates include.
//!
//! `include_dir` is not used: on stable Rust it does not detect changed files.

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The manifest is copied up to this line.
const MARKER: &str = "# Only in forge's repository:\n";

fn main() {
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("../forge-runtime");
    for path in ["src", "Cargo.toml"] {
        println!("cargo:rerun-if-changed={}", root.join(path).display());
    }
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).expect("the runtime has a manifest");
    let (manifest, _) = manifest.split_once(MARKER).expect("the runtime's manifest has the marker");
    let mut files = Vec::new();
    collect(&root.join("src"), &mut files);
    files.sort();
    let mut list = String::new();
    for path in files {
        println!("cargo:rerun-if-changed={}", path.display());
        let inside =
            path.strip_prefix(&root).expect("it was found there").to_string_lossy().replace('\\', "/");
        writeln!(list, "    ({inside:?}, include_str!({:?})),", path.display().to_string()).expect("memory");
    }
    let text =
        format!("const MANIFEST: &str = {manifest:?};\n\nconst FILES: &[(&str, &str)] = &[\n{list}];\n");
    let out = PathBuf::from(variable("OUT_DIR")).join("runtime.rs");
    std::fs::write(out, text).expect("the build folder is writable");
}

fn variable(name: &str) -> String {
    std::env::var(name).expect("cargo sets it")
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("the runtime's source is beside this crate").flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "html") {
            files.push(path);
        }
    }
}
