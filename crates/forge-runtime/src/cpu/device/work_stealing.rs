//! Items in an order, shared out among threads: each has neighbouring ones of its own, and whoever is done takes what others have left.
//!
//! So threads have the same items from one time to the next, where there are as many. Where items are rows that other kernels made and others
//! will read, a row that changes hands is fetched from the cache of another core, and then back: the last of such items are left to
//! their thread ([`WorkRanges::that_stay`]).

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How much of a thread's items has been taken. Each has a pair of cache lines, as which some machines fetch them.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct RangeCursor(pub(crate) AtomicUsize);

/// Ranges of items that a thread takes, until all threads together have taken all.
pub struct WorkRanges<'a> {
    taken: &'a [RangeCursor],
    items: usize,
    grain: usize,
    /// Of which thread items are taken now.
    whose: usize,
    /// Threads of which some may be left.
    left: usize,
    /// Whether this thread takes its own.
    own: bool,
    /// Whether the last of others' are left to them.
    stay: bool,
    /// The most pieces that are taken at once.
    most: usize,
}

/// Of a thread's pieces that stay, the last one of so many is left to it.
const LAST: usize = 8;

impl<'a> WorkRanges<'a> {
    /// What thread `whose` takes of `0..items`, `grain` at a time. All threads have the same `taken`, one of them each.
    pub(crate) fn new(taken: &'a [RangeCursor], whose: usize, items: usize, grain: usize) -> WorkRanges<'a> {
        WorkRanges {
            taken,
            items,
            grain: grain.max(1),
            whose,
            left: taken.len(),
            own: true,
            stay: false,
            most: 1,
        }
    }

    /// The same, of which the last eighth of a thread's is nobody else's.
    pub(crate) fn that_stay(self) -> Self {
        WorkRanges { stay: true, ..self }
    }

    /// The same, of which a thread takes much at once while much is left, but at most so many pieces.
    pub(crate) fn up_to(self, most: usize) -> Self {
        WorkRanges { most, ..self }
    }

    /// The most items that are taken at once.
    pub(crate) fn at_once(&self) -> usize {
        let pieces = self.items.div_ceil(self.grain);
        much(pieces.div_ceil(self.taken.len())).clamp(1, self.most) * self.grain
    }
}

/// Which of so many items are a thread's own.
pub(crate) fn own(thread: usize, threads: usize, items: usize) -> Range<usize> {
    let first = |thread: usize| (thread * items).div_ceil(threads);
    first(thread)..first(thread + 1)
}

/// Of so many pieces that are left of a thread's, those that are taken at once: three quarters, so that all are taken few times
/// and what is left for the last moment is little.
fn much(left: usize) -> usize {
    left * 3 / 4
}

impl Iterator for WorkRanges<'_> {
    type Item = Range<usize>;

    #[inline]
    fn next(&mut self) -> Option<Range<usize>> {
        let (threads, pieces) = (self.taken.len(), self.items.div_ceil(self.grain));
        while self.left > 0 {
            let Range { start: begin, end } = own(self.whose, threads, pieces);
            let RangeCursor(taken) = &self.taken[self.whose];
            let last = if self.stay && !self.own { (end - begin) / LAST } else { 0 };
            // Who only looks does not take the line from the others.
            let mut before = taken.load(Ordering::Relaxed);
            while begin + before + last < end {
                let count = much(end - begin - before).clamp(1, self.most);
                match taken.compare_exchange_weak(
                    before,
                    before + count,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => {
                        let start = (begin + before) * self.grain;
                        return Some(start..self.items.min(start + count * self.grain));
                    }
                    Err(now) => before = now,
                }
            }
            self.whose = (self.whose + 1) % threads;
            self.left -= 1;
            self.own = false;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> [RangeCursor; 3] {
        [(); 3].map(|()| RangeCursor::default())
    }

    #[test]
    fn threads_take_their_own_items_and_then_what_others_left() {
        let taken = three();
        let alone: Vec<_> = WorkRanges::new(&taken, 1, 10, 2).collect();
        assert_eq!(alone, [4..6, 6..8, 8..10, 0..2, 2..4], "its own first, and then all");
        assert!((0..3).all(|whose| WorkRanges::new(&taken, whose, 10, 2).next().is_none()));

        let taken = three();
        let mut shares = [0, 1, 2].map(|whose| WorkRanges::new(&taken, whose, 8, 1));
        for turn in
            [[Some(0), Some(3), Some(6)], [Some(1), Some(4), Some(7)], [Some(2), Some(5), None], [None; 3]]
        {
            assert_eq!(shares.each_mut().map(|share| share.next().map(|range| range.start)), turn);
        }
    }

    #[test]
    fn the_last_of_items_that_stay_are_left_to_their_thread() {
        let taken = three();
        let first = |whose| WorkRanges::new(&taken, whose, 48, 1).that_stay();
        let alone: Vec<_> = first(0).map(|range| range.start).collect();
        assert_eq!(alone, (0..30).chain(32..46).collect::<Vec<_>>(), "all but two of sixteen");
        let left: Vec<_> = [1, 2].into_iter().flat_map(first).map(|range| range.start).collect();
        assert_eq!(left, [30, 31, 46, 47]);
    }

    #[test]
    fn much_is_taken_at_once_while_much_is_left() {
        let taken = three();
        let first = |whose| WorkRanges::new(&taken, whose, 96, 2).up_to(8);
        assert_eq!(first(0).at_once(), 16);
        let alone: Vec<_> = first(1).take(5).collect();
        assert_eq!(alone, [32..48, 48..60, 60..62, 62..64, 64..80], "its own sixteen pieces, and another's");
        assert_eq!(WorkRanges::new(&taken, 0, 96, 2).up_to(100).at_once(), 24);
        assert_eq!(WorkRanges::new(&taken, 0, 1, 2).up_to(100).at_once(), 2, "one piece that is not whole");
    }

    #[test]
    fn every_item_is_taken_once() {
        for (items, grain) in [(0, 1), (1, 1), (2, 1), (7, 3), (100, 7), (100, 1)] {
            for (stay, most) in [(false, 1), (true, 1), (false, 5), (false, 100)] {
                let taken = three();
                let shares = [2, 0, 1].map(|whose| {
                    let neighbours = WorkRanges::new(&taken, whose, items, grain).up_to(most);
                    if stay { neighbours.that_stay() } else { neighbours }
                });
                let mut all: Vec<usize> = shares.into_iter().flatten().flatten().collect();
                all.sort_unstable();
                assert_eq!(all, (0..items).collect::<Vec<_>>(), "{items} by {grain}");
            }
        }
    }
}
