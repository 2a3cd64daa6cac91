//! Atomic file writes: a temporary file next to the target, then a rename. After an interruption the old file
//! is still complete.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// Checks that a file can be written, and leaves nothing behind.
pub fn try_at(path: &Path) -> io::Result<()> {
    match temporary(path) {
        Some(temporary) => {
            std::fs::write(&temporary, "")?;
            std::fs::remove_file(&temporary)
        }
        None => std::fs::OpenOptions::new().write(true).open(path).map(drop),
    }
}

/// Replaces a file's content atomically.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    let Some(temporary) = temporary(path) else { return std::fs::write(path, text) };
    let written = std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

/// The temporary file next to `path`; `None` if `path` is not a regular file, such as a pipe.
fn temporary(path: &Path) -> Option<PathBuf> {
    let is_special = std::fs::metadata(path).is_ok_and(|found| !found.is_file());
    let name = path.file_name().filter(|_| !is_special)?;
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}.part", std::process::id()));
    Some(path.with_file_name(temporary))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<OsString> {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn writes_are_atomic_and_leave_no_temporary_file() {
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
        // A directory is rejected and stays a directory.
        assert!(try_at(folder.path()).is_err() && write(folder.path(), "one").is_err());
        assert!(folder.path().is_dir());
    }
}
