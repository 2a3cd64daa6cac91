//! A checkpoint as the frontend sees it: named files, read by position.
//!
//! The command line implements [`Checkpoint`] for a directory. Weights are read a few rows at a time and
//! never memory-mapped, which bounds the compiler's memory.

use forge_ir::Diagnostic;
use std::collections::BTreeMap;
use std::io;

/// The files of one model. Methods are called from many threads.
pub trait Checkpoint: Sync {
    /// Names of all files, without directories, in any order.
    fn files(&self) -> Vec<String>;

    /// The length of a file in bytes.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there is no such file, or any other I/O error.
    fn len(&self, file: &str) -> io::Result<u64>;

    /// Fills `out` with the bytes of a file from `offset` on.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the file ends before `out` is full, or any other I/O error.
    fn read(&self, file: &str, offset: u64, out: &mut [u8]) -> io::Result<()>;
}

/// A checkpoint in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryCheckpoint(pub BTreeMap<String, Vec<u8>>);

impl MemoryCheckpoint {
    fn bytes(&self, file: &str) -> io::Result<&[u8]> {
        self.0.get(file).map(Vec::as_slice).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Checkpoint for MemoryCheckpoint {
    fn files(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    fn len(&self, file: &str) -> io::Result<u64> {
        Ok(self.bytes(file)?.len() as u64)
    }

    fn read(&self, file: &str, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let bytes = self.bytes(file)?;
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let from = bytes[start..].get(..out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(from);
        Ok(())
    }
}

/// Extension of GGUF files.
pub(crate) const GGUF: &str = ".gguf";

/// Whether a file name has the GGUF extension.
pub(crate) fn is_gguf(file: &str) -> bool {
    file.ends_with(GGUF)
}

/// Maximum size of a text file. Configurations take kilobytes, shard indices and tokenizers megabytes.
const MAX_TEXT_BYTES: u64 = 256 << 20;

/// Contents of a text file, or `None` if it does not exist.
pub(crate) fn text(checkpoint: &dyn Checkpoint, file: &str) -> Result<Option<String>, Diagnostic> {
    let length = match checkpoint.len(file) {
        Ok(length) => length,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(file, &error)),
    };
    if length > MAX_TEXT_BYTES {
        return Err(Diagnostic::new(
            "F0101",
            format!("{file} is {length} bytes long, too large for a text file"),
        ));
    }
    if let Some(fault) = lfs_pointer(checkpoint, file, length) {
        return Err(fault);
    }
    let mut bytes = vec![0; length as usize];
    checkpoint.read(file, 0, &mut bytes).map_err(|error| unreadable(file, &error))?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Some(text)),
        Err(error) => {
            let byte = error.utf8_error().valid_up_to();
            Err(Diagnostic::new("F0101", format!("{file} is not UTF-8: invalid byte at {byte}")))
        }
    }
}

/// Whether a file exists. An existing file that cannot be read is an error.
pub(crate) fn exists(checkpoint: &dyn Checkpoint, file: &str) -> Result<bool, Diagnostic> {
    match checkpoint.len(file) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(unreadable(file, &error)),
    }
}

/// First bytes of a Git LFS pointer.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Maximum size of a Git LFS pointer.
const MAX_LFS_POINTER_BYTES: u64 = 1024;

/// The error for a Git LFS pointer: the repository was cloned without its large files.
pub(crate) fn lfs_pointer(checkpoint: &dyn Checkpoint, file: &str, length: u64) -> Option<Diagnostic> {
    let mut start = [0; LFS_POINTER.len()];
    if length > MAX_LFS_POINTER_BYTES || length < start.len() as u64 {
        return None;
    }
    checkpoint.read(file, 0, &mut start).ok()?;
    (start == LFS_POINTER).then(|| {
        Diagnostic::new("F0111", format!("{file} is a Git LFS pointer ({length} bytes), not the file itself"))
            .note("download the files: git lfs pull")
    })
}

/// The error for a file that cannot be read.
pub(crate) fn unreadable(file: &str, error: &io::Error) -> Diagnostic {
    Diagnostic::new("F0101", format!("{file} cannot be read: {error}"))
}
