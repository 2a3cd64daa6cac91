//! The output directory, replaced atomically.
//!
//! Files are written into a staging directory next to the target and renamed into place at the end. A
//! failure, a full disk or Ctrl-C never leaves a partial crate. A marker file identifies directories that
//! forge wrote; only those are replaced.

use crate::error::Error;
use crate::terminal;
use forge_ir::units::size;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// File that identifies a directory written by forge, with the options used.
pub(crate) const MARKER: &str = "forge.json";

/// Files that survive when a crate is replaced: cargo's build directory, which cargo keeps up to date, and
/// the results of `tune`, which are slow to measure and remain valid.
const PRESERVED: [&str; 2] = ["target", "tuned.json"];

/// Staging directories in use.
///
/// Creating or removing one, or creating a file in one, requires this lock. The Ctrl-C handler takes it and
/// never releases it, so it removes every staging directory and no new one can appear.
static STAGING_DIRECTORY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn staged() -> MutexGuard<'static, Vec<PathBuf>> {
    STAGING_DIRECTORY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Installs a handler that removes staging directories on Ctrl-C or SIGTERM. A rename in progress completes
/// first.
pub(crate) fn clean_up_when_interrupted() {
    let handler = || {
        let staged = staged();
        for directory in staged.iter() {
            let _ = fs::remove_dir_all(directory);
        }
        terminal::exit_interrupted(if staged.is_empty() { "" } else { "; nothing was written" });
    };
    // Without a handler, an interrupted compilation leaves its hidden staging directory behind.
    let _ = ctrlc::set_handler(handler);
}

/// A crate being written. It is removed on drop unless finished.
pub(crate) struct Staging {
    directory: PathBuf,
    target: PathBuf,
    force: bool,
    /// Canonical paths of the inputs.
    sources: Vec<PathBuf>,
}

impl Staging {
    /// Creates the staging directory for a crate at `target` made from `sources`, each a file or a directory.
    pub(crate) fn begin(target: &Path, force: bool, sources: &[&Path]) -> Result<Staging, Error> {
        let shown = target.display();
        let Some(name) = target.file_name() else {
            return Err(Error::usage(format!(
                "-o {shown}: expected the name of the output directory, such as -o out"
            )));
        };
        // A link is kept; the directory it points to is replaced.
        let target = match target.canonicalize() {
            Ok(target) => target,
            Err(_) if target.is_symlink() => {
                return Err(Error::usage(format!(
                    "{shown} is a dangling link; remove it, or choose another -o"
                )));
            }
            Err(_) => target.to_owned(),
        };
        let sources: Vec<PathBuf> = sources.iter().flat_map(|source| canonical_paths(source)).collect();
        replaceable(&target, force, &sources)?;
        let parent = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        fs::create_dir_all(parent).map_err(|error| Error::write(parent, &error))?;
        let mut staged = staged();
        let directory = tempfile::Builder::new()
            .prefix(&format!(".{}.forge-", name.to_string_lossy()))
            .tempdir_in(parent)
            .map_err(|error| Error::write(parent, &error))?
            .keep();
        staged.push(directory.clone());
        Ok(Staging { directory, target, force, sources })
    }

    /// The staging directory.
    pub(crate) fn path(&self) -> &Path {
        &self.directory
    }

