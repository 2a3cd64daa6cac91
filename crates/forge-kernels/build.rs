//! Lists the files of `kernels/`: `<family>/<kernel>.metal` are templates, `<family>/parts/` what templates include, and
//! `support/` functions that several kernels call.

use std::fmt::Write;
use std::path::{Path, PathBuf};

fn main() {
    let variable = |name: &str| PathBuf::from(std::env::var(name).expect("cargo sets it"));
    let root = variable("CARGO_MANIFEST_DIR").join("../../kernels");
    println!("cargo:rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    collect(&root, &mut files);
    files.sort();
    let (mut templates, mut parts, mut support) = (String::new(), String::new(), String::new());
    for file in files {
        println!("cargo:rerun-if-changed={}", file.display());
        let path = file.strip_prefix(&root).expect("it was found there").with_extension("");
        let path = path.to_string_lossy().replace('\\', "/");
        let list = match path.split('/').collect::<Vec<_>>()[..] {
            ["support", ..] => &mut support,
            [_, "parts", _] => &mut parts,
            [_, _] => &mut templates,
            _ => panic!("{path}: a kernel is kernels/<family>/<kernel>.metal"),
        };
        let file = file.display().to_string();
        writeln!(list, "    Source {{ path: {path:?}, text: include_str!({file:?}) }},").expect("memory");
    }
    let lists = [
        ("TEMPLATES", "Every template.", templates),
        ("PARTS", "Text that templates include.", parts),
        ("SUPPORT", "Every file of support functions.", support),
    ];
    let text: String = lists
        .iter()
        .map(|(name, about, list)| format!("/// {about}\npub const {name}: &[Source] = &[\n{list}];\n\n"))
        .collect();
    std::fs::write(variable("OUT_DIR").join("catalog.rs"), text).expect("the build folder is writable");
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("kernels/ is part of the repository").flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "metal") {
            files.push(path);
        }
    }
}
