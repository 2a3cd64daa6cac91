//! Embeds the sources and the manifests of `forge-runtime`, `forge-device` and `forge-ops`, which generated crates
//! include.
//!
//! `include_dir` is not used: on stable Rust it does not detect changed files.

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Manifests are copied up to this line.
const MARKER: &str = "# Only in forge's repository:\n";

/// The packages, and their directories within the runtime of a generated crate.
const PACKAGES: [(&str, &str); 3] =
    [("forge-runtime", ""), ("forge-device", "device/"), ("forge-ops", "ops/")];

fn main() {
    let crates = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("..");
    let mut list = String::new();
    for (package, place) in PACKAGES {
        let root = crates.join(package);
        for path in ["src", "Cargo.toml"] {
            println!("cargo:rerun-if-changed={}", root.join(path).display());
        }
        let manifest = std::fs::read_to_string(root.join("Cargo.toml")).expect("the package has a manifest");
        let (manifest, _) = manifest.split_once(MARKER).expect("the manifest has the marker");
        // From a package's directory to the directory of the runtime.
        let up = if place.is_empty() { "" } else { "../" };
        let manifest = PACKAGES.iter().fold(manifest.trim_end().to_owned(), |manifest, (other, place)| {
            let path = format!("{up}{}", place.trim_end_matches('/'));
            manifest.replace(&format!("path = \"../{other}\""), &format!("path = {path:?}"))
        });
        writeln!(list, "    ({:?}, {manifest:?}),", format!("{place}Cargo.toml")).expect("memory");
        let mut files = Vec::new();
        collect(&root.join("src"), &mut files);
        files.sort();
        for path in files {
            println!("cargo:rerun-if-changed={}", path.display());
            let inside =
                path.strip_prefix(&root).expect("it was found there").to_string_lossy().replace('\\', "/");
            let inside = format!("{place}{inside}");
            writeln!(list, "    ({inside:?}, include_str!({:?})),", path.display().to_string())
                .expect("memory");
        }
    }
    let text = format!("const FILES: &[(&str, &str)] = &[\n{list}];\n");
    let out = PathBuf::from(variable("OUT_DIR")).join("runtime.rs");
    std::fs::write(out, text).expect("the build folder is writable");
}

fn variable(name: &str) -> String {
    std::env::var(name).expect("cargo sets it")
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("the sources are beside this crate").flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "html") {
            files.push(path);
        }
    }
}
