//! Generated crates as members of one cargo workspace, which builds dependencies once and models in parallel.
//!
//! They share the `crates/forge-runtime` of this repository (`forge compile --runtime`). The tests of the
//! examples build crates with their own copy of the runtime.

use crate::{executables, forge, root, run, scratch};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::member::make_member;

/// Compiles a checkpoint into a workspace member with the name of its directory. Unchanged files keep their
/// modification times, so that cargo rebuilds only changed ones.
pub fn compile_member(checkpoint: &Path, arguments: &[&str], directory: &Path) {
    let name = directory.file_name().expect("a directory has a name").to_string_lossy();
    let fresh = tempfile::tempdir().expect("a temporary directory");
    let out = fresh.path().join(&*name);
    let (from, to) = (checkpoint.display().to_string(), out.display().to_string());
    let runtime = root().join("crates/forge-runtime").display().to_string();
    let command = ["compile", &from, "-o", &to, "--name", &name, "--runtime", &runtime];
    run(Command::new(forge()).args(command).args(arguments));
    let made = make_member(&out);
    made.unwrap_or_else(|error| panic!("{error}"));
    share_compiled_runtime(&out);
    update(&out, directory);
}

/// Lets a member use the runtime with all of its features, which is then compiled once for all workspaces, and
/// leaves out its build script, which only does something on a Mac. Crates that are not members are built as users build
/// them.
fn share_compiled_runtime(member: &Path) {
    let file = member.join("Cargo.toml");
    let manifest = std::fs::read_to_string(&file).expect("it was just written");
    let (before, rest) =
        manifest.split_once(", default-features = false").expect("it depends on the runtime");
    let (_, after) = rest.split_once(']').expect("it lists features of the runtime");
    std::fs::write(&file, format!("{before}{after}")).expect("it was just written");
    if cfg!(not(target_os = "macos")) {
        std::fs::remove_file(member.join("build.rs")).expect("it was just written");
    }
}

/// Copies a directory, and writes only files that differ.
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

/// The release profile of everything that is built in [`scratch`], so that cargo compiles the runtime once: it precedes
/// that of a crate's manifest. Kernels are optimized as in the programs of users, but in several codegen units on all
/// cores, with cargo's default of inlining between them. The rest computes little, and symbols are a third of a
/// program's size.
const PROFILE: &str = "[profile.release]\nopt-level = 0\nlto = false\nstrip = true\n\
    [profile.release.package.forge-device]\nopt-level = 3\ncodegen-units = 16\n";

/// The build directory of everything that is built in [`scratch`].
pub fn build_directory() -> PathBuf {
    let config = scratch().join(".cargo/config.toml");
    write_if_changed(&config, PROFILE);
    scratch().join("target")
}

/// Gives a workspace without a lock file the versions of this project's own build.
pub fn share_lock_file(workspace: &Path) {
    let lock = workspace.join("Cargo.lock");
    if !lock.exists() {
        let _ = std::fs::copy(root().join("Cargo.lock"), lock);
    }
}

/// The package whose program contains all models of a workspace. The name of its executable selects the
/// model.
pub const PROGRAMS: &str = "programs";

/// Builds crates as members of one workspace and links them into one program. Returns a link to the program
/// for each crate, by name.
pub fn build_together(workspace: &Path, members: impl Iterator<Item = String>) -> BTreeMap<String, PathBuf> {
    build_with(workspace, &members.collect::<Vec<_>>(), None).0
}

/// Like [`build_together`], with one more package, which is a program of its own: its name, and its additions
/// to the workspace manifest.
pub(crate) fn build_with(
    workspace: &Path,
    models: &[String],
    other: Option<(&str, &str)>,
) -> (BTreeMap<String, PathBuf>, Option<PathBuf>) {
    write_programs(workspace, models);
    let packages: Vec<&str> = [PROGRAMS].into_iter().chain(other.map(|(name, _)| name)).collect();
    let members = packages.iter().copied().chain(models.iter().map(String::as_str));
    let list: Vec<String> = members.map(|name| format!("{name:?}")).collect();
    let more = other.map_or("", |(_, manifest)| manifest);
    let manifest = format!("[workspace]\nresolver = \"3\"\nmembers = [{}]\n{more}", list.join(", "));
    std::fs::write(workspace.join("Cargo.toml"), manifest).expect("the build folder is writable");
    share_lock_file(workspace);
    let mut command = Command::new(env!("CARGO"));
    let target = build_directory();
    command.args(["build", "--release", "--message-format=json-render-diagnostics"]);
    for package in packages {
        command.args(["--package", package]);
    }
    command.current_dir(workspace).env("CARGO_TARGET_DIR", &target);
    let mut built = executables(&run(&mut command));
    let program = built.remove(PROGRAMS).expect("cargo names the program that it built");
    let links = models.iter().map(|name| (name.clone(), link(workspace, name, &program, &target)));
    (links.collect(), built.into_values().next())
}

/// Writes the package [`PROGRAMS`], which depends on all models.
pub fn write_programs(workspace: &Path, models: &[String]) {
    let directory = workspace.join(PROGRAMS);
    let dependencies: String = models
        .iter()
        .map(|name| format!("{name} = {{ path = \"../{name}\", default-features = false }}\n"))
        .collect();
    let runtime = root().join("crates/forge-runtime");
    // All of the runtime's features in every workspace, so that it is compiled once for all of them.
    let manifest = format!(
        "[package]\nname = {PROGRAMS:?}\nversion = \"0.1.0\"\nedition = \"2024\"\n[dependencies]\n\
         forge-runtime = {{ path = {runtime:?} }}\n{dependencies}"
    );
    let arms: String = models
        .iter()
        .map(|name| format!("        {name:?} => &{}::PROGRAM,\n", name.replace('-', "_")))
        .collect();
    let text = format!(
        "//! Every model of the workspace in one program: the name that it is called by says which.\n\n\
         use forge_runtime::cli;\n\nfn main() -> std::process::ExitCode {{\n    \
         let path = std::env::args_os().next().map(std::path::PathBuf::from).unwrap_or_default();\n    \
         let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();\n    \
         let program = match name {{\n{arms}        _ => panic!(\"there is no model {{name}}\"),\n    }};\n    \
         cli::main(program, cli::COMMANDS)\n}}\n"
    );
    write_if_changed(&directory.join("Cargo.toml"), &manifest);
    write_if_changed(&directory.join("src/main.rs"), &text);
}

fn write_if_changed(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("it is in a folder")).expect("the build folder is writable");
    if std::fs::read_to_string(path).ok().as_deref() != Some(text) {
        std::fs::write(path, text).expect("the build folder is writable");
    }
}

/// Links the program under a model's name. A hard link, because the program of another workspace replaces this one's
/// at the path where cargo puts it.
fn link(workspace: &Path, name: &str, program: &Path, target: &Path) -> PathBuf {
    let links = target.join("models").join(workspace.file_name().expect("it has a name"));
    std::fs::create_dir_all(&links).expect("the build folder is writable");
    let link = links.join(name);
    let _ = std::fs::remove_file(&link);
    std::fs::hard_link(program, &link).expect("the build folder is writable");
    link
}
