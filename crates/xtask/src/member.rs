//! Generated crates as members of one workspace: the runtime is the same in each, and is built once for all of them, from the
//! folder of which `forge` pastes it.

use std::path::Path;

/// Makes a member of a workspace of a crate that forge wrote, which is a workspace of its own. `features` are those of the
/// runtime, beside what all members share.
pub fn make_member(directory: &Path, runtime: &Path, features: &[&str]) -> Result<(), String> {
    let edit = |name: &str, edit: &dyn Fn(&str) -> Option<String>| {
        let file = directory.join(name);
        let trouble = |error: std::io::Error| format!("{}: {error}", file.display());
        let text = std::fs::read_to_string(&file).map_err(trouble)?;
        let edited = edit(&text).ok_or_else(|| format!("{name} is not what it was: {text}"))?;
        std::fs::write(&file, edited).map_err(trouble)
    };
    edit("Cargo.toml", &|text| Some(text.split_once("# Kernels that are not inlined")?.0.to_owned()))?;
    let gone =
        |path: &Path, gone: std::io::Result<()>| gone.map_err(|error| format!("{}: {error}", path.display()));
    let folder = directory.join("src/runtime");
    gone(&folder, std::fs::remove_dir_all(&folder))?;
    // It would only find that there is no compiler of Apple's, once for each crate.
    let script = directory.join("build.rs");
    gone(&script, std::fs::remove_file(&script))?;
    let features = [&["shared"], features].concat();
    edit("Cargo.toml", &|text| {
        let (before, after) = text.split_once("[dependencies]\n")?;
        Some(format!(
            "{before}[dependencies]\nforge-runtime = {{ path = {runtime:?}, default-features = false, features = {features:?} }}\n{after}"
        ))
    })?;
    edit("src/lib.rs", &|text| {
        text.contains("\npub mod runtime;\n")
            .then(|| text.replace("\npub mod runtime;\n", "\npub use forge_runtime as runtime;\n"))
    })
}
