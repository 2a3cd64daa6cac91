//! Sequential reads from the start of a file.
//!
//! A GGUF header does not state its length, so bytes are fetched in pieces. Every read is bounded before
//! allocation, by the bytes left in the file and by a maximum header size.

use crate::checkpoint::files::{Checkpoint, unreadable};
use forge_ir::Diagnostic;

/// Bytes fetched at once.
const CHUNK: u64 = 1 << 16;

/// Maximum header size in bytes. A vocabulary of 256k tokens takes 20 MB.
const MAX_STRING_BYTES: u64 = 256 << 20;

/// A read position in a file.
pub(crate) struct Cursor<'a> {
    checkpoint: &'a dyn Checkpoint,
    pub(crate) file: &'a str,
    /// Length of the file.
    pub(crate) length: u64,
    /// Offset of the next byte.
    pub(crate) at: u64,
    piece: Vec<u8>,
    /// Offset of the current piece.
    start: u64,
}

impl<'a> Cursor<'a> {
    /// A cursor at offset 0.
    pub(crate) fn new(checkpoint: &'a dyn Checkpoint, file: &'a str) -> Result<Cursor<'a>, Diagnostic> {
        let length = checkpoint.len(file).map_err(|error| unreadable(file, &error))?;
        Ok(Cursor { checkpoint, file, length, at: 0, piece: Vec::new(), start: 0 })
    }

    /// An error about the file.
    pub(crate) fn fault(&self, what: &str) -> Diagnostic {
        Diagnostic::new("F0109", format!("{}: invalid or unsupported GGUF file: {what}", self.file))
    }

    /// Bytes that the header may still have.
    fn left(&self) -> u64 {
        self.length.min(MAX_STRING_BYTES).saturating_sub(self.at)
    }

    /// Fails if `bytes` more bytes are not available.
    pub(crate) fn expect(&self, bytes: Option<u64>, what: &str) -> Result<(), Diagnostic> {
        if bytes.is_some_and(|bytes| bytes <= self.left()) {
            return Ok(());
        }
        if self.length > MAX_STRING_BYTES {
            return Err(
                self.fault(&format!("{what} exceeds the maximum header size of {MAX_STRING_BYTES} bytes"))
            );
        }
        let fault = Diagnostic::new(
            "F0109",
            format!("{} is truncated: it has {} bytes, and {what} goes beyond", self.file, self.length),
        );
        Err(fault.note("the download may have been interrupted: download it again"))
    }

    /// Fills `out`.
    fn fill(&mut self, mut out: &mut [u8], what: &str) -> Result<(), Diagnostic> {
        self.expect(Some(out.len() as u64), what)?;
        while !out.is_empty() {
            let held = self.start + self.piece.len() as u64;
            if self.at < self.start || self.at >= held {
                self.piece.resize(CHUNK.min(self.length - self.at) as usize, 0);
                self.start = self.at;
                self.checkpoint
                    .read(self.file, self.start, &mut self.piece)
                    .map_err(|error| unreadable(self.file, &error))?;
            }
            let from = &self.piece[(self.at - self.start) as usize..];
            let (now, later) = out.split_at_mut(out.len().min(from.len()));
            now.copy_from_slice(&from[..now.len()]);
            self.at += now.len() as u64;
            out = later;
        }
        Ok(())
    }

    /// `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Diagnostic> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    /// A 32-bit integer.
    pub(crate) fn u32(&mut self, what: &str) -> Result<u32, Diagnostic> {
        self.array(what).map(u32::from_le_bytes)
    }

    /// A 64-bit integer.
    pub(crate) fn u64(&mut self, what: &str) -> Result<u64, Diagnostic> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A string: its length and its bytes.
    pub(crate) fn text(&mut self, what: &str) -> Result<String, Diagnostic> {
        let length = self.u64(what)?;
        self.expect(Some(length), what)?;
        let mut bytes = vec![0; length as usize];
        self.fill(&mut bytes, what)?;
        String::from_utf8(bytes).map_err(|_| self.fault(&format!("{what} is not UTF-8")))
    }
}
