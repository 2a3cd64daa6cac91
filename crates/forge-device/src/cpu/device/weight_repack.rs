//! Copy of the weight file in the CPU's layout, made incrementally by the device's threads between passes.
//!
//! A pass reads every weight, and with the 4 KiB pages of a mapped file it is limited by TLB misses. The
//! weights are therefore copied into anonymous memory with huge pages. Matrices that can be repacked
//! ([`crate::cpu::format::repacked`]) are repacked strip by strip. Mapped pages of copied bytes are released,
//! so the weights are in memory once. The copy is skipped if free memory is too small, and processes that
//! share one file's pages keep the mapping.
//!
//! The copy grows from the front of the file to the back and stops only between tensors, never within a
//! matrix. Whatever ends before [`RepackInProgress::end`] is read from the copy, and everything else from the
//! file.
//!
//! The NUMA node of a page is that of the thread that first writes it. Threads therefore divide a tensor as
//! they do when they multiply by it ([`crate::cpu::device::work_stealing`]). Except for stolen pieces, each
//! thread copies what it will read.
//!
//! Excluded ranges, such as streamed experts, have addresses in the copy but no memory ([`ReservedMemory`]).
//! A data-size limit therefore counts only what is copied.

use crate::cpu::device::reserved_memory::ReservedMemory;
use crate::cpu::device::thread_pool::Pool;
use crate::cpu::device::work_stealing::{RangeCursor, WorkRanges};
use crate::cpu::format::repacked::RepackedMatrix;
use crate::model::memory::available;
use memmap2::{Mmap, UncheckedAdvice};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Bytes that a thread copies at a time: one huge page. Such a piece is briefly in memory twice.
const PIECE: usize = 2 << 20;
/// Minimum size in bytes of a file that is copied without any repacked matrix.
const MIN_BYTES: usize = 32 << 20;

/// An incomplete copy of the weights.
pub(crate) struct RepackInProgress {
    reserved: ReservedMemory,
    /// The file's bytes without the excluded ranges, in order.
    steps: Vec<Step>,
    /// Number of copied steps.
    copied: usize,
    /// Copied and total bytes.
    bytes: [usize; 2],
    /// Matrices to repack.
    matrices: Vec<RepackedMatrix>,
    length: usize,
}

impl RepackInProgress {
    /// Reserves a copy of the mapped file, without the sorted ranges `left_out`. `tensors` are the tensors'
    /// offsets, and `matrices` are repacked. None if memory is too small or the copy brings no benefit. There
    /// is no benefit without repacked matrices if the file fits in caches or huge pages are not supported.
    pub(crate) fn new(
        length: usize,
        tensors: &[usize],
        left_out: &[Range<usize>],
        matrices: Vec<RepackedMatrix>,
    ) -> Option<RepackInProgress> {
        // A partial copy is always made, because the file's pages may be evicted.
        let is_partial_or_repacked = !left_out.is_empty() || !matrices.is_empty();
        let bytes = length - left_out.iter().map(Range::len).sum::<usize>();
        if length < MIN_BYTES && !is_partial_or_repacked
            || available().is_some_and(|free| free < bytes as u64)
        {
            return None;
        }
        let reserved = ReservedMemory::new(length, left_out).ok()?;
        if !reserved.advise_huge_pages() && !is_partial_or_repacked {
            return None;
        }
        let steps = steps(length, &cuts(length, tensors, &matrices), left_out, &matrices);
        Some(RepackInProgress { reserved, steps, copied: 0, bytes: [0, bytes], matrices, length })
    }

    /// Copies the next steps on all threads for about `within`, at least one step, and releases the file's
    /// pages.
    pub(crate) fn go_on(&mut self, file: &Mmap, pool: &mut Pool, within: Duration) -> Result<(), String> {
        let start = Instant::now();
        let to = Start(self.reserved.start_mut());
        let steps = &self.steps[self.copied..];
        let threads = pool.threads();
        let taken: Vec<RangeCursor> = (0..steps.len() * threads).map(|_| RangeCursor::default()).collect();
        // A thread stays in a step until no piece is left, so every started step is complete when all threads
        // return.
        let started = AtomicUsize::new(1);
        pool.run(&|thread| {
            let to = &to;
            for (number, (step, taken)) in steps.iter().zip(taken.chunks(threads)).enumerate() {
                if number >= started.load(Ordering::Relaxed) {
                    if start.elapsed() >= within {
                        return;
                    }
                    started.fetch_max(number + 1, Ordering::Relaxed);
                }
                for piece in WorkRanges::new(taken, thread, step.pieces.len(), 1).flatten() {
                    // SAFETY: the copy is as long as the file, and each piece is claimed by one thread.
                    unsafe { step.pieces[piece].copy(&self.matrices, file, to.0) };
                }
            }
        })?;
        let started = started.into_inner().min(steps.len());
        self.bytes[0] += steps[..started].iter().map(|step| step.bytes).sum::<usize>();
        self.copied += started;
        Ok(())
    }

