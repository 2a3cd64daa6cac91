//! A checkpoint on disk: a directory, or a repository of the local hub cache.
//!
//! Files are read by position and never mapped, so the memory a compilation takes is what it asks for.

use crate::failure::Failure;
use forge_frontend::Checkpoint;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The files of one directory.
pub(crate) struct Directory {
    root: PathBuf,
    open: Mutex<BTreeMap<String, File>>,
}

impl Directory {
    /// Finds the checkpoint that the user named.
    pub(crate) fn find(model: &str) -> Result<Directory, Failure> {
        let path = PathBuf::from(model);
        if path.is_dir() {
            if !path.join("config.json").is_file() {
                return Err(Failure::other(format!(
                    "{model} has no config.json; a checkpoint is a directory with config.json, safetensors and tokenizer.json"
                )));
            }
            return Ok(Directory::at(path));
        }
        if path.is_file() {
            return Err(Failure::other(format!(
                "{model} is a file; a checkpoint is a directory with config.json in it"
            )));
        }
        match in_hub_cache(model) {
            Some(snapshot) => Ok(Directory::at(snapshot)),
            None if is_repository(model) => Err(Failure::other(format!(
                "{model} is neither a directory nor in the local hub cache; fetch it first: hf download {model}"
            ))),
            None => Err(Failure::other(format!("{model} is not a directory"))),
        }
    }

    /// The files of a directory, whatever they are.
    pub(crate) fn at(root: PathBuf) -> Directory {
        Directory { root, open: Mutex::new(BTreeMap::new()) }
    }

    /// Where it lies.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// What the model is called unless the user says otherwise.
    pub(crate) fn name(&self, asked_for: &str) -> String {
        // A snapshot's own directory is a hash; a repository's name ends in the model's.
        let path = Path::new(asked_for);
        let named = if path.is_dir() { path.canonicalize().ok() } else { Some(path.to_owned()) };
        let name = named.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        name.unwrap_or_else(|| "model".to_owned())
    }
}

impl Checkpoint for Directory {
    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.root).into_iter().flatten().flatten();
        let files = entries.filter(|entry| entry.path().is_file());
        let mut names: Vec<String> = files.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    fn len(&self, file: &str) -> io::Result<u64> {
        let metadata = std::fs::metadata(self.root.join(file))?;
        if metadata.is_file() { Ok(metadata.len()) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    fn read(&self, file: &str, offset: u64, out: &mut [u8]) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        let handle = {
            let mut open = self.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            match open.get(file) {
                Some(handle) => handle.try_clone()?,
                None => {
                    let handle = File::open(self.root.join(file))?;
                    open.insert(file.to_owned(), handle.try_clone()?);
                    handle
                }
            }
        };
        handle.read_exact_at(out, offset)
    }
}

/// Whether a name could be a hub repository's, `owner/name`.
fn is_repository(name: &str) -> bool {
    let plain = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    name.split_once('/').is_some_and(|(owner, name)| plain(owner) && plain(name))
}

/// The newest snapshot of a repository in the hub's cache on this machine.
fn in_hub_cache(name: &str) -> Option<PathBuf> {
    if !is_repository(name) {
        return None;
    }
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let cache = variable("HF_HUB_CACHE")
        .or_else(|| variable("HF_HOME").map(|home| home.join("hub")))
        .or_else(|| variable("HOME").map(|home| home.join(".cache/huggingface/hub")))?;
    let repository = cache.join(format!("models--{}", name.replace('/', "--")));
    let commit = std::fs::read_to_string(repository.join("refs/main")).ok()?;
    let snapshot = repository.join("snapshots").join(commit.trim());
    snapshot.join("config.json").is_file().then_some(snapshot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_are_told_from_paths() {
        for name in ["meta-llama/Llama-3.2-1B", "a/b"] {
            assert!(is_repository(name), "{name}");
        }
        for name in ["llama", "./llama", "a/b/c", "/tmp/x", "a/", "../a"] {
            assert!(!is_repository(name), "{name}");
        }
    }
}
