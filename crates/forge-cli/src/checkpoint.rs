//! A checkpoint on disk: a directory, a GGUF file, or a Hugging Face repository that is downloaded to the
//! cache.
//!
//! Files are read by position and never memory-mapped, so compiler memory stays under its control.

use crate::error::Error;
use crate::fetch::fetch;
use forge_frontend::Checkpoint;
use forge_hub::{Request, part_of};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// A directory of checkpoint files, or a subset of it.
pub(crate) struct Directory {
    root: PathBuf,
    /// If set, only these files belong to the checkpoint: a GGUF file or all parts of a split one.
    only: Option<Vec<String>>,
    open: Mutex<BTreeMap<String, File>>,
}

impl Directory {
    /// Finds the checkpoint that the user named. A local path takes precedence over the hub.
    pub(crate) fn find(model: &str) -> Result<Directory, Error> {
        let path = PathBuf::from(model);
        let path = match Request::parse(model) {
            Some(request) if !path.exists() => fetch(&request)?,
            _ => path,
        };
        let shown = path.display();
        if path.is_dir() {
            let directory = Directory::at(path.clone());
            if !directory.is_checkpoint() {
                if directory.files().iter().any(|file| file == "adapter_config.json") {
                    return Err(Error::other(format!(
                        "{shown} is a LoRA adapter{}: merge it into its base model (peft's merge_and_unload, then save_pretrained) and compile the result",
                        directory.adapter_base().map(|base| format!(" for {base}")).unwrap_or_default()
                    )));
                }
                return Err(Error::other(format!(
                    "{shown} has no config.json; expected a directory with config.json, safetensors and tokenizer.json, or a GGUF file"
                )));
            }
            return Ok(directory);
        }
        if path.is_file() {
            return Directory::of_file(&path).ok_or_else(|| {
                Error::other(format!(
                    "{shown} is not a GGUF file; expected a GGUF file, or a directory with config.json"
                ))
            });
        }
        Err(Error::other(format!(
            "{model}: no such directory or file; expected a path, or a hub repository such as owner/name"
        )))
    }

    /// All files of a directory.
    pub(crate) fn at(root: PathBuf) -> Directory {
        Directory { root, only: None, open: Mutex::new(BTreeMap::new()) }
    }

    /// A GGUF file, including the other parts of a split one.
    fn of_file(path: &Path) -> Option<Directory> {
        let name = path.file_name()?.to_str().filter(|name| name.ends_with(GGUF))?;
        let root = path.parent().filter(|root| !root.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut directory = Directory::at(root.to_owned());
        let parts = part_of(name);
        let is_meant = |file: &String| file == name || parts.is_some() && part_of(file) == parts;
        directory.only = Some(directory.files().into_iter().filter(is_meant).collect());
        Some(directory)
    }

    /// Whether the directory contains config.json or a GGUF file.
    fn is_checkpoint(&self) -> bool {
        self.files().iter().any(|file| file == "config.json" || file.ends_with(GGUF))
    }

    /// The base model named in a LoRA adapter's configuration.
    fn adapter_base(&self) -> Option<String> {
        let text = std::fs::read(self.root.join("adapter_config.json")).ok()?;
        let config: serde_json::Value = serde_json::from_slice(&text).ok()?;
        config["base_model_name_or_path"].as_str().map(str::to_owned)
    }

    /// The directory.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The default model name.
    pub(crate) fn name(&self, model: &str) -> String {
        // A snapshot's directory name is a hash, so the name comes from the repository.
        let path = Path::new(model);
        let named = match Request::parse(model) {
            Some(request) if !path.exists() => Some(PathBuf::from(request.name())),
            _ if path.is_dir() => path.canonicalize().ok(),
            _ => Some(path.to_owned()),
        };
        let name = named.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_else(|| "model".to_owned());
        match part_of(&name) {
            Some((stem, _)) => stem.to_owned(),
            None => name.strip_suffix(GGUF).unwrap_or(&name).to_owned(),
        }
    }
}

impl Directory {
    /// Whether a file belongs to the checkpoint.
    fn has(&self, file: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|name| name == file))
    }
}

