//! `forge run`: compiles into a cache, builds and runs.
//!
//! The cache key is a hash of the checkpoint's file names, sizes and times, the options, and this compiler.
//! Crates in the cache share one runtime and one build folder, so dependencies are built once.

use crate::arguments::CompileArguments;
use crate::build::BuildFeatures;
use crate::checkpoint::Directory;
use crate::compile::options;
use crate::compile::output::MARKER;
use crate::compile::pipeline::compile;
use crate::error::Error;
use crate::{build, terminal};
use forge_frontend::Checkpoint;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// `forge run`.
pub(crate) fn command(arguments: &CompileArguments, program_arguments: &[String]) -> Result<(), Error> {
    let (_, program) = prepare(arguments, needed_features(program_arguments))?;
    exec_program(Command::new(&program).args(program_arguments))
        .map_err(|error| Error::other(format!("{} cannot be started: {error}", program.display())))?
}

/// Compiles a model into the cache and builds it, unless that has been done. Returns the directory of the
/// crate, and the program.
pub(crate) fn prepare(
    arguments: &CompileArguments,
    features: BuildFeatures,
) -> Result<(PathBuf, PathBuf), Error> {
    let checkpoint = Directory::find(&arguments.model)?;
    let cache = cache_directory()?;
    // The name is one directory component, even if it contains slashes.
    let name = options::name(arguments, &checkpoint)?.replace('/', "-");
    let crate_directory = cache.join(format!("{name}-{:016x}", fingerprint(arguments, &checkpoint)));
    if crate_directory.join(MARKER).is_file() {
        terminal::stage("Compiled", &format!("before: {}", crate_directory.display()));
    } else {
        let runtime = arguments.runtime.clone().map_or_else(|| shared_runtime(&cache), Ok)?;
        let arguments = CompileArguments { runtime: Some(runtime), ..arguments.clone() };
        compile(&arguments, &crate_directory, true)?;
    }
    let started = std::time::Instant::now();
    let program = build::build(&crate_directory, Some(&cache.join("target")), features)?;
    let seconds = started.elapsed().as_secs_f64();
    if seconds >= 1.0 {
        terminal::stage(
            "Built",
            &format!("in {seconds:.0} s; builds of further models reuse the dependencies"),
        );
    }
    Ok((crate_directory, program))
}

/// Directory of the runtime shared by all crates in the cache. Its name contains a hash of its content, so
/// several compiler versions can share the cache.
fn shared_runtime(cache: &Path) -> Result<PathBuf, Error> {
    let files = forge_codegen::runtime();
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    let directory = cache.join(format!("runtime-{:016x}", hasher.finish()));
    if directory.is_dir() {
        return Ok(directory);
    }
    std::fs::create_dir_all(cache).map_err(|error| Error::write(cache, &error))?;
    let staging = tempfile::tempdir_in(cache).map_err(|error| Error::write(cache, &error))?;
    for (path, bytes) in &files {
        let file = staging.path().join(path);
        let parent = file.parent().unwrap_or(cache);
        std::fs::create_dir_all(parent)
            .and_then(|()| std::fs::write(&file, bytes))
            .map_err(|error| Error::write(&file, &error))?;
    }
    match std::fs::rename(staging.path(), &directory) {
        // Another process created it first.
        Err(_) if directory.is_dir() => Ok(directory),
        Err(error) => Err(Error::write(&directory, &error)),
        Ok(()) => Ok(directory),
    }
}

/// Replaces this process with the program, so that the program receives signals such as Ctrl-C.
#[cfg(unix)]
fn exec_program(command: &mut Command) -> std::io::Result<Result<(), Error>> {
    use std::os::unix::process::CommandExt;
    Err(command.exec())
}

#[cfg(not(unix))]
fn exec_program(command: &mut Command) -> std::io::Result<Result<(), Error>> {
    Ok(match command.status()?.code() {
        Some(0) => Ok(()),
        Some(code) => Err(Error::Reported(u8::try_from(code).unwrap_or(1))),
        None => Err(Error::Reported(130)),
    })
}

/// Features needed for these arguments: the server only for `serve` and for help.
fn needed_features(program_arguments: &[String]) -> BuildFeatures {
    let needs_server = |argument: &String| ["serve", "--help", "-h"].contains(&argument.as_str());
    if program_arguments.is_empty() || program_arguments.iter().any(needs_server) {
        BuildFeatures::All
    } else {
        BuildFeatures::NoServer
    }
}

/// Cache directory: `$FORGE_CACHE`, or `forge` in the user's cache directory.
fn cache_directory() -> Result<PathBuf, Error> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let in_home = || {
        variable("HOME").map(|home| {
            if cfg!(target_os = "macos") {
                home.join("Library/Caches/forge")
            } else {
                home.join(".cache/forge")
            }
        })
    };
    variable("FORGE_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|cache| cache.join("forge")))
        .or_else(in_home)
        .ok_or_else(|| Error::other("no cache directory: HOME is not set; set FORGE_CACHE to a directory"))
}

/// Hash of everything that a compiled crate depends on.
fn fingerprint(arguments: &CompileArguments, checkpoint: &Directory) -> u64 {
    let mut hasher = DefaultHasher::new();
    // Verbosity does not change the crate.
    let arguments = CompileArguments { verbose: false, ..arguments.clone() };
    format!("{arguments:?}").hash(&mut hasher);
    checkpoint.root().canonicalize().ok().hash(&mut hasher);
    for file in checkpoint.files() {
        let metadata = std::fs::metadata(checkpoint.root().join(&file)).ok();
        file.hash(&mut hasher);
        metadata.as_ref().map(std::fs::Metadata::len).hash(&mut hasher);
        metadata.and_then(|metadata| metadata.modified().ok()).hash(&mut hasher);
    }
    for file in [&arguments.tuned, &arguments.calibrate, &arguments.imatrix] {
        file.as_ref().and_then(|file| std::fs::read(file).ok()).hash(&mut hasher);
    }
    // The executable's metadata distinguishes development builds of one version.
    let program = std::env::current_exe().ok().and_then(|path| std::fs::metadata(path).ok());
    env!("CARGO_PKG_VERSION").hash(&mut hasher);
    program.and_then(|metadata| metadata.modified().ok()).hash(&mut hasher);
    hasher.finish()
}
