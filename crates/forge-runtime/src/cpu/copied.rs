//! Weights in huge pages: a copy of the mapped file, made once by all threads and read by every step.
//!
//! A step reads every weight, and with pages of 4 KiB as a file is mapped in, it waits for their addresses. So the file's bytes are
//! copied into anonymous memory for which the system is asked for huge pages, piece by piece, and of what has been copied the
//! mapping's pages are let go: a program has its weights in memory once. Who wants several programs to share one file's
//! pages keeps the mapping, and so does a program for which there is too little memory free.
//!
//! What is not to be in memory at all, as experts that are streamed, is left out: in the copy nobody has touched its pages, and
//! so there are none.

use super::super::memory::available;
use super::pool::Pool;
use memmap2::{Advice, Mmap, MmapOptions, UncheckedAdvice};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that a thread copies at once: some huge pages.
const PIECE: usize = 8 << 20;
/// Bytes from which a file is copied.
const LEAST: usize = 32 << 20;

/// A copy of the mapped file but for what is `left_out`, in order; none where the system knows no huge pages or has no memory for
/// it, or where caches have room for the file.
pub(super) fn copied(file: &Mmap, left_out: &[Range<usize>], pool: &mut Pool) -> Option<Mmap> {
    let pieces = pieces(file.len(), left_out);
    let bytes: usize = pieces.iter().map(Range::len).sum();
    // What is copied in part is copied for its own sake: the file's pages could be taken away.
    if file.len() < LEAST && left_out.is_empty() || available().is_some_and(|free| free < bytes as u64) {
        return None;
    }
    let mut copy = MmapOptions::new().len(file.len()).no_reserve_swap().map_anon().ok()?;
    copy.advise(Advice::HugePage).ok()?;
    let (to, taken) = (Start(copy.as_mut_ptr()), AtomicUsize::new(0));
    pool.run(&|_| {
        let to = &to;
        while let Some(range) = pieces.get(taken.fetch_add(1, Ordering::Relaxed)) {
            let piece = &file[range.clone()];
            // SAFETY: the copy is as long as the file, and every piece is one thread's. Pages of a file that are let go are
            // read again if somebody asks for them.
            unsafe {
                std::ptr::copy_nonoverlapping(piece.as_ptr(), to.0.add(range.start), piece.len());
                let _ = file.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, piece.len());
            }
        }
    })
    .ok()?;
    copy.make_read_only().ok()
}

/// What threads copy at once, of what is not left out.
fn pieces(bytes: usize, left_out: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    let mut first = 0;
    for out in left_out.iter().cloned().chain(std::iter::once(bytes..bytes)) {
        let kept = first..out.start;
        pieces.extend(kept.clone().step_by(PIECE).map(|begin| begin..kept.end.min(begin + PIECE)));
        first = out.end;
    }
    pieces
}

/// Where the copy begins.
struct Start(*mut u8);

// SAFETY: threads write different pieces.
unsafe impl Sync for Start {}

#[cfg(test)]
mod tests {
    use super::*;
    use memmap2::MmapMut;

    #[test]
    fn what_is_left_out_is_not_copied() {
        let mut file = MmapMut::map_anon(3 * PIECE).unwrap();
        file.fill(7);
        let file = file.make_read_only().unwrap();
        let copy = copied(&file, &[5..PIECE + 1, PIECE + 1..2 * PIECE], &mut Pool::new(2).unwrap()).unwrap();
        assert!(copy[..5].iter().chain(&copy[2 * PIECE..]).all(|byte| *byte == 7));
        assert!(copy[5..2 * PIECE].iter().all(|byte| *byte == 0));
        assert!(pieces(10, &[0..4, 4..10]).is_empty());
    }

    #[test]
    fn a_copy_has_every_byte_and_what_was_copied_is_let_go() {
        let bytes = LEAST + 3 * PIECE + 12345;
        let mut file = MmapMut::map_anon(bytes).unwrap();
        file.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index * 31 / 7) as u8);
        let (expected, file) = (file.to_vec(), file.make_read_only().unwrap());
        let copy = copied(&file, &[], &mut Pool::new(3).unwrap()).expect("there is memory");
        assert!(copy[..] == expected[..]);
        // Of memory that no file is behind, pages that are let go are zeros.
        assert!(file.iter().all(|byte| *byte == 0));
        let small = MmapMut::map_anon(LEAST - 1).unwrap().make_read_only().unwrap();
        assert!(copied(&small, &[], &mut Pool::new(1).unwrap()).is_none());
    }
}
