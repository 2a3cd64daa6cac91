//! `cargo xtask test --quick`: the checks of what changed, without the programs that take minutes.
//!
//! The packages whose files differ from the last commit (or, without such files, from the one before it) are formatted
//! and linted. Their tests run, and those of the packages that depend on them, except for [`SLOW`] programs.

use crate::checks::test::{cargo, timed_tests};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Test programs that only the complete round runs: they build models or programs, or execute every kernel.
const SLOW: &[&str] = &[
    "arena",
    "auto",
    "build_script",
    "bytes",
    "calibrate",
    "catalog",
    "check",
    "command_line",
    "converted",
    "darwin",
    "disk",
    "experts",
    "fuzz",
    "kernels",
    "pipeline",
    "projections",
    "ptx",
    "quantized",
    "reference",
    "report",
    "rings",
    "sample",
    "serve",
    "signatures",
    "stages",
    "work",
];

/// Directories outside `crates/` and the packages that contain them.
const EMBEDDED: &[(&str, &str)] = &[
    ("kernels/", "forge-kernels"),
    ("templates/", "forge-codegen"),
    ("docs/", "tests"),
    ("tests/", "tests"),
];

/// Runs the checks.
pub(crate) fn quick() -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = changed_files(&root)?;
    let changed: BTreeSet<String> = files.iter().filter_map(|file| package_of(file)).collect();
    if changed.is_empty() {
        println!("nothing to check: no package has changed");
        return Ok(());
    }
    let packages = Packages::read(&root)?;
    let affected = packages.dependents(&changed);
    println!("changed: {}", names(&changed));
    println!("tested: {}", names(&affected));
    cargo(&["fmt", "--all", "--check"])?;
    let selected = |names: &BTreeSet<String>| -> Vec<String> {
        names.iter().flat_map(|name| ["--package".to_owned(), name.clone()]).collect()
    };
    let own = selected(&changed);
    let own = own.iter().map(String::as_str);
    let lints = ["--", "-D", "warnings"];
    cargo(&["clippy"].into_iter().chain(own).chain(lints).collect::<Vec<_>>())?;
    let mut arguments =
        vec!["test".to_owned(), "--no-fail-fast".to_owned(), "--lib".to_owned(), "--bins".to_owned()];
    // With 3, kernels take longer to compile; with 1, their tests take twice as long.
    arguments.extend(["--config".to_owned(), "profile.dev.package.forge-device.opt-level=2".to_owned()]);
    arguments.extend(["--target-dir".to_owned(), "target/quick".to_owned()]);
    arguments.extend(selected(&affected));
    let tests = packages.tests(&affected).filter(|test| !SLOW.contains(test));
    arguments.extend(tests.flat_map(|test| ["--test".to_owned(), test.to_owned()]));
    timed_tests(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

fn names(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// Files that differ from the last commit, or else from the one before it.
fn changed_files(root: &Path) -> Result<Vec<String>, String> {
    let git = |arguments: &[&str]| -> Result<Vec<String>, String> {
        let output = Command::new("git").args(arguments).current_dir(root).output();
        let output = output.map_err(|error| format!("git: {error}"))?;
        if !output.status.success() {
            return Err(format!("git: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
    };
    let mut files = git(&["diff", "--name-only", "HEAD"])?;
    files.extend(git(&["ls-files", "--others", "--exclude-standard"])?);
    if files.is_empty() { git(&["diff", "--name-only", "HEAD~1", "HEAD"]) } else { Ok(files) }
}

/// The package that a file belongs to.
fn package_of(file: &str) -> Option<String> {
    if let Some(inside) = file.strip_prefix("crates/") {
        return inside.split('/').next().map(str::to_owned);
    }
    EMBEDDED
        .iter()
        .find(|(directory, _)| file.starts_with(directory))
        .map(|(_, package)| (*package).to_owned())
}

/// The workspace's packages, from `cargo metadata`.
struct Packages(Vec<Value>);

impl Packages {
    fn read(root: &Path) -> Result<Packages, String> {
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--no-deps"])
            .current_dir(root)
            .output()
            .map_err(|error| format!("cargo metadata: {error}"))?;
        let metadata: Value =
            serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
        Ok(Packages(metadata["packages"].as_array().cloned().unwrap_or_default()))
    }

    /// These packages, and all that depend on them, directly or not.
    fn dependents(&self, changed: &BTreeSet<String>) -> BTreeSet<String> {
        let mut affected = changed.clone();
        loop {
            let depends = |package: &&Value| {
                let dependencies = package["dependencies"].as_array().into_iter().flatten();
                dependencies.filter_map(|it| it["name"].as_str()).any(|name| affected.contains(name))
            };
            let more: BTreeSet<String> =
                self.0.iter().filter(depends).filter_map(name).map(str::to_owned).collect();
            if more.is_subset(&affected) {
                return affected;
            }
            affected.extend(more);
        }
    }

    /// Names of the test programs of these packages.
    fn tests<'a>(&'a self, packages: &BTreeSet<String>) -> impl Iterator<Item = &'a str> {
        let selected: Vec<&Value> = self
            .0
            .iter()
            .filter(|package| name(package).is_some_and(|name| packages.contains(name)))
            .collect();
        selected
            .into_iter()
            .flat_map(|package| package["targets"].as_array().into_iter().flatten())
            .filter(|target| target["kind"][0] == "test")
            .filter_map(name)
    }
}

fn name(of: &Value) -> Option<&str> {
    of["name"].as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn maps_files_to_packages() {
        assert_eq!(package_of("crates/forge-ir/src/lib.rs").as_deref(), Some("forge-ir"));
        assert_eq!(package_of("kernels/norm/rms_norm.metal").as_deref(), Some("forge-kernels"));
        assert_eq!(package_of("templates/crate/build.rs").as_deref(), Some("forge-codegen"));
        assert_eq!(package_of("LICENSE-MIT"), None);
    }

    #[test]
    fn tests_dependents_of_changed_packages() {
        let packages = Packages::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap();
        let affected = packages.dependents(&set(&["forge-planner"]));
        assert!(affected.is_superset(&set(&[
            "forge-planner",
            "forge-codegen",
            "forge-cli",
            "xtask",
            "tests"
        ])));
        assert!(!affected.contains("forge-ir") && !affected.contains("forge-runtime"));
        let tests: Vec<&str> = packages.tests(&set(&["forge-planner"])).collect();
        assert_eq!(tests, ["cache", "cost", "tuned"]);
    }

    #[test]
    fn listed_slow_tests_exist() {
        let packages = Packages::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap();
        let all = packages.0.iter().filter_map(name).map(str::to_owned).collect();
        let tests: BTreeSet<&str> = packages.tests(&all).collect();
        let missing: Vec<_> = SLOW.iter().filter(|test| !tests.contains(*test)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
