//! Files that are there whole or not at all: what is written goes beside the file first, and takes its name when all of it is there.
//! Whoever is interrupted leaves what there was before.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// Whether a file could be written, or why not. Nothing is left of the attempt.
pub(crate) fn try_at(path: &Path) -> io::Result<()> {
    match beside(path) {
        Some(beside) => {
            std::fs::write(&beside, "")?;
            std::fs::remove_file(&beside)
        }
        None => std::fs::OpenOptions::new().write(true).open(path).map(drop),
    }
}

/// Writes a file, in the place of what it was.
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    let Some(beside) = beside(path) else { return std::fs::write(path, text) };
    let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    written
}

/// Where a file lies until it is whole; nowhere where the path is of something else than a file, as a pipe, whose name none can take.
fn beside(path: &Path) -> Option<PathBuf> {
    let is_something_else = std::fs::metadata(path).is_ok_and(|found| !found.is_file());
    let name = path.file_name().filter(|_| !is_something_else)?;
    let mut beside = OsString::from(".");
    beside.push(name);
    beside.push(format!(".{}.part", std::process::id()));
    Some(path.with_file_name(beside))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<OsString> {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn a_file_is_whole_or_as_it_was_and_nothing_lies_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.json");
        try_at(&path).unwrap();
        assert!(names(folder.path()).is_empty());
        write(&path, "one").unwrap();
        try_at(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one");
        write(&path, "two").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(names(folder.path()), ["table.json"]);
        let nowhere = folder.path().join("nowhere").join("table.json");
        assert!(try_at(&nowhere).is_err() && write(&nowhere, "one").is_err());
        // A folder is no file, and stays one.
        assert!(try_at(folder.path()).is_err() && write(folder.path(), "one").is_err());
        assert!(folder.path().is_dir());
    }
}
