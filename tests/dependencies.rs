//! Which crate may depend on which: arrows point down this list only, so that a crate can be understood without those above it.

use std::collections::BTreeMap;
use tests::root;

/// The crates, each with the ones of the project that it may depend on; development dependencies are not counted.
const ALLOWED: &[(&str, &[&str])] = &[
    ("forge-ops", &[]),
    ("forge-hub", &[]),
    ("forge-ir", &["forge-ops"]),
    ("forge-runtime", &["forge-ops"]),
    ("forge-frontend", &["forge-ir"]),
    ("forge-reference", &["forge-ir"]),
    ("forge-weights", &["forge-ir"]),
    ("forge-kernels", &["forge-ir", "forge-ops"]),
    ("forge-planner", &["forge-ir", "forge-kernels", "forge-ops"]),
    ("forge-codegen", &["forge-ir", "forge-kernels", "forge-ops", "forge-planner"]),
    ("forge-sim", &["forge-kernels"]),
    ("forge-emulation", &["forge-sim"]),
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
