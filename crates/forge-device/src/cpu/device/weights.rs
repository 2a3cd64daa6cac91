//! Weights as the CPU device reads them: first from the mapped file, later from a repacked copy.
//!
//! For a short time to first token, passes start on the mapped file. The file is copied between passes
//! ([`crate::cpu::device::weight_repack`]), and a matrix is read from the copy as soon as it is complete
//! there. Kernels are bitwise identical for both layouts, so results do not depend on the copy's progress.

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
    copy: WeightCopy,
    /// Sorted offsets of the planes that are repacked in the copy.
    strips: Vec<usize>,
    /// Sorted ranges that are not copied: experts that are streamed or read from the mapped file.
    left_out: Vec<Range<usize>>,
}

enum WeightCopy {
    Nothing,
    InProgress(RepackInProgress),
    Whole(Mmap),
}

/// Address of a range of the weights.
#[derive(Clone, Copy)]
pub(crate) struct WeightAddress {
    pub(crate) start: *const u8,
    /// Whether the range belongs to a repacked matrix.
    pub(crate) strips: bool,
}

impl Weights {
    /// The weights in the mapped file, without a copy.
    pub(crate) fn new(file: &WeightFile) -> Weights {
        Weights { file: file.map(), copy: WeightCopy::Nothing, strips: Vec::new(), left_out: Vec::new() }
    }

    /// Starts to copy the file without the ranges `left_out`. `matrices` are repacked.
    pub(crate) fn copy(
        &mut self,
        file: &WeightFile,
        left_out: Vec<Range<usize>>,
        matrices: Vec<RepackedMatrix>,
    ) {
        self.strips = matrices.iter().flat_map(RepackedMatrix::starts).collect();
        self.strips.sort_unstable();
        if let Some(repack) = RepackInProgress::new(file.bytes(), &file.tensor_offsets(), &left_out, matrices)
        {
            self.copy = WeightCopy::InProgress(repack);
        }
        self.left_out = left_out;
    }

    /// Continues the copy for about `within`. Returns the copied and total bytes while work remains.
    pub(crate) fn go_on(&mut self, pool: &mut Pool, within: Duration) -> Result<Option<[usize; 2]>, String> {
        let WeightCopy::InProgress(repack) = &mut self.copy else { return Ok(None) };
        repack.go_on(&self.file, pool, within)?;
        let [done, all] = repack.bytes();
        if done < all {
            return Ok(Some([done, all]));
        }
        if let WeightCopy::InProgress(repack) = std::mem::replace(&mut self.copy, WeightCopy::Nothing) {
            let copied = repack
                .written()
                .map_err(|error| format!("cannot make the weight copy read-only: {error}"))?;
            self.copy = WeightCopy::Whole(copied);
        }
        Ok(None)
    }

    /// Current address of a range; none if it exceeds the file.
    pub(crate) fn place(&self, bytes: Range<usize>) -> Option<WeightAddress> {
        if bytes.start > bytes.end || bytes.end > self.file.len() {
            return None;
        }
        let copy = match &self.copy {
            _ if self.is_left_out(bytes.start) => None,
            WeightCopy::Nothing => None,
            WeightCopy::InProgress(repack) => (bytes.end <= repack.end()).then(|| repack.start()),
            WeightCopy::Whole(copied) => Some(copied.as_ptr()),
        };
        let strips = copy.is_some() && self.strips.binary_search(&bytes.start).is_ok();
        let start = copy.unwrap_or(self.file.as_ptr()).wrapping_add(bytes.start);
        Some(WeightAddress { start, strips })
    }

    fn is_left_out(&self, at: usize) -> bool {
        let before = self.left_out.partition_point(|place| place.start <= at);
        before > 0 && self.left_out[before - 1].contains(&at)
    }

    /// All weights in their current layout, if all are in memory.
    pub(crate) fn all(&self) -> Option<&[u8]> {
        let all = match &self.copy {
            WeightCopy::Whole(copied) => copied,
            WeightCopy::Nothing | WeightCopy::InProgress(_) => &self.file,
        };
        self.left_out.is_empty().then_some(&all[..])
    }

    /// The mapped file.
    pub(crate) fn file(&self) -> Arc<Mmap> {
        self.file.clone()
    }
}
