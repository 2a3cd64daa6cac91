//! A checkpoint as the frontend sees it: named files, read by position.
//!
//! The command line implements [`Checkpoint`] over a folder. Weights are read a few rows at a time and never mapped,
//! so the memory that a compilation takes is what it asks for here and no more.

use forge_ir::Diagnostic;
use std::collections::BTreeMap;
use std::io;

/// The files of one model. Asked from many threads.
pub trait Checkpoint: Sync {
    /// The names of all files, in any order, without folders.
    fn files(&self) -> Vec<String>;

    /// The length of a file in bytes.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] when there is no such file; whatever the system says otherwise.
    fn len(&self, file: &str) -> io::Result<u64>;

    /// Fills `out` with the bytes of a file from `offset` on.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] when the file ends before `out` is full; whatever the system says otherwise.
    fn read(&self, file: &str, offset: u64, out: &mut [u8]) -> io::Result<()>;
}

/// A checkpoint in memory, for tests.
#[derive(Clone, Debug, Default)]
pub struct Memory(pub BTreeMap<String, Vec<u8>>);

impl Memory {
    fn bytes(&self, file: &str) -> io::Result<&[u8]> {
        self.0.get(file).map(Vec::as_slice).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Checkpoint for Memory {
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

/// No text file of a checkpoint is longer: configurations are kilobytes, shard indices and tokenizers megabytes.
const LONGEST_TEXT: u64 = 256 << 20;

/// A text file, or `None` where there is none.
pub(crate) fn text(checkpoint: &dyn Checkpoint, file: &str) -> Result<Option<String>, Diagnostic> {
    let length = match checkpoint.len(file) {
        Ok(length) => length,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(file, &error)),
    };
    if length > LONGEST_TEXT {
        return Err(Diagnostic::new(
            "F0101",
            format!("{file} is {length} bytes long, too long for a text file"),
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
            Err(Diagnostic::new("F0101", format!("{file} is not UTF-8 text: byte {byte} is none")))
        }
    }
}

/// Whether there is such a file; one that is there and cannot be read is a fault.
pub(crate) fn is_there(checkpoint: &dyn Checkpoint, file: &str) -> Result<bool, Diagnostic> {
    match checkpoint.len(file) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(unreadable(file, &error)),
    }
}

/// What a file begins with that Git LFS leaves in the place of a large one.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// No pointer is longer.
const LONGEST_LFS_POINTER: u64 = 1024;

/// The fault of a file that is a Git LFS pointer: the repository was cloned without the files that it points to.
pub(crate) fn lfs_pointer(checkpoint: &dyn Checkpoint, file: &str, length: u64) -> Option<Diagnostic> {
    let mut start = [0; LFS_POINTER.len()];
    if length > LONGEST_LFS_POINTER || length < start.len() as u64 {
        return None;
    }
    checkpoint.read(file, 0, &mut start).ok()?;
    (start == LFS_POINTER).then(|| {
        Diagnostic::new(
            "F0111",
            format!("{file} is a Git LFS pointer of {length} bytes, not the file itself"),
        )
        .note("fetch the files that the repository points to: git lfs pull")
    })
}

/// A file that is there and cannot be read.
pub(crate) fn unreadable(file: &str, error: &io::Error) -> Diagnostic {
    Diagnostic::new("F0101", format!("{file} cannot be read: {error}"))
}
