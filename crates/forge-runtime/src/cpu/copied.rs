//! Weights in huge pages: a copy of the mapped file, made once by all threads and read by every step.
//!
//! A step reads every weight, and with pages of 4 KiB as a file is mapped in, it waits for their addresses. So the file's bytes are
//! copied into anonymous memory for which the system is asked for huge pages, piece by piece, and of what has been copied the
//! mapping's pages are let go: a program has its weights in memory once. Who wants several programs to share one file's
//! pages keeps the mapping, and so does a program for which there is too little memory free.

use super::super::memory::available;
use super::pool::Pool;
use memmap2::{Advice, Mmap, MmapMut, UncheckedAdvice};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that a thread copies at once: some huge pages.
const PIECE: usize = 8 << 20;
/// Bytes from which a file is copied.
const LEAST: usize = 32 << 20;

/// A copy of the mapped file; none where the system knows no huge pages or has no memory for it, or where caches have room
/// for the file.
pub(super) fn copied(file: &Mmap, pool: &mut Pool) -> Option<Mmap> {
    if file.len() < LEAST || available().is_some_and(|free| free < file.len() as u64) {
        return None;
    }
    let mut copy = MmapMut::map_anon(file.len()).ok()?;
    copy.advise(Advice::HugePage).ok()?;
    let (to, taken) = (Start(copy.as_mut_ptr()), AtomicUsize::new(0));
    pool.run(&|_| {
        let to = &to;
        loop {
            let first = taken.fetch_add(PIECE, Ordering::Relaxed);
            let Some(piece) =
                file.get(first..file.len().min(first + PIECE)).filter(|piece| !piece.is_empty())
            else {
                return;
            };
            // SAFETY: the copy is as long as the file, and every piece is one thread's. Pages of a file that are let go are
            // read again if somebody asks for them.
            unsafe {
                std::ptr::copy_nonoverlapping(piece.as_ptr(), to.0.add(first), piece.len());
                let _ = file.unchecked_advise_range(UncheckedAdvice::DontNeed, first, piece.len());
            }
        }
    })
    .ok()?;
    copy.make_read_only().ok()
}

/// Where the copy begins.
struct Start(*mut u8);

// SAFETY: threads write different pieces.
unsafe impl Sync for Start {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_every_byte_and_what_was_copied_is_let_go() {
        let bytes = LEAST + 3 * PIECE + 12345;
        let mut file = MmapMut::map_anon(bytes).unwrap();
        file.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index * 31 / 7) as u8);
        let (expected, file) = (file.to_vec(), file.make_read_only().unwrap());
        let copy = copied(&file, &mut Pool::new(3).unwrap()).expect("there is memory");
        assert!(copy[..] == expected[..]);
        // Of memory that no file is behind, pages that are let go are zeros.
        assert!(file.iter().all(|byte| *byte == 0));
        let small = MmapMut::map_anon(LEAST - 1).unwrap().make_read_only().unwrap();
        assert!(copied(&small, &mut Pool::new(1).unwrap()).is_none());
    }
}
