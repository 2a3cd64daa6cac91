//! The sources of `forge-runtime`, `forge-device` and `forge-ops`, embedded when forge is built.

use crate::crate_files::CrateFiles;

include!(concat!(env!("OUT_DIR"), "/runtime.rs"));

/// The lock file of generated crates, without the crate itself; `cargo xtask lock` writes it.
const LOCK: &str = include_str!("../../../templates/crate/Cargo.lock");

/// Names of all packages that a generated crate may depend on.
pub(crate) fn packages() -> impl Iterator<Item = &'static str> {
    LOCK.lines().filter_map(|line| line.strip_prefix("name = ")).map(|name| name.trim_matches('"'))
}

/// The files of the runtime, by path within its directory.
pub fn runtime() -> CrateFiles {
    FILES.iter().map(|(path, text)| ((*path).to_owned(), text.as_bytes().to_vec())).collect()
}

/// The lock file of a generated crate of this name.
pub(crate) fn lock(name: &str) -> String {
    const START: &str = "[[package]]\nname = ";
    let own = format!("{START}{name:?}\nversion = \"0.1.0\"\ndependencies = [\n \"forge-runtime\",\n]\n\n");
    // Packages are sorted by name.
    let follows =
        |at: &usize| LOCK[at + START.len() + 1..].split('"').next().is_some_and(|other| other > name);
    let place = LOCK.match_indices(START).map(|(at, _)| at).find(follows).unwrap_or(LOCK.len());
    let (before, after) = LOCK.split_at(place);
    format!("{}\n\n{own}{after}", before.trim_end()).trim_end().to_owned() + "\n"
}
