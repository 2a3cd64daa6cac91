//! Weights as the CPU wants them: a copy of the mapped file, made once by all threads and read by every step.
//!
//! A step reads every weight, and with pages of 4 KiB as a file is mapped in, it waits for their addresses. So the file's bytes are
//! copied into anonymous memory for which the system is asked for huge pages, piece by piece, matrices that can lie in strips
//! ([`super::strips`]) strip by strip; and of what has been copied the mapping's pages are let go: a program has its weights in
//! memory once. Who wants several programs to share one file's pages keeps the mapping, and so does a program for which there is
//! too little memory free.
//!
//! What is not to be in memory at all, as experts that are streamed, is left out: the copy has addresses for it and no memory, nor is
//! any promised, so that a limit on data counts what is copied ([`Room`]).

use super::super::memory::available;
use super::pool::Pool;
use super::strips::Strips;
use memmap2::{Advice, Mmap, MmapMut, MmapOptions, UncheckedAdvice};
use std::io;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that a thread copies at once: some huge pages.
const PIECE: usize = 8 << 20;
/// Bytes from which a file is copied in which no matrix is laid out.
const LEAST: usize = 32 << 20;

/// A copy of the mapped file with these matrices in strips, but for what is `left_out`, in order; none where the system has no
/// memory for it, or where there is nothing to be gained: no matrix, and caches have room for the file, or the system knows no
/// huge pages.
pub(super) fn copied(
    file: &Mmap,
    left_out: &[Range<usize>],
    matrices: &[Strips],
    pool: &mut Pool,
    told: &mut Told<'_>,
) -> Option<Mmap> {
    // What is copied in part is copied for its own sake: the file's pages could be taken away.
    let for_its_order = !left_out.is_empty() || !matrices.is_empty();
    let bytes = file.len() - left_out.iter().map(Range::len).sum::<usize>();
    if file.len() < LEAST && !for_its_order || available().is_some_and(|free| free < bytes as u64) {
        return None;
    }
    let mut copy = Room::new(file.len(), left_out).ok()?;
    if !copy.asks_for_huge_pages() && !for_its_order {
        return None;
    }
    let pieces = pieces(file.len(), left_out, matrices);
    let (to, told) = (Start(copy.start()), Mutex::new(told));
    let (taken, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    pool.run(&|_| {
        let to = &to;
        while let Some(piece) = pieces.get(taken.fetch_add(1, Ordering::Relaxed)) {
            // SAFETY: the copy is as long as the file, and every piece is one thread's. Pages of a file that are let go are
            // read again if somebody asks for them.
            let more = unsafe { piece.copy(file, to.0) };
            let done = done.fetch_add(more, Ordering::Relaxed) + more;
            // Whoever finds another one telling leaves it at that.
            if let Ok(mut told) = told.try_lock() {
                told(done, bytes);
            }
        }
    })
    .ok()?;
    copy.written().ok()
}

/// Where a copy is written.
enum Room {
    /// Everything is.
    Whole(MmapMut),
    /// Some of it is not: of that there are zeros to be read, which take no memory.
    #[cfg(target_os = "linux")]
    Parts(Mmap),
}

impl Room {
    fn new(length: usize, left_out: &[Range<usize>]) -> io::Result<Room> {
        #[cfg(target_os = "linux")]
        if !left_out.is_empty() {
            return Room::parts(length, left_out);
        }
        // Elsewhere pages that nobody touches are not counted.
        let _ = left_out;
        MmapOptions::new().len(length).no_reserve_swap().map_anon().map(Room::Whole)
    }

    /// The system counts private memory that can be written (RLIMIT_DATA; all that it has promised where it promises no more than there
    /// is), touched or not. So only what is copied can be.
    #[cfg(target_os = "linux")]
    fn parts(length: usize, left_out: &[Range<usize>]) -> io::Result<Room> {
        /// What pages are no larger than.
        const PAGE: usize = 1 << 16;
        let zeros = std::fs::File::open("/dev/zero")?;
        // SAFETY: nobody can change what is mapped privately, and zeros stay what they are.
        let room = unsafe { MmapOptions::new().len(length).map_copy_read_only(&zeros) }?;
        let starts = std::iter::once(0).chain(left_out.iter().map(|range| range.end));
        let ends = left_out.iter().map(|range| range.start).chain([length]);
        for (start, end) in starts.zip(ends).filter(|(start, end)| start < end) {
            let pages = start / PAGE * PAGE..end.next_multiple_of(PAGE).min(length);
            protect(&room, pages, READ | WRITE)?;
        }
        Ok(Room::Parts(room))
    }

    /// Whether the system knows huge pages.
    fn asks_for_huge_pages(&self) -> bool {
        match self {
            Room::Whole(room) => room.advise(Advice::HugePage).is_ok(),
            #[cfg(target_os = "linux")]
            Room::Parts(room) => room.advise(Advice::HugePage).is_ok(),
        }
    }

    fn start(&mut self) -> *mut u8 {
        match self {
            Room::Whole(room) => room.as_mut_ptr(),
            #[cfg(target_os = "linux")]
            Room::Parts(room) => room.as_ptr().cast_mut(),
        }
    }

    /// The copy, to be read only.
    fn written(self) -> io::Result<Mmap> {
        match self {
            Room::Whole(room) => room.make_read_only(),
            #[cfg(target_os = "linux")]
            Room::Parts(room) => protect(&room, 0..room.len(), READ).map(|()| room),
        }
    }
}

#[cfg(target_os = "linux")]
const READ: i32 = 1;
#[cfg(target_os = "linux")]
const WRITE: i32 = 2;

/// Says what may be done with pages of a mapping.
#[cfg(target_os = "linux")]
fn protect(room: &Mmap, pages: Range<usize>, what: i32) -> io::Result<()> {
    unsafe extern "C" {
        fn mprotect(start: *mut std::ffi::c_void, bytes: usize, what: i32) -> i32;
    }
    let start = room[pages.clone()].as_ptr().cast_mut().cast();
    // SAFETY: the pages are the mapping's, and it is nobody else's.
    match unsafe { mprotect(start, pages.len(), what) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Who is told how many bytes are copied, and of how many.
pub(super) type Told<'a> = dyn FnMut(usize, usize) + Send + 'a;

/// What a thread copies at once.
enum Piece<'a> {
    AsItIs(Range<usize>),
    InStrips(&'a Strips, Range<usize>),
}

/// The file's bytes but for those that are left out, each in one piece.
fn pieces<'a>(length: usize, left_out: &[Range<usize>], matrices: &'a [Strips]) -> Vec<Piece<'a>> {
    let mut others: Vec<Range<usize>> = matrices.iter().flat_map(Strips::planes).collect();
    others.extend(left_out.iter().cloned());
    others.sort_unstable_by_key(|other| other.start);
    others.push(length..length);
    let (mut pieces, mut end) = (Vec::new(), 0);
    for other in others {
        let between = end..other.start;
        let cut = between.clone().step_by(PIECE).map(|first| first..between.end.min(first + PIECE));
        pieces.extend(cut.map(Piece::AsItIs));
        end = other.end;
    }
    for matrix in matrices {
        let at_once = PIECE.div_ceil(matrix.of_one()[0]);
        for Range { start, end } in matrix.of_each() {
            let cut = (start..end).step_by(at_once);
            pieces.extend(cut.map(|first| Piece::InStrips(matrix, first..end.min(first + at_once))));
        }
    }
    pieces
}

impl Piece<'_> {
    /// Copies it to where a copy of the file begins, and lets the file's pages go. Gives how many bytes it has.
    unsafe fn copy(&self, file: &Mmap, to: *mut u8) -> usize {
        let done = match self {
            Piece::AsItIs(range) => {
                // SAFETY: the caller's promise.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        file[range.clone()].as_ptr(),
                        to.add(range.start),
                        range.len(),
                    );
                }
                vec![range.clone()]
            }
            Piece::InStrips(matrix, strips) => {
                for strip in strips.clone() {
                    // SAFETY: the caller's promise.
                    unsafe { matrix.lay_out(strip, file, to) };
                }
                matrix.places(strips.clone()).to_vec()
            }
        };
        let bytes = done.iter().map(Range::len).sum();
        for range in done {
            // SAFETY: the mapping is of a file, which is read again.
            let _ =
                unsafe { file.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len()) };
        }
        bytes
    }
}

