//! A copy of the weight file as the CPU wants it, which comes about piece by piece: the device's threads write it, a while at a time,
//! and every step reads it.
//!
//! A step reads every weight, and with pages of 4 KiB as a file is mapped in, it waits for their addresses. So the file's bytes are
//! copied into anonymous memory for which the system is asked for huge pages, matrices that can lie in strips
//! ([`crate::cpu::format::repacked`]) strip by strip; and of what has been copied the mapping's pages are let go: a program has its weights in
//! memory once. Who wants several programs to share one file's pages keeps the mapping, and so does a program for which there is
//! too little memory free.
//!
//! The copy grows from the file's front to its back and stops between tensors alone, nowhere within a matrix: what ends before
//! [`Copying::end`] is whole in the copy, and everything else is read from the file.
//!
//! A page of memory is of the part of the machine whose processor writes to it first. So threads share a tensor out as they will when
//! they multiply by it ([`crate::cpu::device::work_stealing`]): each copies what it will read, but for what another has done before it.
//!
//! What is not to be in memory at all, as experts that are streamed, is left out: the copy has addresses for it and no memory, nor is
//! any promised, so that a limit on data counts what is copied ([`Room`]).

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

/// Bytes that a thread copies at once: a huge page. So much a thread is in memory twice meanwhile.
const PIECE: usize = 2 << 20;
/// Bytes from which a file is copied in which no matrix is laid out.
const LEAST: usize = 32 << 20;

/// A copy that is not whole yet.
pub(crate) struct RepackInProgress {
    room: ReservedMemory,
    /// The file's bytes but for those that are left out, in order.
    steps: Vec<Step>,
    /// How many of these are copied.
    copied: usize,
    /// How many bytes are, and how many there are to be.
    bytes: [usize; 2],
    /// Matrices that come to lie in strips.
    matrices: Vec<RepackedMatrix>,
    length: usize,
}

impl RepackInProgress {
    /// A copy of the mapped file with these matrices in strips, but for what is `left_out`, in order; `tensors` are where those begin.
    /// None where the system has no memory for it, or where there is nothing to be gained: no matrix, and caches have room for
    /// the file, or the system knows no huge pages.
    pub(crate) fn new(
        length: usize,
        tensors: &[usize],
        left_out: &[Range<usize>],
        matrices: Vec<RepackedMatrix>,
    ) -> Option<RepackInProgress> {
        // What is copied in part is copied for its own sake: the file's pages could be taken away.
        let for_its_order = !left_out.is_empty() || !matrices.is_empty();
        let bytes = length - left_out.iter().map(Range::len).sum::<usize>();
        if length < LEAST && !for_its_order || available().is_some_and(|free| free < bytes as u64) {
            return None;
        }
        let room = ReservedMemory::new(length, left_out).ok()?;
        if !room.asks_for_huge_pages() && !for_its_order {
            return None;
        }
        let steps = steps(length, &cuts(length, tensors, &matrices), left_out, &matrices);
        Some(RepackInProgress { room, steps, copied: 0, bytes: [0, bytes], matrices, length })
    }

    /// Has all threads copy what comes next of the file for about so long, one step at least, and lets the file's pages go.
    pub(crate) fn go_on(&mut self, file: &Mmap, pool: &mut Pool, within: Duration) -> Result<(), String> {
        let start = Instant::now();
        let to = Start(self.room.start_mut());
        let steps = &self.steps[self.copied..];
        let threads = pool.threads();
        let taken: Vec<RangeCursor> = (0..steps.len() * threads).map(|_| RangeCursor::default()).collect();
        // What one thread begins is done when all have returned: whoever begins a step stays until nothing of it is left.
        let begun = AtomicUsize::new(1);
        pool.run(&|thread| {
            let to = &to;
            for (number, (step, taken)) in steps.iter().zip(taken.chunks(threads)).enumerate() {
                if number >= begun.load(Ordering::Relaxed) {
                    if start.elapsed() >= within {
                        return;
                    }
                    begun.fetch_max(number + 1, Ordering::Relaxed);
                }
                for piece in WorkRanges::new(taken, thread, step.pieces.len(), 1).flatten() {
                    // SAFETY: the copy is as long as the file, and every piece is one thread's.
                    unsafe { step.pieces[piece].copy(&self.matrices, file, to.0) };
                }
            }
        })?;
        let begun = begun.into_inner().min(steps.len());
        self.bytes[0] += steps[..begun].iter().map(|step| step.bytes).sum::<usize>();
        self.copied += begun;
        Ok(())
    }

