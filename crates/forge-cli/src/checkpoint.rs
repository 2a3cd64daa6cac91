//! A checkpoint on disk: a directory, or a repository of the hub, which is fetched into the cache where it is not there.
//!
//! Files are read by position and never mapped, so the memory a compilation takes is what it asks for.

use crate::failure::Failure;
use crate::fetch::fetch;
use forge_frontend::Checkpoint;
use forge_hub::Request;
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
    /// Finds the checkpoint that the user named. What is on this disk goes before what is on the hub.
    pub(crate) fn find(model: &str) -> Result<Directory, Failure> {
        let path = PathBuf::from(model);
        let path = match Request::parse(model) {
            Some(request) if !path.exists() => fetch(&request)?,
            _ => path,
        };
        let shown = path.display();
        if path.is_file() {
            return Err(Failure::other(format!(
                "{shown} is a file; a checkpoint is a directory with config.json in it"
            )));
        }
        if !path.is_dir() {
            return Err(Failure::other(format!(
                "{model} is neither a directory nor the name of a repository of the hub, as in owner/name"
            )));
        }
        if !path.join("config.json").is_file() {
            return Err(Failure::other(format!(
                "{shown} has no config.json; a checkpoint is a directory with config.json, safetensors and tokenizer.json"
            )));
        }
        Ok(Directory::at(path))
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
        let named = match Request::parse(asked_for) {
            Some(request) if !path.exists() => return request.name().to_owned(),
            _ => path.canonicalize().ok(),
        };
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