/// Where the copy begins.
struct Start(*mut u8);

// SAFETY: threads write different pieces.
unsafe impl Sync for Start {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_not_copied() {
        let mut file = MmapMut::map_anon(3 * PIECE).unwrap();
        file.fill(7);
        let file = file.make_read_only().unwrap();
        let copy = copied(
            &file,
            &[5..PIECE + 1, PIECE + 1..2 * PIECE],
            &[],
            &mut Pool::new(2).unwrap(),
            &mut |_, _| (),
        )
        .unwrap();
        assert!(copy[..5].iter().chain(&copy[2 * PIECE..]).all(|byte| *byte == 7));
        assert!(copy[5..2 * PIECE].iter().all(|byte| *byte == 0));
        assert!(pieces(10, &[0..4, 4..10], &[]).is_empty());
    }

    /// What has been promised of private memory that can be written.
    #[cfg(target_os = "linux")]
    fn data() -> usize {
        let table = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = table.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_left_out_is_no_data() {
        // So much that nothing else in this process comes near.
        const MUCH: usize = 1 << 40;
        let before = data();
        let mut room = Room::new(MUCH, &[100_000..MUCH / 2, MUCH / 2 + 1..MUCH - 3]).unwrap();
        assert!(data() < before + MUCH / 8, "{} bytes, and {before} before", data());
        for written in [0, 99_999, MUCH / 2, MUCH - 3, MUCH - 1] {
            // SAFETY: it is not left out.
            unsafe { room.start().add(written).write(7) };
        }
        let copy = room.written().unwrap();
        assert_eq!([0, 99_999, 200_000, MUCH / 2, MUCH - 1].map(|at| copy[at]), [7, 7, 0, 7, 7]);
        assert!(Room::new(1000, &[0..400, 400..1000]).is_ok(), "nothing is copied");
    }

    #[test]
    fn a_copy_has_every_byte_and_what_was_copied_is_let_go() {
        let bytes = LEAST + 3 * PIECE + 12345;
        let mut file = MmapMut::map_anon(bytes).unwrap();
        file.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index * 31 / 7) as u8);
        let (expected, file) = (file.to_vec(), file.make_read_only().unwrap());
        let mut most = 0;
        let mut told = |done: usize, of: usize| {
            assert_eq!(of, bytes);
            most = done.max(most);
        };
        let copy = copied(&file, &[], &[], &mut Pool::new(3).unwrap(), &mut told).expect("there is memory");
        assert!(most > 0 && most <= bytes, "{most} of {bytes}");
        assert!(copy[..] == expected[..]);
        // Of memory that no file is behind, pages that are let go are zeros.
        assert!(file.iter().all(|byte| *byte == 0));
        let small = MmapMut::map_anon(LEAST - 1).unwrap().make_read_only().unwrap();
        assert!(copied(&small, &[], &[], &mut Pool::new(1).unwrap(), &mut |_, _| ()).is_none());
    }
}
