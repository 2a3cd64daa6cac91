//! Crates that tests compile, as members of one workspace: cargo builds dependencies once and models side by side.
//!
//! They share the runtime's folder of this repository (`forge compile --runtime`). Crates that carry their own runtime are built by
//! the tests of the examples.

use crate::{executables, forge, root, run, scratch};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::member::make_member;

/// Compiles a checkpoint into a member of a workspace, which is called what its directory is. Files that have not changed
/// keep their times, so that cargo builds only what has.
pub fn compile_member(checkpoint: &Path, arguments: &[&str], directory: &Path) {
    compile_with(checkpoint, arguments, directory, false);
}

/// The same, of a program that can serve.
pub fn compile_server(checkpoint: &Path, arguments: &[&str], directory: &Path) {
    compile_with(checkpoint, arguments, directory, true);
}

fn compile_with(checkpoint: &Path, arguments: &[&str], directory: &Path, has_server: bool) {
    let name = directory.file_name().expect("a directory has a name").to_string_lossy();
    let fresh = tempfile::tempdir().expect("a temporary directory");
    let out = fresh.path().join(&*name);
    let (from, to) = (checkpoint.display().to_string(), out.display().to_string());
    let runtime = root().join("crates/forge-runtime").display().to_string();
    let command = ["compile", &from, "-o", &to, "--name", &name, "--runtime", &runtime];
    run(Command::new(forge()).args(command).args(arguments));
    let made = make_member(&out, has_server);
    made.unwrap_or_else(|error| panic!("{error}"));
    update(&out, directory);
}

/// Makes `to` hold what `from` holds, touching only files that differ.
fn update(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("the build folder is writable");
    for entry in std::fs::read_dir(from).expect("it was just written").flatten() {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            update(&source, &target);
            continue;
        }
        let bytes = std::fs::read(&source).expect("it was just written");
        if std::fs::read(&target).ok().as_ref() != Some(&bytes) {
            std::fs::write(&target, bytes).expect("the build folder is writable");
        }
    }
}

/// How much the programs of a workspace have to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Next to nothing: not worth the optimiser's minutes.
    Little,
    /// So much that they are built as users build them.
    Much,
}

/// Builds crates as members of one workspace; gives their programs by name.
pub fn build_together(
    workspace: &Path,
    members: impl Iterator<Item = String>,
    work: Work,
) -> BTreeMap<String, PathBuf> {
    build_with(workspace, members, work, "")
}

/// As [`build_together`], with more to be said in the workspace's manifest.
pub(crate) fn build_with(
    workspace: &Path,
    members: impl Iterator<Item = String>,
    work: Work,
    more: &str,
) -> BTreeMap<String, PathBuf> {
    let members: Vec<String> = members.collect();
    let list: Vec<String> = members.iter().map(|name| format!("{name:?}")).collect();
    let (profile, target) = match work {
        // There are some two hundred of them; names of functions would be a third of their size.
        Work::Little => ("[profile.release]\nopt-level = 0\nstrip = true\n", "target"),
        Work::Much => ("[profile.release]\nstrip = true\n", "release"),
    };
    let manifest = format!("[workspace]\nresolver = \"3\"\nmembers = [{}]\n{profile}{more}", list.join(", "));
    std::fs::write(workspace.join("Cargo.toml"), manifest).expect("the build folder is writable");
    // The same versions as this project's own build, so that dependencies come from one list.
    let lock = workspace.join("Cargo.lock");
    if !lock.exists() {
        let _ = std::fs::copy(root().join("Cargo.lock"), lock);
    }
    let arguments = ["build", "--release", "--workspace", "--message-format=json-render-diagnostics"];
    let mut command = Command::new(env!("CARGO"));
    let target = scratch().join(target);
    command.args(arguments).current_dir(workspace).env("CARGO_TARGET_DIR", &target);
    let programs = executables(&run(&mut command));
    // What `forge verify` leaves where it has built a program, so that it does not build these again.
    for name in &members {
        let directory = workspace.join(name).canonicalize().expect("it was built");
        let stamp = target.join(format!(".forge-{name}"));
        std::fs::write(stamp, directory.display().to_string()).expect("the build folder is writable");
    }
    programs
}