    /// How many bytes are copied, and of how many.
    pub(crate) fn bytes(&self) -> [usize; 2] {
        self.bytes
    }

    /// Where it begins.
    pub(crate) fn start(&self) -> *const u8 {
        self.room.start()
    }

    /// What ends up to here is copied.
    pub(crate) fn end(&self) -> usize {
        self.steps.get(self.copied).map_or(self.length, |step| step.start)
    }

    /// The copy when it is whole, to be read only.
    pub(crate) fn written(self) -> io::Result<Mmap> {
        self.room.written()
    }
}

/// Where a copy can stop: at the start of the file and of every tensor, but within no matrix, whose codes and scales are tensors.
fn cuts(length: usize, tensors: &[usize], matrices: &[RepackedMatrix]) -> Vec<usize> {
    let mut matrices: Vec<Range<usize>> = matrices.iter().map(RepackedMatrix::extent).collect();
    matrices.sort_unstable_by_key(|matrix| matrix.start);
    let mut cuts = vec![0];
    let mut first = 0;
    // Up to here it cannot: the end of the matrices that begin before.
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

/// What is copied between two places where the copy can stop.
struct Step {
    /// The first of these.
    start: usize,
    /// Those of a matrix come together.
    pieces: Vec<Piece>,
    bytes: usize,
}

/// What a thread copies at once.
enum Piece {
    AsItIs(Range<usize>),
    /// Some strips of the matrix of this number.
    InStrips(usize, Range<usize>),
}

fn steps(length: usize, cuts: &[usize], left_out: &[Range<usize>], matrices: &[RepackedMatrix]) -> Vec<Step> {
    let mut others: Vec<Range<usize>> = matrices.iter().flat_map(RepackedMatrix::planes).collect();
    others.extend(left_out.iter().cloned());
    others.extend(cuts.iter().map(|cut| *cut..*cut));
    others.sort_unstable_by_key(|other| (other.start, other.end));
    others.push(length..length);
    // Of each where it begins, what it is and how many bytes that are.
    let (mut all, mut end) = (Vec::new(), 0);
    for other in others {
        let between = end..other.start;
        all.extend(between.clone().step_by(PIECE).map(|first| {
            let piece = first..between.end.min(first + PIECE);
            (first, piece.len(), Piece::AsItIs(piece))
        }));
        end = end.max(other.end);
    }
    for (number, matrix) in matrices.iter().enumerate() {
        let at_once = PIECE.div_ceil(matrix.of_one()[0]);
        for Range { start, end } in matrix.of_each() {
            all.extend((start..end).step_by(at_once).map(|first| {
                let strips = first..end.min(first + at_once);
                let [codes, scales] = matrix.places(strips.clone());
                (codes.start, codes.len() + scales.len(), Piece::InStrips(number, strips))
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
    /// Copies it to where a copy of the file begins, and lets the file's pages go.
    unsafe fn copy(&self, matrices: &[RepackedMatrix], file: &Mmap, to: *mut u8) {
        let let_go = |range: Range<usize>| {
            // SAFETY: the mapping is of a file, which is read again if somebody asks for it.
            let _ =
                unsafe { file.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len()) };
        };
        match self {
            Piece::AsItIs(range) => {
                // SAFETY: the caller's promise.
                unsafe {
                    let (from, to) = (file[range.clone()].as_ptr(), to.add(range.start));
                    std::ptr::copy_nonoverlapping(from, to, range.len());
                }
                let_go(range.clone());
            }
            Piece::InStrips(number, strips) => {
                let matrix = &matrices[*number];
                for strip in strips.clone() {
                    // SAFETY: the caller's promise.
                    unsafe { matrix.lay_out(strip, file, to) };
                }
                matrix.places(strips.clone()).into_iter().for_each(let_go);
            }
        }
    }
}

/// Where the copy begins.
struct Start(*mut u8);

// SAFETY: threads write different pieces.
unsafe impl Sync for Start {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Binding, Buffer};
    use memmap2::MmapMut;
    use std::io::Write;

    /// So many bytes, which are not all the same.
    fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|index| (index * 31 / 7) as u8).collect()
    }

    /// A file of them.
    fn file_of(count: usize) -> Mmap {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes(count)).unwrap();
        // SAFETY: nobody else has the file.
        unsafe { Mmap::map(&file) }.unwrap()
    }

    /// A copy, step after step; what there is of it is looked at before each.
    fn copied(
        mut copying: RepackInProgress,
        file: &Mmap,
        within: Duration,
        looked: &mut dyn FnMut(&RepackInProgress),
    ) -> (usize, Mmap) {
        let (mut pool, mut steps) = (Pool::new(3).unwrap(), 0);
        loop {
            looked(&copying);
            let [before, all] = copying.bytes();
            if before == all {
                return (steps, copying.written().unwrap());
            }
            copying.go_on(file, &mut pool, within).unwrap();
            assert!(copying.bytes()[0] > before, "a step is nothing");
            steps += 1;
        }
    }

    #[test]
    fn a_copy_has_every_byte_and_what_was_copied_is_let_go() {
        let count = LEAST + 3 * PIECE + 12345;
        let mut memory = MmapMut::map_anon(count).unwrap();
        memory.copy_from_slice(&bytes(count));
        let file = memory.make_read_only().unwrap();
        // Of memory that no file is behind, pages that are let go are zeros: so pieces are whole pages here.
        let copying = RepackInProgress::new(count, &[1 << 16], &[], Vec::new()).expect("there is memory");
        let (steps, copy) = copied(copying, &file, Duration::MAX, &mut |_| ());
        assert_eq!(steps, 1);
        assert!(copy[..] == bytes(count)[..]);
        assert!(file.iter().all(|byte| *byte == 0));
        assert!(RepackInProgress::new(LEAST - 1, &[], &[], Vec::new()).is_none(), "caches have room for it");
    }

    #[test]
    fn what_is_left_out_is_not_copied() {
        let (file, expected) = (file_of(3 * PIECE), bytes(3 * PIECE));
        let left_out = [5..PIECE + 1, PIECE + 1..2 * PIECE];
        let copying = RepackInProgress::new(file.len(), &[5, PIECE + 1], &left_out, Vec::new()).unwrap();
        let (_, copy) = copied(copying, &file, Duration::MAX, &mut |_| ());
        assert!(copy[..5] == expected[..5] && copy[2 * PIECE..] == expected[2 * PIECE..]);
        assert!(copy[5..2 * PIECE].iter().all(|byte| *byte == 0));
        assert!(steps(10, &[0], &[0..4, 4..10], &[]).is_empty());
    }

    /// Of a vector, a matrix, a vector, a matrix whose planes a vector lies between, and a vector.
    #[test]
    fn a_copy_stops_between_tensors_and_what_is_before_that_is_whole() {
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
            RepackedMatrix::new(SHAPE, &plane(codes), &plane(scales), RepackedMatrix::ALONE)
                .expect("whole strips")
        };
        let (tensors, length) = (&starts[..sizes.len()], starts[sizes.len()]);
        let file = file_of(length);
        let copying =
            || RepackInProgress::new(length, tensors, &[], vec![matrix(1, 2), matrix(4, 6)]).unwrap();
        let (_, whole) = copied(copying(), &file, Duration::MAX, &mut |_| ());
        let mut stops = Vec::new();
        let mut looked = |copying: &RepackInProgress| {
            // SAFETY: the copy is as long as the file.
            let copy = unsafe { std::slice::from_raw_parts(copying.start(), copying.end()) };
            assert!(copy == &whole[..copying.end()]);
            stops.push(copying.end());
        };
        let (_, copy) = copied(copying(), &file, Duration::ZERO, &mut looked);
        assert!(copy[..] == whole[..]);
        assert_eq!(stops, [0, 1, 3, 4, 7, 8].map(|tensor| starts[tensor]));
    }
}
