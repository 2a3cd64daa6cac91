//! Builds all programs as one executable. The name that it is called by selects the model.

use crate::member::make_member;
use crate::metal::check::MetalProgram;
use crate::metal::models::MODELS;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package with the executable.
const PROGRAMS: &str = "programs";

/// Compiles and builds the models. Returns the program of each.
pub(super) fn build(root: &Path, out: &Path, only: &[String]) -> Result<Vec<MetalProgram>, String> {
    let root = root.canonicalize().map_err(|error| format!("{}: {error}", root.display()))?;
    fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
    let out = out.canonicalize().map_err(|error| format!("{}: {error}", out.display()))?;
    run(Command::new(env!("CARGO")).args(["build", "--package", "forge-cli"]).current_dir(&root))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let forge = root.join(target).join("debug/forge");
    let mut names = Vec::new();
    for (checkpoint, name, format) in wanted(only)? {
        let directory = out.join(&name);
        let mut command = Command::new(&forge);
        command.arg("compile").arg(root.join(checkpoint)).arg("-o").arg(&directory);
        command.args(["--force", "--name", &name, "--quant", format, "--runtime"]);
        run(command.arg(root.join("crates/forge-runtime")))?;
        make_member(&directory)?;
        names.push(name);
    }
    write_workspace(&root, &out, &names)?;
    let built = out.join("target");
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--release", "--package", PROGRAMS]).current_dir(&out);
    run(command.env("CARGO_TARGET_DIR", &built))?;
    let program = |name: String| {
        let link = out.join(&name).join(&name);
        let _ = fs::remove_file(&link);
        link_file(&built.join("release").join(PROGRAMS), &link)
            .map_err(|error| format!("{}: {error}", link.display()))?;
        Ok(MetalProgram { name, path: link })
    };
    names.into_iter().map(program).collect()
}

/// The programs: the checkpoint in the repository, the program's name and the weight format.
fn wanted(only: &[String]) -> Result<Vec<(PathBuf, String, &'static str)>, String> {
    let fable = (PathBuf::from("examples/fable"), "fable".to_owned(), "keep");
    let named = |(model, formats): &(&'static str, &'static [&'static str])| {
        let model = *model;
        formats.iter().map(move |format| {
            let name = format!("{model}-{format}").replace('_', "-");
            (Path::new("tests/models").join(model), name, *format)
        })
    };
    let mut all: Vec<_> = std::iter::once(fable).chain(MODELS.iter().flat_map(named)).collect();
    let is_wanted = |folder: &Path, wanted: &String| folder.file_name().is_some_and(|name| name == &**wanted);
    if let Some(unknown) = only.iter().find(|name| all.iter().all(|(folder, ..)| !is_wanted(folder, name))) {
        let known: Vec<&str> = std::iter::once("fable").chain(MODELS.map(|(model, _)| model)).collect();
        return Err(format!("{unknown} is not one of the models: {}", known.join(", ")));
    }
    all.retain(|(folder, ..)| only.is_empty() || only.iter().any(|name| is_wanted(folder, name)));
    Ok(all)
}

fn write_workspace(root: &Path, out: &Path, names: &[String]) -> Result<(), String> {
    let members: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    // The CPU computes little, so only the runtime is optimized.
    let manifest = format!(
        "[workspace]\nresolver = \"3\"\nmembers = [{PROGRAMS:?}, {}]\n[profile.release]\nopt-level = 0\nstrip = true\n\
         [profile.release.package.forge-device]\nopt-level = 2\n",
        members.join(", ")
    );
    write(&out.join("Cargo.toml"), &manifest)?;
    let _ = fs::copy(root.join("Cargo.lock"), out.join("Cargo.lock"));
    let dependency =
        |name: &String| format!("{name} = {{ path = \"../{name}\", default-features = false }}\n");
    let manifest = format!(
        "[package]\nname = {PROGRAMS:?}\nversion = \"0.1.0\"\nedition = \"2024\"\npublish = false\n[dependencies]\n\
         forge-runtime = {{ path = {:?}, default-features = false }}\n{}",
        root.join("crates/forge-runtime"),
        names.iter().map(dependency).collect::<String>()
    );
    write(&out.join(PROGRAMS).join("Cargo.toml"), &manifest)?;
    let arm = |name: &String| format!("        {name:?} => &{}::PROGRAM,\n", name.replace('-', "_"));
    let text = format!(
        "//! All models in one program: the name that it is called by selects one.\n\nuse forge_runtime::cli;\n\n\
         fn main() -> std::process::ExitCode {{\n    \
         let path = std::env::args_os().next().map(std::path::PathBuf::from).unwrap_or_default();\n    \
         let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();\n    \
         let program = match name {{\n{}        _ => panic!(\"there is no model {{name}}\"),\n    }};\n    \
         cli::main(program, cli::COMMANDS)\n}}\n",
        names.iter().map(arm).collect::<String>()
    );
    write(&out.join(PROGRAMS).join("src/main.rs"), &text)
}

#[cfg(unix)]
fn link_file(program: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(program, link)
}

#[cfg(not(unix))]
fn link_file(program: &Path, link: &Path) -> std::io::Result<()> {
    fs::copy(program, link).map(|_| ())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    let trouble = |error: std::io::Error| format!("{}: {error}", path.display());
    fs::create_dir_all(path.parent().unwrap_or(path)).map_err(trouble)?;
    fs::write(path, text).map_err(trouble)
}

fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} failed")) }
}
