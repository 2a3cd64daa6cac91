//! Links many generated programs into one binary, whose first argument selects the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The runtime crate, which all programs share.
pub(super) const RUNTIME: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../forge-runtime");

const FILL: &str = include_str!("../../gpu/fill.rs");

/// Links the crates in `out/crates` to `out/pack/programs`.
pub(super) fn link(out: &Path, root: &Path, names: &[String]) -> Result<(), String> {
    let workspace = &out.join("crates");
    let members: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    // Only the runtime takes time.
    let manifest = format!(
        "[workspace]\nresolver = \"3\"\nmembers = [\"programs\", {}]\n[profile.release]\nopt-level = 0\nstrip = true\n\
         [profile.release.package.\"*\"]\nopt-level = 2\n",
        members.join(", ")
    );
    write(&workspace.join("Cargo.toml"), manifest.as_bytes())?;
    let _ = fs::copy(root.join("Cargo.lock"), workspace.join("Cargo.lock"));
    let lines = |line: &dyn Fn(&str) -> String| names.iter().map(|name| line(name)).collect::<String>();
    let dependencies =
        lines(&|name| format!("{name} = {{ path = \"../{name}\", default-features = false }}\n"));
    let manifest = format!(
        "[package]\nname = \"programs\"\nversion = \"0.1.0\"\nedition = \"2024\"\npublish = false\n\
         [dependencies]\nforge-runtime = {{ path = {:?}, default-features = false, features = [\"cuda\", \"serve\"] }}\nserde_json = \"1\"\n{dependencies}",
        root.join("crates/forge-runtime")
    );
    write(&workspace.join("programs/Cargo.toml"), manifest.as_bytes())?;
    let mut arms = String::new();
    for name in names {
        let library = name.replace('-', "_");
        arms +=
            &format!("        Some({name:?}) => cli::run(&{library}::PROGRAM, cli::COMMANDS, arguments),\n");
    }
    let text = format!(
        "//! All programs in one: the first argument selects the program.\n\nmod fill;\n\nuse forge_runtime::cli;\n\nfn main() -> std::process::ExitCode {{\n    \
         let mut arguments = std::env::args_os();\n    arguments.next();\n    let name = std::env::args().nth(1);\n    \
         let outcome = match name.as_deref() {{\n{arms}        Some(\"fill\") => fill::main(),\n        \
         _ => Err(forge_runtime::error::Error::usage(\"expected the name of a program: one of the folders here\")),\n    }};\n    \
         match outcome {{\n        Ok(code) => code.into(),\n        Err(failure) => {{\n            \
         eprintln!(\"{{failure}}\");\n            failure.exit_code().into()\n        }}\n    }}\n}}\n"
    );
    write(&workspace.join("programs/src/main.rs"), text.as_bytes())?;
    write(&workspace.join("programs/src/fill.rs"), FILL.as_bytes())?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--release", "-p", "programs"]).current_dir(workspace);
    run(command.env("CARGO_TARGET_DIR", target.join("gpu")))?;
    let (program, packed) = (target.join("gpu/release/programs"), out.join("pack/programs"));
    fs::copy(&program, &packed).map_err(|error| format!("{}: {error}", program.display()))?;
    Ok(())
}

pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let trouble = |error: std::io::Error| format!("{}: {error}", path.display());
    fs::create_dir_all(path.parent().unwrap_or(path)).map_err(trouble)?;
    fs::write(path, bytes).map_err(trouble)
}

pub(super) fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} failed")) }
}
