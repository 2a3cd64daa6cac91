//! Builds generated crates with cargo, and says what it is doing meanwhile.

use crate::error::Error;
use crate::terminal;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Whose program lies in a build folder under a package's name.
///
/// To cargo two crates of one name are one package, wherever they are, and what it has built of the one is fresh for the
/// other: without this, `forge run` would run a model's program in another format. So the sources of a crate that was
/// not the last of its name are made newer than whatever was built.
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
            // Gone until this build is done: one that is interrupted leaves nobody's program.
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

    /// The program is this crate's.
    fn leave(&self) -> Result<(), Error> {
        std::fs::write(&self.file, &self.directory).map_err(|error| Error::write(&self.file, &error))
    }
}

/// How often there is a line where there is no terminal.
const BETWEEN_LINES: Duration = Duration::from_secs(15);

/// How much of a crate is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parts {
    /// All of it.
    Whole,
    /// What needs no server, which is a third of the work.
    NoServer,
}

/// A crate built in release; gives the program.
///
/// `target` is the build folder, shared among crates where it is one, so that their dependencies are built once.
pub(crate) fn build(crate_directory: &Path, target: Option<&Path>, parts: Parts) -> Result<PathBuf, Error> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--release", "--message-format=json-render-diagnostics"]);
    if parts == Parts::NoServer {
        command.arg("--no-default-features");
    }
    command.current_dir(crate_directory).stdout(Stdio::piped()).stderr(Stdio::piped());
    // What the compiler was built with is not for what it compiles.
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
        terminal::stage("Building", "cargo build --release: a minute or two the first time");
    }
    let mut child = command
        .spawn()
        .map_err(|error| Error::other(format!("cargo cannot be run: {error}; https://rustup.rs")))?;
    // Cargo's progress goes to the spinner, and is kept in case the build fails.
    let errors = child.stderr.take();
    let shown = spinner.clone();
    let said = std::thread::spawn(move || {
        let (mut said, mut compiled) = (Vec::new(), 0);
        let (begun, mut told) = (Instant::now(), Instant::now());
        for line in errors.into_iter().flat_map(|errors| BufReader::new(errors).lines()).map_while(Result::ok)
        {
            let line = line.trim().to_owned();
            if line.starts_with("Compiling") || line.starts_with("Downloaded") {
                shown.set_message(line.to_lowercase());
                compiled += usize::from(line.starts_with("Compiling"));
                // Where there is no terminal, a line now and then.
                if shown.is_hidden() && told.elapsed() >= BETWEEN_LINES {
                    told = Instant::now();
                    let seconds = begun.elapsed().as_secs();
                    terminal::more(&format!("{}: crate {compiled}, {seconds} s", line.to_lowercase()));
                }
            }
            said.push(line);
        }
        said
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
    let said = said.join().unwrap_or_default();
    match program {
        Some(program) if status.success() => {
            if let Some(stamp) = stamp {
                stamp.leave()?;
            }
            Ok(program)
        }
        _ => Err(Error::other(format!("{} does not build:\n{}", crate_directory.display(), said.join("\n")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::SystemTime;

    #[test]
    fn a_crate_is_built_anew_after_another_of_its_name() {
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
        // Whether a crate's sources are made newer, and whether its build comes to an end.
        for (directory, is_new, ends) in
            [(0, true, true), (0, false, true), (1, true, false), (0, true, true)]
        {
            let directory = &crates[directory];
            let stamp = Stamp::of(directory, &folder).unwrap();
            let modified = fs::metadata(directory.join("src/main.rs")).unwrap().modified().unwrap();
            assert_eq!(modified != long_ago, is_new, "{}", directory.display());
            if ends {
                stamp.leave().unwrap();
            }
            old(directory);
        }
    }
}
