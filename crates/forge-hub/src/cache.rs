//! The Hugging Face cache on this machine, in the layout shared by all hub tools:
//!
//! ```text
//! models--owner--name/blobs/DIGEST                 contents; DIGEST.incomplete during download
//! models--owner--name/snapshots/COMMIT/config.json  links to blobs, by file name at a commit
//! models--owner--name/refs/main                    the commit that a branch pointed to
//! .locks/models--owner--name/DIGEST.lock           held while a blob is downloaded
//! ```
//!
//! A blob gets its final name after verification, a link is created after its blob, and a branch is updated
//! after all links. The cache is therefore consistent whenever a process ends.

use crate::checksum::Digest;
use crate::error::Error;
use crate::listing::is_commit;
use crate::request::Request;
use crate::select_files;
use crate::select_files::{Choice, INDEX, SINGLE};
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A repository's part of the cache.
pub(crate) struct Cache {
    root: PathBuf,
    folder: String,
}

/// A lock, held until it is dropped or the process ends.
pub(crate) struct Lock {
    _file: File,
}

impl Cache {
    pub(crate) fn of(root: &Path, repository: &str) -> Cache {
        Cache { root: root.to_owned(), folder: format!("models--{}", repository.replace('/', "--")) }
    }

    fn directory(&self) -> PathBuf {
        self.root.join(&self.folder)
    }

    /// Path of a complete blob.
    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        self.directory().join("blobs").join(digest.digits())
    }

    /// Path of a partial blob.
    pub(crate) fn partial(&self, digest: &Digest) -> PathBuf {
        self.blob(digest).with_extension("incomplete")
    }

    /// Whether a complete blob exists. Only verified contents have such a name.
    pub(crate) fn has(&self, digest: &Digest, size: u64) -> bool {
        fs::metadata(self.blob(digest)).is_ok_and(|metadata| metadata.is_file() && metadata.len() == size)
    }

    /// Directory of a commit's files.
    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.directory().join("snapshots").join(commit)
    }

    /// Creates the blob directory.
    pub(crate) fn prepare(&self) -> Result<(), Error> {
        let blobs = self.directory().join("blobs");
        fs::create_dir_all(&blobs).map_err(|error| Error::cache(&blobs, error))
    }

    /// Fails if the disk has less free space than `bytes`.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<(), Error> {
        let directory = self.directory();
        // If the free space is unknown, the write itself fails later.
        let Ok(disk) = rustix::fs::statvfs(&directory) else { return Ok(()) };
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if bytes > free {
            let (bytes, free) = (bytes.div_ceil(1_000_000), free / 1_000_000);
            return Err(Error::Space(format!(
                "not enough disk space: the download takes {bytes} MB and {} has {free} MB free; free space, or move the cache \
                 elsewhere with HF_HUB_CACHE",
                directory.display()
            )));
        }
        Ok(())
    }

    /// Waits until no other process downloads the blob. Calls `waits` if it has to wait.
    pub(crate) fn lock(&self, digest: &Digest, waits: impl FnOnce()) -> Result<Lock, Error> {
        let folder = self.root.join(".locks").join(&self.folder);
        let path = folder.join(format!("{digest}.lock"));
        let failed = |error| Error::cache(&path, error);
        fs::create_dir_all(&folder).map_err(failed)?;
        let mut waits = Some(waits);
        loop {
            let file = File::options().create(true).append(true).open(&path).map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    if let Some(waits) = waits.take() {
                        waits();
                    }
                    file.lock().map_err(failed)?;
                }
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            // Some tools delete the lock file when done; a lock on a deleted file has no effect.
            if is_at(&file, &path) {
                return Ok(Lock { _file: file });
            }
        }
    }

    /// Links a blob under its file name at a commit.
    pub(crate) fn link(&self, commit: &str, name: &str, digest: &Digest) -> Result<(), Error> {
        let path = self.snapshot(commit).join(name);
        let failed = |error| Error::cache(&path, error);
        let depth = 2 + name.matches('/').count();
        let target = PathBuf::from(format!("{}blobs/{digest}", "../".repeat(depth)));
        if fs::read_link(&path).is_ok_and(|old| old == target) {
            return Ok(());
        }
        let folder = path.parent().unwrap_or(&path);
        fs::create_dir_all(folder).map_err(failed)?;
        // Create the link elsewhere and rename it over the old one, so that one always exists.
        let staged = tempfile::Builder::new().tempdir_in(folder).map_err(failed)?;
        let link = staged.path().join("link");
        std::os::unix::fs::symlink(&target, &link).map_err(failed)?;
        fs::rename(&link, &path).map_err(failed)
    }

    /// Records the commit of a revision.
    pub(crate) fn point(&self, revision: &str, commit: &str) -> Result<(), Error> {
        if is_commit(revision) {
            return Ok(());
        }
        let path = self.directory().join("refs").join(revision);
        let failed = |error: io::Error| Error::cache(&path, error);
        let folder = path.parent().unwrap_or(&path);
        fs::create_dir_all(folder).map_err(failed)?;
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
        file.write_all(commit.as_bytes()).map_err(failed)?;
        file.persist(&path).map_err(|error| failed(error.error))?;
        Ok(())
    }

    /// The commit and the selected file of a request, if the cache has all of its files.
    pub(crate) fn find(&self, request: &Request) -> Option<(String, Option<String>)> {
        let commit = match is_commit(&request.revision) {
            true => request.revision.clone(),
            false => {
                let reference = self.directory().join("refs").join(&request.revision);
                fs::read_to_string(reference).ok()?.trim().to_owned()
            }
        };
        let snapshot = self.snapshot(&commit);
        let mut names = Vec::new();
        walk(&snapshot, "", &mut names);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        match Choice::of(request, &names).ok()? {
            Choice::Gguf(files) => Some((commit, files.into_iter().next())),
            Choice::Files(files) => files.iter().any(|file| file == SINGLE).then_some((commit, None)),
            Choice::Sharded(_) => {
                let index = fs::read(snapshot.join(INDEX)).ok()?;
                select_files::shards(&index, &names).ok()?;
                Some((commit, None))
            }
        }
    }

    /// Repositories in the cache.
    pub(crate) fn repositories(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter_map(|name| Some(name.strip_prefix("models--")?.replacen("--", "/", 1))).collect()
    }
}

/// Whether a path still refers to an open file.
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(ours), Ok(theirs)) => place(ours) == place(theirs),
        _ => false,
    }
}

/// Names of files below a directory whose blobs exist.
fn walk(root: &Path, below: &str, names: &mut Vec<String>) {
    for entry in fs::read_dir(root.join(below)).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let name = if below.is_empty() { name } else { format!("{below}/{name}") };
        match fs::metadata(entry.path()) {
            Ok(metadata) if metadata.is_dir() => walk(root, &name, names),
            Ok(_) => names.push(name),
            Err(_) => {}
        }
    }
}
