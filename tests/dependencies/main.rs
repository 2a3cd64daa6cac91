//! Which crate may depend on which, and which module of a crate may import from which.
//!
//! Arrows point down only, so that a crate or a module can be understood without those above it:
//!
//! * A crate depends on the crates below it in [`ALLOWED`].
//! * `lib.rs` and parent modules re-export what their modules define. A module imports it from the module
//!   that defines it: never from its parent, never from `lib.rs`. What siblings share has a file of its own.

mod imports;
mod tokens;

use imports::Sources;
use std::collections::BTreeMap;
use std::path::Path;
use tests::root;

/// The crates, each with the project's crates that it may depend on; development dependencies are not counted.
const ALLOWED: &[(&str, &[&str])] = &[
    ("forge-ops", &[]),
    ("forge-hub", &[]),
    ("forge-msl", &[]),
    ("forge-ir", &["forge-ops"]),
    ("forge-device", &["forge-ops"]),
    ("forge-oracle", &["forge-ops"]),
    ("forge-runtime", &["forge-device"]),
    ("forge-frontend", &["forge-ir"]),
    ("forge-reference", &["forge-ir"]),
    ("forge-weights", &["forge-ir"]),
    ("forge-kernels", &["forge-ir", "forge-msl", "forge-ops"]),
    ("forge-planner", &["forge-ir", "forge-kernels", "forge-ops"]),
    ("forge-codegen", &["forge-ir", "forge-kernels", "forge-ops", "forge-planner"]),
    ("forge-report", &["forge-ir", "forge-kernels", "forge-ops", "forge-planner"]),
    ("forge-sim", &["forge-kernels", "forge-msl"]),
    ("forge-emulation", &["forge-msl", "forge-sim"]),
];

/// Programs, which may depend on everything.
const PROGRAMS: [&str; 2] = ["forge-cli", "xtask"];

#[test]
fn crates_depend_only_on_crates_below_them() {
    let allowed: BTreeMap<_, _> = ALLOWED.iter().copied().collect();
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root().join("crates")).expect("the crates").flatten() {
        let name = entry.file_name().into_string().expect("names are UTF-8");
        if PROGRAMS.contains(&name.as_str()) {
            continue;
        }
        let manifest = std::fs::read_to_string(entry.path().join("Cargo.toml")).expect("a manifest");
        let allowed = allowed.get(name.as_str()).unwrap_or_else(|| panic!("{name} is not in the list"));
        let forbidden = dependencies(&manifest).filter(|dependency| !allowed.contains(&dependency.as_str()));
        found.extend(forbidden.map(|dependency| format!("{name} -> {dependency}")));
    }
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn modules_do_not_import_from_higher_modules() {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root().join("crates")).expect("the crates").flatten() {
        let name = entry.file_name().into_string().expect("names are UTF-8");
        let mut sources = Sources::new();
        read_sources(&entry.path().join("src"), "", &mut sources);
        let imports = imports::from_above(&sources).into_iter();
        found.extend(imports.map(|(file, path)| format!("{name}/src/{file}: {path}")));
    }
    assert!(found.is_empty(), "imports from a parent module or lib.rs:\n{}", found.join("\n"));
}

/// Reads the Rust files of a directory; `path` is its own, below `src`.
fn read_sources(directory: &Path, path: &str, sources: &mut Sources) {
    for entry in std::fs::read_dir(directory).expect("a directory").flatten() {
        let name = entry.file_name().into_string().expect("names are UTF-8");
        if entry.path().is_dir() {
            read_sources(&entry.path(), &format!("{path}{name}/"), sources);
        } else if name.ends_with(".rs") {
            let text = std::fs::read_to_string(entry.path()).expect("a source");
            sources.insert(format!("{path}{name}"), text);
        }
    }
}

#[test]
fn dependencies_are_read_from_manifests() {
    let manifest = "[package]\nname = \"a\"\n[dependencies]\nforge-ir.workspace = true\nhalf = \"2\"\n\
                    forge-hub = { path = \"x\" }\n[dev-dependencies]\nforge-sim.workspace = true\n";
    assert_eq!(dependencies(manifest).collect::<Vec<_>>(), ["forge-ir", "forge-hub"]);
}

/// The project's crates that a manifest depends on.
fn dependencies(manifest: &str) -> impl Iterator<Item = String> {
    let mut is_inside = false;
    let lines = manifest.lines().filter(move |line| {
        if line.starts_with('[') {
            is_inside = *line == "[dependencies]";
        }
        is_inside && line.starts_with("forge-")
    });
    lines.filter_map(|line| Some(line.split(['.', ' ', '=']).next()?.to_owned()))
}
