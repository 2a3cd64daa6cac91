//! Embeds the runtime's source, and the page that it serves: writes a list of (path, text) for every file of `forge-runtime/src`.
//!
//! `include_dir` would do the same, but on stable Rust it does not notice changed files, and a stale runtime in new
//! crates is a fault that nobody would see.

use std::fmt::Write;
use std::path::{Path, PathBuf};

fn main() {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("../forge-runtime/src");
    println!("cargo:rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    collect(&root, &mut files);
    files.sort();
    let mut list = String::from("&[\n");
    for path in files {
        println!("cargo:rerun-if-changed={}", path.display());
        let inside =
            path.strip_prefix(&root).expect("it was found there").to_string_lossy().replace('\\', "/");
        // The runtime is a crate here and a module there.
        let name = if inside == "lib.rs" { "mod.rs" } else { &inside };
        writeln!(list, "    ({name:?}, include_str!({:?})),", path.display().to_string()).expect("memory");
    }
    list.push_str("]\n");
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets it")).join("runtime_files.rs");
    std::fs::write(out, list).expect("the build folder is writable");
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
