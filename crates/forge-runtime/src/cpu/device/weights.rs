//! Weights as the CPU device reads them: in the mapped file to begin with, and then in a copy of it. The device owns both.
//!
//! A program is to say its first id soon, so it begins with what there is, the file. While passes go on the file is copied
//! ([`crate::cpu::device::weight_repack`]), and a matrix is read from the copy once that has come past it. Kernels come to the same bits wherever a
//! matrix lies, so that no text depends on how far the copy was.

use crate::cpu::device::thread_pool::Pool;
use crate::cpu::device::weight_repack::RepackInProgress;
use crate::cpu::format::repacked::RepackedMatrix;
use crate::weights::WeightFile;
use memmap2::Mmap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The weights of a device.
pub(crate) struct Weights {
    file: Arc<Mmap>,
    copy: Copy,
    /// Where planes begin that lie in strips in the copy, in order.
    strips: Vec<usize>,
    /// What is no part of the copy, in order: experts that are streamed, or read where they lie in the file.
    left_out: Vec<Range<usize>>,
}

enum Copy {
    Nothing,
    Coming(RepackInProgress),
    Whole(Mmap),
}

/// Where some bytes of the weights are.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) start: *const u8,
    /// Whether they are of a matrix in strips.
    pub(crate) strips: bool,
}

impl Weights {
    /// Those of a file, where they lie in it.
    pub(crate) fn new(file: &WeightFile) -> Weights {
        Weights { file: file.map(), copy: Copy::Nothing, strips: Vec::new(), left_out: Vec::new() }
    }

    /// Has the file copied from now on, but for what is `left_out`, and these of its matrices come to lie in strips.
    pub(crate) fn copy(
        &mut self,
        file: &WeightFile,
        left_out: Vec<Range<usize>>,
        matrices: Vec<RepackedMatrix>,
    ) {
        self.strips = matrices.iter().flat_map(RepackedMatrix::starts).collect();
        self.strips.sort_unstable();
        if let Some(copying) = RepackInProgress::new(file.bytes(), &file.starts(), &left_out, matrices) {
            self.copy = Copy::Coming(copying);
        }
        self.left_out = left_out;
    }

    /// Copies for about so long; how many bytes are copied then, and of how many, if there are more.
    pub(crate) fn go_on(&mut self, pool: &mut Pool, within: Duration) -> Result<Option<[usize; 2]>, String> {
        let Copy::Coming(copying) = &mut self.copy else { return Ok(None) };
        copying.go_on(&self.file, pool, within)?;
        let [done, all] = copying.bytes();
        if done < all {
            return Ok(Some([done, all]));
        }
        if let Copy::Coming(copying) = std::mem::replace(&mut self.copy, Copy::Nothing) {
            let whole =
                copying.written().map_err(|error| format!("weights that have been copied: {error}"))?;
            self.copy = Copy::Whole(whole);
        }
        Ok(None)
    }

    /// Where these bytes are to be read; none if there are not so many.
    pub(crate) fn place(&self, bytes: Range<usize>) -> Option<Place> {
        if bytes.start > bytes.end || bytes.end > self.file.len() {
            return None;
        }
        let copy = match &self.copy {
            _ if self.is_left_out(bytes.start) => None,
            Copy::Nothing => None,
            Copy::Coming(copying) => (bytes.end <= copying.end()).then(|| copying.start()),
            Copy::Whole(whole) => Some(whole.as_ptr()),
        };
        let strips = copy.is_some() && self.strips.binary_search(&bytes.start).is_ok();
        let start = copy.unwrap_or(self.file.as_ptr()).wrapping_add(bytes.start);
        Some(Place { start, strips })
    }

    fn is_left_out(&self, at: usize) -> bool {
        let before = self.left_out.partition_point(|place| place.start <= at);
        before > 0 && self.left_out[before - 1].contains(&at)
    }

    /// All of them as they are read, if all are in memory.
    pub(crate) fn all(&self) -> Option<&[u8]> {
        let all = match &self.copy {
            Copy::Whole(whole) => whole,
            Copy::Nothing | Copy::Coming(_) => &self.file,
        };
        self.left_out.is_empty().then_some(&all[..])
    }

    /// The file's bytes, in the file's order.
    pub(crate) fn file(&self) -> Arc<Mmap> {
        self.file.clone()
    }
}
