//! Builds generated crates with cargo and shows progress.

use crate::error::Error;
use crate::terminal;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Records which crate directory a build folder's program was built from.
///
/// Cargo identifies a package by its name, so in a shared build folder it reuses the program of another crate
/// of the same name. To force a rebuild, the sources of a crate are touched if it was not the last one of its
/// name.
struct Stamp {
    file: PathBuf,
    directory: String,
}

impl Stamp {
    fn of(crate_directory: &Path, folder: &Path) -> Result<Stamp, Error> {
        let manifest = crate_directory.join("Cargo.toml");
        let text = std::fs::read_to_string(&manifest).map_err(|error| Error::read(&manifest, &error))?;
        let name = text.lines().find_map(|line| line.strip_prefix("name = ")).unwrap_or_default();
        let file = crate_directory.join(folder).join(format!(".forge-{}", name.trim_matches('"')));
        let directory = crate_directory.canonicalize().unwrap_or_else(|_| crate_directory.to_owned());
        let stamp = Stamp { file, directory: directory.display().to_string() };
        if std::fs::read_to_string(&stamp.file).ok().as_ref() != Some(&stamp.directory) {
            // Removed until the build succeeds, so an interrupted build leaves no valid stamp.
            let _ = std::fs::remove_file(&stamp.file);
            for source in ["src/lib.rs", "src/main.rs"].map(|source| crate_directory.join(source)) {
                let touched = std::fs::File::options().append(true).open(&source);
                match touched.and_then(|file| file.set_modified(std::time::SystemTime::now())) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(Error::write(&source, &error));
                    }
                    _ => {}
                }
            }
        }
        Ok(stamp)
    }

    /// Marks the program as built from this crate.
    fn write(&self) -> Result<(), Error> {
        std::fs::write(&self.file, &self.directory).map_err(|error| Error::write(&self.file, &error))
    }
}

/// Interval of progress lines when stderr is not a terminal.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(15);

/// Which features of a crate are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BuildFeatures {
    /// All features.
    All,
    /// All but the HTTP server, which is a third of the build time.
    NoServer,
}

/// Builds a crate in release mode and returns the program's path.
///
/// `target` is a build folder shared among crates, so that dependencies are built once.
pub(crate) fn build(
    crate_directory: &Path,
    target: Option<&Path>,
    parts: BuildFeatures,
) -> Result<PathBuf, Error> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--release", "--message-format=json-render-diagnostics"]);
    if parts == BuildFeatures::NoServer {
        command.arg("--no-default-features");
    }
    command.current_dir(crate_directory).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Variables that cargo set for the compiler itself must not reach the crate.
    for (name, _) in
        std::env::vars().filter(|(name, _)| name.starts_with("CARGO_PKG_") || name == "CARGO_MANIFEST_DIR")
    {
        command.env_remove(name);
    }
    if let Some(target) = target {
        command.env("CARGO_TARGET_DIR", target);
    }
    let folder =
        target.map(Path::to_owned).or_else(|| std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from));
    let stamp = folder.map(|folder| Stamp::of(crate_directory, &folder)).transpose()?;
    let spinner = terminal::spinner("Building", "cargo build --release");
    if spinner.is_hidden() {
        terminal::stage("Building", "cargo build --release: one or two minutes the first time");
    }
    let mut child = command.spawn().map_err(|error| {
        Error::other(format!("cargo cannot be started: {error}; install Rust from https://rustup.rs"))
    })?;
    // Cargo's stderr updates the spinner and is kept for the error message.
    let errors = child.stderr.take();
    let shown = spinner.clone();
    let log = std::thread::spawn(move || {
        let (mut log, mut compiled) = (Vec::new(), 0);
        let (started, mut reported) = (Instant::now(), Instant::now());
        for line in errors.into_iter().flat_map(|errors| BufReader::new(errors).lines()).map_while(Result::ok)
        {
            let line = line.trim().to_owned();
            if line.starts_with("Compiling") || line.starts_with("Downloaded") {
                shown.set_message(line.to_lowercase());
                compiled += usize::from(line.starts_with("Compiling"));
                // Without a terminal, print a line at intervals.
                if shown.is_hidden() && reported.elapsed() >= PROGRESS_INTERVAL {
                    reported = Instant::now();
                    let seconds = started.elapsed().as_secs();
                    terminal::more(&format!("{}: crate {compiled}, {seconds} s", line.to_lowercase()));
                }
            }
            log.push(line);
        }
        log
    });
    let mut program = None;
    for line in child
        .stdout
        .take()
        .into_iter()
        .flat_map(|output| BufReader::new(output).lines())
        .map_while(Result::ok)
    {
        let message: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        if let Some(executable) = message["executable"].as_str() {
            program = Some(PathBuf::from(executable));
        }
    }
    let status = child.wait().map_err(|error| Error::other(format!("cargo: {error}")))?;
    spinner.finish_and_clear();
    let log = log.join().unwrap_or_default();
    match program {
        Some(program) if status.success() => {
            if let Some(stamp) = stamp {
                stamp.write()?;
            }
            Ok(program)
        }
        _ => Err(Error::other(format!("{} failed to build:\n{}", crate_directory.display(), log.join("\n")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::SystemTime;

    #[test]
    fn rebuilds_a_crate_after_another_of_the_same_name() {
        let root = tempfile::tempdir().unwrap();
        let (folder, long_ago) = (root.path().join("target"), SystemTime::UNIX_EPOCH);
        fs::create_dir(&folder).unwrap();
        let crates = ["a", "b"].map(|name| root.path().join(name));
        let old = |directory: &Path| {
            let source = fs::File::create(directory.join("src/main.rs")).unwrap();
            source.set_modified(long_ago).unwrap();
        };
        for directory in &crates {
            fs::create_dir_all(directory.join("src")).unwrap();
            fs::write(directory.join("Cargo.toml"), "[package]\nname = \"model\"\n").unwrap();
            old(directory);
        }
        // Crate, whether its sources are touched, and whether its build finishes.
        for (directory, is_new, ends) in
            [(0, true, true), (0, false, true), (1, true, false), (0, true, true)]
        {
            let directory = &crates[directory];
            let stamp = Stamp::of(directory, &folder).unwrap();
            let modified = fs::metadata(directory.join("src/main.rs")).unwrap().modified().unwrap();
            assert_eq!(modified != long_ago, is_new, "{}", directory.display());
            if ends {
                stamp.write().unwrap();
            }
            old(directory);
        }
    }
}