    /// Copied and total bytes.
    pub(crate) fn bytes(&self) -> [usize; 2] {
        self.bytes
    }

    /// Address of the copy.
    pub(crate) fn start(&self) -> *const u8 {
        self.reserved.start()
    }

    /// Offset up to which the copy is complete.
    pub(crate) fn end(&self) -> usize {
        self.steps.get(self.copied).map_or(self.length, |step| step.start)
    }

    /// The complete copy, read-only.
    pub(crate) fn written(self) -> io::Result<Mmap> {
        self.reserved.written()
    }
}

/// Offsets at which the copy can stop: tensor starts that are not within a matrix, whose planes are separate
/// tensors.
fn cuts(length: usize, tensors: &[usize], matrices: &[RepackedMatrix]) -> Vec<usize> {
    let mut matrices: Vec<Range<usize>> = matrices.iter().map(RepackedMatrix::extent).collect();
    matrices.sort_unstable_by_key(|matrix| matrix.start);
    let mut cuts = vec![0];
    let mut first = 0;
    // End of the matrices seen so far; no cut is possible before it.
    let mut end = 0;
    for &tensor in tensors.iter().filter(|tensor| **tensor > 0 && **tensor < length) {
        while let Some(matrix) = matrices.get(first).filter(|matrix| matrix.start < tensor) {
            end = end.max(matrix.end);
            first += 1;
        }
        if tensor >= end {
            cuts.push(tensor);
        }
    }
    cuts
}

/// The bytes between two cuts.
struct Step {
    /// Offset of the first byte.
    start: usize,
    /// Pieces of one matrix are adjacent.
    pieces: Vec<Piece>,
    bytes: usize,
}

/// Unit of copying for one thread.
enum Piece {
    Plain(Range<usize>),
    /// A range of strips of the matrix with this index.
    Strips(usize, Range<usize>),
}

fn steps(length: usize, cuts: &[usize], left_out: &[Range<usize>], matrices: &[RepackedMatrix]) -> Vec<Step> {
    let mut others: Vec<Range<usize>> = matrices.iter().flat_map(RepackedMatrix::planes).collect();
    others.extend(left_out.iter().cloned());
    others.extend(cuts.iter().map(|cut| *cut..*cut));
    others.sort_unstable_by_key(|other| (other.start, other.end));
    others.push(length..length);
    // Offset, size in bytes and piece.
    let (mut all, mut end) = (Vec::new(), 0);
    for other in others {
        let between = end..other.start;
        all.extend(between.clone().step_by(PIECE).map(|first| {
            let piece = first..between.end.min(first + PIECE);
            (first, piece.len(), Piece::Plain(piece))
        }));
        end = end.max(other.end);
    }
    for (number, matrix) in matrices.iter().enumerate() {
        let at_once = PIECE.div_ceil(matrix.strip_bytes()[0]);
        for Range { start, end } in matrix.of_each() {
            all.extend((start..end).step_by(at_once).map(|first| {
                let strips = first..end.min(first + at_once);
                let [codes, scales] = matrix.places(strips.clone());
                (codes.start, codes.len() + scales.len(), Piece::Strips(number, strips))
            }));
        }
    }
    let cut_before = |start: usize| cuts[cuts.partition_point(|cut| *cut <= start) - 1];
    all.sort_by_key(|(start, ..)| (cut_before(*start), *start));
    let mut steps: Vec<Step> = Vec::new();
    for (start, bytes, piece) in all {
        let start = cut_before(start);
        match steps.last_mut().filter(|step| step.start == start) {
            Some(step) => {
                step.bytes += bytes;
                step.pieces.push(piece);
            }
            None => steps.push(Step { start, pieces: vec![piece], bytes }),
        }
    }
    steps
}

impl Piece {
    /// Copies the piece to the copy at `to`, and releases the file's pages.
    unsafe fn copy(&self, matrices: &[RepackedMatrix], file: &Mmap, to: *mut u8) {
        let release = |range: Range<usize>| {
            // SAFETY: the mapping is file-backed, so released pages are read again on access.
            let _ =
                unsafe { file.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len()) };
        };
        match self {
            Piece::Plain(range) => {
                // SAFETY: the caller's contract.
                unsafe {
                    let (from, to) = (file[range.clone()].as_ptr(), to.add(range.start));
                    std::ptr::copy_nonoverlapping(from, to, range.len());
                }
                release(range.clone());
            }
            Piece::Strips(number, strips) => {
                let matrix = &matrices[*number];
                for strip in strips.clone() {
                    // SAFETY: the caller's contract.
                    unsafe { matrix.repack_strip(strip, file, to) };
                }
                matrix.places(strips.clone()).into_iter().for_each(release);
            }
        }
    }
}

