//! The output directory: whole or not at all.
//!
//! Everything is written into a staging directory beside the target and renamed into place at the end, so neither a
//! failure, nor a full disk, nor Ctrl-C leaves half a crate. A marker file says that forge made a directory; only
//! such a directory is ever replaced.

use crate::failure::Failure;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Says that forge made the directory it lies in, and with which options.
pub(crate) const MARKER: &str = "forge.json";

/// The staging directory that is in use, if one is.
static STAGED: Mutex<Option<PathBuf>> = Mutex::new(None);

fn remember(path: Option<PathBuf>) {
    *STAGED.lock().unwrap_or_else(PoisonError::into_inner) = path;
}

/// Ctrl-C and termination take the staging directory along.
pub(crate) fn clean_up_when_interrupted() {
    let handler = || {
        if let Some(staged) = STAGED.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = fs::remove_dir_all(staged);
        }
        std::process::exit(130);
    };
    // Without a handler an interrupted compilation leaves its hidden staging directory behind, and nothing worse.
    let _ = ctrlc::set_handler(handler);
}

/// A crate being written.
pub(crate) struct Staging {
    directory: tempfile::TempDir,
    target: PathBuf,
}

impl Staging {
    /// Makes room for a crate that will be `target`.
    pub(crate) fn begin(target: &Path, force: bool) -> Result<Staging, Failure> {
        if target.exists() {
            replaceable(target, force)?;
        }
        let parent = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        fs::create_dir_all(parent).map_err(|error| Failure::write(parent, &error))?;
        let name = target.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let directory = tempfile::Builder::new()
            .prefix(&format!(".{name}.forge-"))
            .tempdir_in(parent)
            .map_err(|error| Failure::write(parent, &error))?;
        remember(Some(directory.path().to_owned()));
        Ok(Staging { directory, target: target.to_owned() })
    }

    /// Where files are written meanwhile.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Writes one file.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Failure> {
        let path = self.path().join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| Failure::write(parent, &error))?;
        }
        fs::write(&path, bytes).map_err(|error| Failure::write(&path, &error))
    }

    /// Puts the crate in place. What was there before is gone only once the new one stands.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        let target = self.target;
        remember(None);
        let staged = self.directory.keep();
        open_to_readers(&staged);
        if !target.exists() {
            return fs::rename(&staged, &target).map_err(|error| Failure::write(&target, &error));
        }
        let old = staged.with_extension("old");
        // A build folder is worth keeping: cargo finds by itself what is stale in it.
        let built = target.join("target");
        if built.is_dir() {
            fs::rename(&built, staged.join("target")).map_err(|error| Failure::write(&built, &error))?;
        }
        fs::rename(&target, &old).map_err(|error| Failure::write(&target, &error))?;
        if let Err(error) = fs::rename(&staged, &target) {
            let _ = fs::rename(&old, &target);
            return Err(Failure::write(&target, &error));
        }
        fs::remove_dir_all(&old).map_err(|error| Failure::write(&old, &error))
    }
}

/// Temporary directories are private; a crate is not.
fn open_to_readers(directory: &Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // Only convenience: a crate that others cannot read still works.
        let _ = fs::set_permissions(directory, fs::Permissions::from_mode(0o755));
    }
}

/// Whether what is at `target` may go.
fn replaceable(target: &Path, force: bool) -> Result<(), Failure> {
    let shown = target.display();
    let empty = target.is_dir() && fs::read_dir(target).is_ok_and(|mut entries| entries.next().is_none());
    let ours = target.join(MARKER).is_file();
    match (empty || ours, force || empty) {
        (true, true) => Ok(()),
        (true, false) => Err(Failure::misuse(format!("{shown} exists already; --force replaces it"))),
        (false, _) => Err(Failure::misuse(format!(
            "{shown} exists and was not made by forge (it has no {MARKER}), so it is not replaced; choose another -o"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_forge_made_is_replaced_and_only_when_asked() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("out");
        let compile = |force| {
            let staging = Staging::begin(&target, force)?;
            staging.write("src/main.rs", b"fn main() {}")?;
            staging.write(MARKER, b"{}")?;
            staging.finish()
        };
        compile(false).unwrap();
        assert!(target.join("src/main.rs").is_file());
        assert!(compile(false).is_err());
        fs::create_dir_all(target.join("target/release")).unwrap();
        compile(true).unwrap();
        assert!(target.join("target/release").is_dir(), "what was built is kept");
        fs::remove_file(target.join(MARKER)).unwrap();
        assert!(compile(true).is_err());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1, "nothing is left beside the crate");
    }

    #[test]
    fn a_crate_that_is_not_finished_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let staging = Staging::begin(&root.path().join("out"), false).unwrap();
        staging.write("a/b", b"c").unwrap();
        drop(staging);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
