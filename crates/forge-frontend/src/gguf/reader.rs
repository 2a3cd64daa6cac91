//! Reads a file's first bytes one thing after the other, and never further than the file or a header goes.
//!
//! A header has no length of its own, so bytes are fetched a piece at a time. What is read is bounded before it is allocated:
//! by the bytes that the file has left, and by what no header exceeds.

use crate::checkpoint::{Checkpoint, unreadable};
use forge_ir::Diagnostic;

/// Bytes fetched at once.
const PIECE: u64 = 1 << 16;

/// No header is longer: that of a vocabulary of 256 thousand tokens takes 20 MB.
const LONGEST: u64 = 256 << 20;

/// A place in a file.
pub(crate) struct Cursor<'a> {
    checkpoint: &'a dyn Checkpoint,
    pub(crate) file: &'a str,
    /// Length of the file.
    pub(crate) length: u64,
    /// Where the next byte lies.
    pub(crate) at: u64,
    piece: Vec<u8>,
    /// Where the piece begins.
    start: u64,
}

impl<'a> Cursor<'a> {
    /// At the file's first byte.
    pub(crate) fn new(checkpoint: &'a dyn Checkpoint, file: &'a str) -> Result<Cursor<'a>, Diagnostic> {
        let length = checkpoint.len(file).map_err(|error| unreadable(file, &error))?;
        Ok(Cursor { checkpoint, file, length, at: 0, piece: Vec::new(), start: 0 })
    }

    /// A fault of the file at this place.
    pub(crate) fn fault(&self, what: &str) -> Diagnostic {
        Diagnostic::new("F0109", format!("{} is no GGUF file that forge can read: {what}", self.file))
    }

    /// How many bytes a header may still have.
    fn left(&self) -> u64 {
        self.length.min(LONGEST).saturating_sub(self.at)
    }

    /// Refuses what takes more bytes than there are.
    pub(crate) fn expect(&self, bytes: Option<u64>, what: &str) -> Result<(), Diagnostic> {
        if bytes.is_some_and(|bytes| bytes <= self.left()) {
            return Ok(());
        }
        if self.length > LONGEST {
            return Err(self.fault(&format!("{what} goes beyond byte {LONGEST}, and no header is so long")));
        }
        let fault = Diagnostic::new(
            "F0109",
            format!("{} is cut short: it has {} bytes, and {what} goes beyond", self.file, self.length),
        );
        Err(fault.note("an interrupted download leaves such files: fetch it again"))
    }

    /// Fills `out`.
    fn fill(&mut self, mut out: &mut [u8], what: &str) -> Result<(), Diagnostic> {
        self.expect(Some(out.len() as u64), what)?;
        while !out.is_empty() {
            let held = self.start + self.piece.len() as u64;
            if self.at < self.start || self.at >= held {
                self.piece.resize(PIECE.min(self.length - self.at) as usize, 0);
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

    /// So many bytes.
    pub(crate) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Diagnostic> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    /// A number of 32 bits.
    pub(crate) fn u32(&mut self, what: &str) -> Result<u32, Diagnostic> {
        self.array(what).map(u32::from_le_bytes)
    }

    /// A number of 64 bits.
    pub(crate) fn u64(&mut self, what: &str) -> Result<u64, Diagnostic> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A text: its length and its bytes.
    pub(crate) fn text(&mut self, what: &str) -> Result<String, Diagnostic> {
        let length = self.u64(what)?;
        self.expect(Some(length), what)?;
        let mut bytes = vec![0; length as usize];
        self.fill(&mut bytes, what)?;
        String::from_utf8(bytes).map_err(|_| self.fault(&format!("{what} is not UTF-8 text")))
    }
}