/// Address of the copy.
struct Start(*mut u8);

// SAFETY: threads write disjoint pieces.
unsafe impl Sync for Start {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Binding, Buffer};
    use memmap2::MmapMut;
    use std::io::Write;

    /// `count` bytes of a test pattern.
    fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|index| (index * 31 / 7) as u8).collect()
    }

    /// A mapped file of `count` such bytes.
    fn file_of(count: usize) -> Mmap {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes(count)).unwrap();
        // SAFETY: no other process has the file.
        unsafe { Mmap::map(&file) }.unwrap()
    }

    /// Completes a copy step by step; calls `before_step` before each step.
    fn copied(
        mut repack: RepackInProgress,
        file: &Mmap,
        within: Duration,
        before_step: &mut dyn FnMut(&RepackInProgress),
    ) -> (usize, Mmap) {
        let (mut pool, mut steps) = (Pool::new(3).unwrap(), 0);
        loop {
            before_step(&repack);
            let [before, all] = repack.bytes();
            if before == all {
                return (steps, repack.written().unwrap());
            }
            repack.go_on(file, &mut pool, within).unwrap();
            assert!(repack.bytes()[0] > before, "a step is nothing");
            steps += 1;
        }
    }

    #[test]
    fn copies_are_complete_and_release_the_source() {
        let count = MIN_BYTES + 3 * PIECE + 12345;
        let mut memory = MmapMut::map_anon(count).unwrap();
        memory.copy_from_slice(&bytes(count));
        let file = memory.make_read_only().unwrap();
        // Released pages of anonymous memory read as zero, so the pieces here are whole pages.
        let repack = RepackInProgress::new(count, &[1 << 16], &[], Vec::new()).expect("there is memory");
        let (steps, copy) = copied(repack, &file, Duration::MAX, &mut |_| ());
        assert_eq!(steps, 1);
        assert!(copy[..] == bytes(count)[..]);
        assert!(file.iter().all(|byte| *byte == 0));
        assert!(
            RepackInProgress::new(MIN_BYTES - 1, &[], &[], Vec::new()).is_none(),
            "the file fits in caches"
        );
    }

    #[test]
    fn excluded_ranges_are_not_copied() {
        let (file, expected) = (file_of(3 * PIECE), bytes(3 * PIECE));
        let left_out = [5..PIECE + 1, PIECE + 1..2 * PIECE];
        let repack = RepackInProgress::new(file.len(), &[5, PIECE + 1], &left_out, Vec::new()).unwrap();
        let (_, copy) = copied(repack, &file, Duration::MAX, &mut |_| ());
        assert!(copy[..5] == expected[..5] && copy[2 * PIECE..] == expected[2 * PIECE..]);
        assert!(copy[5..2 * PIECE].iter().all(|byte| *byte == 0));
        assert!(steps(10, &[0], &[0..4, 4..10], &[]).is_empty());
    }

    /// Tensors: vector, matrix, vector, matrix with a vector between its planes, vector.
    #[test]
    fn copies_stop_between_tensors() {
        const SHAPE: [usize; 2] = [64, 32 * 1024];
        const CODES: usize = SHAPE[0] * SHAPE[1];
        const SCALES: usize = CODES / 32 * 2;
        let sizes = [128, CODES, SCALES, 64, CODES, 64, SCALES, 77];
        let starts: Vec<usize> = (0..=sizes.len()).map(|count| sizes[..count].iter().sum()).collect();
        let matrix = |codes: usize, scales: usize| {
            let plane = |tensor: usize| {
                let (offset, bytes) = (starts[tensor], sizes[tensor]);
                Binding { buffer: Buffer::Weights, offset, bytes, written: false }
            };
            RepackedMatrix::new(SHAPE, &plane(codes), &plane(scales), RepackedMatrix::SINGLE)
                .expect("whole strips")
        };
        let (tensors, length) = (&starts[..sizes.len()], starts[sizes.len()]);
        let file = file_of(length);
        let repack =
            || RepackInProgress::new(length, tensors, &[], vec![matrix(1, 2), matrix(4, 6)]).unwrap();
        let (_, whole) = copied(repack(), &file, Duration::MAX, &mut |_| ());
        let mut stops = Vec::new();
        let mut before_step = |repack: &RepackInProgress| {
            // SAFETY: the copy is as long as the file.
            let copy = unsafe { std::slice::from_raw_parts(repack.start(), repack.end()) };
            assert!(copy == &whole[..repack.end()]);
            stops.push(repack.end());
        };
        let (_, copy) = copied(repack(), &file, Duration::ZERO, &mut before_step);
        assert!(copy[..] == whole[..]);
        assert_eq!(stops, [0, 1, 3, 4, 7, 8].map(|tensor| starts[tensor]));
    }
}