    /// Writes one file.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let _held = staged();
        let path = self.path().join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| Error::write(parent, &error))?;
        }
        fs::write(&path, bytes).map_err(|error| Error::write(&path, &error))
    }

    /// Creates a file for streaming writes.
    pub(crate) fn create(&self, name: &str) -> Result<File, Error> {
        let _held = staged();
        let path = self.path().join(name);
        File::create(&path).map_err(|error| Error::write(&path, &error))
    }

    /// Fails if the disk has less free space than `needed` bytes of weights.
    pub(crate) fn check_disk_space(&self, needed: u64) -> Result<(), Error> {
        match free_space(&self.directory) {
            Some(free) => check_free_space(&self.target, needed, free),
            None => Ok(()),
        }
    }

    /// Moves the crate into place. An existing one is removed only after the new one is there.
    pub(crate) fn finish(self) -> Result<(), Error> {
        // Ctrl-C waits for the rename to complete or be undone.
        let mut held = staged();
        self.put_in_place()?;
        // The staging directory has been renamed.
        held.retain(|directory| *directory != self.directory);
        Ok(())
    }

    /// [`Staging::finish`] with the lock held.
    fn put_in_place(&self) -> Result<(), Error> {
        let (staged, target) = (&self.directory, &self.target);
        // Check again: the target may have changed during compilation.
        replaceable(target, self.force, &self.sources)?;
        open_to_readers(staged);
        if !target.join(MARKER).is_file() {
            // rename(2) replaces only an absent or empty directory.
            return fs::rename(staged, target).map_err(|error| Error::write(target, &error));
        }
        let mut old = staged.clone().into_os_string();
        old.push(".old");
        let old = PathBuf::from(old);
        fs::rename(target, &old).map_err(|error| Error::write(target, &error))?;
        if let Err(error) = fs::rename(staged, target) {
            return Err(match fs::rename(&old, target) {
                Ok(()) => Error::write(target, &error),
                Err(_) => Error::other(format!(
                    "{} cannot be written: {error}; the previous crate was moved to {}",
                    target.display(),
                    old.display()
                )),
            });
        }
        for name in PRESERVED {
            let (from, to) = (old.join(name), target.join(name));
            if from.symlink_metadata().is_ok() {
                fs::rename(&from, &to).map_err(|error| {
                    Error::other(format!(
                        "{} was written, but {} could not be moved into it: {error}",
                        target.display(),
                        from.display()
                    ))
                })?;
            }
        }
        fs::remove_dir_all(&old).map_err(|error| Error::write(&old, &error))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let mut staged = staged();
        // A no-op if the crate was finished.
        let _ = fs::remove_dir_all(&self.directory);
        staged.retain(|directory| *directory != self.directory);
    }
}

/// Free bytes in a directory's file system, if reported.
#[cfg(unix)]
fn free_space(directory: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(directory).ok()?;
    // Some FUSE file systems report zero blocks.
    (disk.f_blocks > 0).then(|| disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(not(unix))]
fn free_space(_: &Path) -> Option<u64> {
    None
}

/// Fails if `free` is too small for the weights and 16 MB of source text.
fn check_free_space(target: &Path, weights: u64, free: u64) -> Result<(), Error> {
    const TEXT: u64 = 16_000_000;
    if weights + TEXT <= free {
        return Ok(());
    }
    Err(Error::other(format!(
        "{}: not enough disk space: the crate takes {} and {} is free; free {} or choose another -o",
        target.display(),
        size(weights + TEXT),
        size(free),
        size(weights + TEXT - free),
    )))
}

/// Canonical paths of a file or directory and of the directory's files, which may be links.
fn canonical_paths(source: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(source)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_file());
    std::iter::once(source.to_owned()).chain(files).filter_map(|path| path.canonicalize().ok()).collect()
}

/// Makes the directory world-readable: temporary directories are created private.
fn open_to_readers(directory: &Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // A failure here is not fatal.
        let _ = fs::set_permissions(directory, fs::Permissions::from_mode(0o755));
    }
}