impl Checkpoint for Directory {
    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.root).into_iter().flatten().flatten();
        // Dangling links are listed, so that reading one fails instead of treating the file as absent.
        let is_link = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.is_symlink());
        let files = entries.map(|entry| (entry.path(), entry)).filter(|(path, _)| match path.metadata() {
            Ok(found) => found.is_file(),
            Err(_) => is_link(path),
        });
        let mut names: Vec<String> =
            files.filter_map(|(_, entry)| entry.file_name().into_string().ok()).collect();
        names.retain(|name| self.has(name));
        names.sort();
        names
    }

    fn len(&self, file: &str) -> io::Result<u64> {
        if !self.has(file) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let path = self.root.join(file);
        match path.metadata() {
            Ok(found) if found.is_file() => Ok(found.len()),
            Ok(_) => Err(io::Error::other("not a regular file")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => match path.read_link() {
                // Links in a hub cache dangle when blobs have been removed.
                Ok(target) => Err(io::Error::other(format!(
                    "dangling link to {}; download the checkpoint again, or remove the link",
                    target.display()
                ))),
                Err(_) => Err(error),
            },
            Err(error) => Err(error),
        }
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

/// File extension of GGUF files.
const GGUF: &str = ".gguf";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_name_defaults_to_the_file_name() {
        let named = |name: &str| Directory::at(PathBuf::new()).name(name);
        assert_eq!(named("x/Llama-3.2-1B-Q8_0.gguf"), "Llama-3.2-1B-Q8_0");
        assert_eq!(named("x/Llama-00001-of-00002.gguf"), "Llama");
        assert_eq!(named("owner/Llama-3.2-1B"), "Llama-3.2-1B");
    }

    #[test]
    fn gguf_checkpoint_ignores_other_files() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["config.json", "a.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf"] {
            std::fs::write(folder.path().join(name), name).unwrap();
        }
        let files = |name: &str| {
            let directory = Directory::find(folder.path().join(name).to_str().unwrap()).ok()?;
            assert!(directory.len("config.json").is_err());
            Some(directory.files())
        };
        assert_eq!(files("a.gguf"), Some(vec!["a.gguf".to_owned()]));
        let both = ["b-00001-of-00002.gguf", "b-00002-of-00002.gguf"].map(str::to_owned);
        assert_eq!(files(&both[1]), Some(both.to_vec()));
        assert_eq!(files("config.json"), None);
    }

    #[test]
    fn rejects_lora_adapters() {
        let folder = tempfile::tempdir().unwrap();
        let config = r#"{"base_model_name_or_path": "owner/base", "peft_type": "LORA"}"#;
        std::fs::write(folder.path().join("adapter_config.json"), config).unwrap();
        std::fs::write(folder.path().join("adapter_model.safetensors"), "").unwrap();
        let Err(failure) = Directory::find(folder.path().to_str().unwrap()) else {
            panic!("it was accepted")
        };
        let message = format!("{failure:?}");
        assert!(message.contains("is a LoRA adapter for owner/base: merge it"), "{message}");
    }

    #[test]
    fn dangling_links_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("../blobs/gone", folder.path().join("generation_config.json")).unwrap();
        std::fs::create_dir(folder.path().join("tokenizer.json")).unwrap();
        let directory = Directory::at(folder.path().to_owned());
        assert_eq!(directory.files(), ["generation_config.json"]);
        let message = directory.len("generation_config.json").unwrap_err().to_string();
        assert!(message.contains("dangling link to ../blobs/gone"), "{message}");
        assert_eq!(directory.len("tokenizer.json").unwrap_err().to_string(), "not a regular file");
        assert_eq!(directory.len("config.json").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