/// Fails if `target` exists and must not be replaced, or contains one of `sources` that would be lost.
fn replaceable(target: &Path, force: bool, sources: &[PathBuf]) -> Result<(), Error> {
    if !target.exists() {
        return Ok(());
    }
    let shown = target.display();
    let whole = target.canonicalize().map_err(|error| Error::read(target, &error))?;
    let is_lost = |source: &&PathBuf| {
        let inside = source.strip_prefix(&whole);
        inside.is_ok_and(|inside| !PRESERVED.iter().any(|kept| inside.starts_with(kept)))
    };
    if let Some(source) = sources.iter().find(is_lost) {
        return Err(Error::usage(format!(
            "{} is an input of the compilation and would be deleted with {shown}; choose another -o",
            source.display()
        )));
    }
    let empty = target.is_dir() && fs::read_dir(target).is_ok_and(|mut entries| entries.next().is_none());
    let ours = target.join(MARKER).is_file();
    match (empty || ours, force || empty) {
        (true, true) => Ok(()),
        (true, false) => Err(Error::usage(format!("{shown} already exists; pass --force to replace it"))),
        (false, _) => Err(Error::usage(format!(
            "{shown} was not written by forge (it has no {MARKER}) and is not replaced; choose another -o"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a small crate, running `meanwhile` before it is moved into place.
    fn compile(target: &Path, force: bool, sources: &[&Path], meanwhile: impl FnOnce()) -> Result<(), Error> {
        let staging = Staging::begin(target, force, sources)?;
        staging.write("src/main.rs", b"fn main() {}")?;
        staging.write(MARKER, b"{}")?;
        meanwhile();
        staging.finish()
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn replaces_only_generated_crates_and_only_with_force() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("out");
        let compile = |force| compile(&target, force, &[], || ());
        compile(false).unwrap();
        assert!(target.join("src/main.rs").is_file());
        assert!(compile(false).is_err());
        fs::create_dir_all(target.join("target/release")).unwrap();
        fs::write(target.join("tuned.json"), "measured").unwrap();
        fs::write(target.join("src/notes.txt"), "not kept").unwrap();
        compile(true).unwrap();
        assert!(target.join("target/release").is_dir(), "what was built is kept");
        assert_eq!(names(&target), [MARKER, "src", "target", "tuned.json"], "and so is what was measured");
        assert_eq!(names(&target.join("src")), ["main.rs"]);
        fs::remove_file(target.join(MARKER)).unwrap();
        assert!(compile(true).is_err());
        assert_eq!(names(root.path()), ["out"], "nothing is left beside the crate");
    }

    #[test]
    fn rejects_inputs_inside_the_replaced_crate() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("out");
        compile(&target, false, &[], || ()).unwrap();
        let model = target.join("models/qwen3");
        fs::create_dir_all(&model).unwrap();
        fs::write(model.join("config.json"), "{}").unwrap();
        // A directory whose only file is a link into the crate.
        let links = root.path().join("links");
        fs::create_dir(&links).unwrap();
        std::os::unix::fs::symlink(model.join("config.json"), links.join("config.json")).unwrap();
        let table = target.join("measured.json");
        fs::write(&table, "{}").unwrap();
        let winding = root.path().join("links/../out/models/qwen3");
        for source in [&model, &target, &winding, &links, &table] {
            let Err(Error::Usage(message)) = compile(&target, true, &[source], || ()) else {
                panic!("{} is gone", source.display());
            };
            assert!(
                message.contains("is an input of the compilation") && message.contains("choose another -o"),
                "{message}"
            );
        }
        // Inputs that are kept, or lie outside the target, are allowed, including the parent directory.
        fs::write(target.join("tuned.json"), "{}").unwrap();
        compile(&target, true, &[root.path(), &target.join("tuned.json")], || ()).unwrap();
        assert_eq!(names(&target), [MARKER, "src", "tuned.json"]);
    }

    #[test]
    fn does_not_replace_a_directory_created_meanwhile() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("out");
        let appears = || {
            fs::create_dir(&target).unwrap();
            fs::write(target.join("diary.txt"), "dear diary").unwrap();
        };
        assert!(compile(&target, true, &[], appears).is_err());
        assert_eq!(names(&target), ["diary.txt"]);
        assert_eq!(names(root.path()), ["out"], "nothing is left beside it");
    }

    #[test]
    fn keeps_symlinks_and_rejects_dangling_ones() {
        let root = tempfile::tempdir().unwrap();
        let (link, behind) = (root.path().join("out"), root.path().join("behind"));
        std::os::unix::fs::symlink(&behind, &link).unwrap();
        let Err(Error::Usage(message)) = compile(&link, true, &[], || ()) else { panic!("it leads nowhere") };
        assert!(message.contains("dangling link"), "{message}");
        assert_eq!(names(root.path()), ["out"]);
        fs::create_dir(&behind).unwrap();
        for force in [false, true] {
            compile(&link, force, &[], || ()).unwrap();
            assert!(link.is_symlink() && behind.join(MARKER).is_file());
        }
        assert_eq!(names(root.path()), ["behind", "out"]);
    }

    #[test]
    fn failed_rename_leaves_no_files() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("out");
        // A dangling link that appeared after the first check.
        let appears = || std::os::unix::fs::symlink("nowhere", &target).unwrap();
        assert!(compile(&target, false, &[], appears).is_err());
        assert_eq!(names(root.path()), ["out"]);
        assert!(target.is_symlink());
    }

    #[test]
    fn reports_insufficient_disk_space_before_writing() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("out");
        assert!(check_free_space(&target, 1_000_000_000, 1_016_000_000).is_ok());
        let Err(Error::Other(message)) = check_free_space(&target, 1_000_000_000, 500_000_000) else {
            panic!("it does not fit")
        };
        for part in ["takes 1.02 GB", "500 MB is free", "free 516 MB"] {
            assert!(message.contains(part), "{message}");
        }
        let staging = Staging::begin(&target, false, &[]).unwrap();
        staging.check_disk_space(1).unwrap();
        let Err(Error::Other(message)) = staging.check_disk_space(1 << 62) else {
            panic!("no disk is so large")
        };
        assert!(message.contains("not enough disk space"), "{message}");
    }

    #[test]
    fn unfinished_crates_leave_no_files() {
        let root = tempfile::tempdir().unwrap();
        let staging = Staging::begin(&root.path().join("out"), false, &[]).unwrap();
        staging.write("a/b", b"c").unwrap();
        drop(staging);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
