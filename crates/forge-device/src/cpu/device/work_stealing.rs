//! Work stealing over contiguous ranges. Each thread owns one range and steals from the others when its own
//! is empty.
//!
//! A thread owns the same items in every dispatch of the same size. If the items are rows that other kernels
//! wrote and will read, a stolen row moves to another core's cache and back. [`WorkRanges::reserve_tail`] keeps
//! the tail of each range for its owner.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of claimed pieces of a thread's range. Aligned to a pair of cache lines, because some CPUs prefetch
/// lines in pairs.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct RangeCursor(pub(crate) AtomicUsize);

/// Iterator over the ranges that one thread claims, until all threads together have claimed all items.
pub struct WorkRanges<'a> {
    taken: &'a [RangeCursor],
    items: usize,
    grain: usize,
    /// Owner of the range that is claimed from now.
    owner: usize,
    /// Number of ranges not yet exhausted.
    left: usize,
    /// Whether this thread claims from its own range.
    own: bool,
    /// Whether the tail of each range is reserved for its owner.
    reserves_tail: bool,
    /// Maximum number of pieces per claim.
    most: usize,
}

/// With a reserved tail, one in this many pieces of a range is not stolen.
const TAIL_FRACTION: usize = 8;

impl<'a> WorkRanges<'a> {
    /// The claims of thread `owner` on `0..items`, in pieces of `grain` items. All threads share `taken`,
    /// which has one cursor per thread.
    pub(crate) fn new(taken: &'a [RangeCursor], owner: usize, items: usize, grain: usize) -> WorkRanges<'a> {
        WorkRanges {
            taken,
            items,
            grain: grain.max(1),
            owner,
            left: taken.len(),
            own: true,
            reserves_tail: false,
            most: 1,
        }
    }

    /// Reserves the last eighth of each range for its owner.
    pub(crate) fn reserve_tail(self) -> Self {
        WorkRanges { reserves_tail: true, ..self }
    }

    /// Allows claims of up to `most` pieces. Claims get smaller as a range runs out.
    pub(crate) fn up_to(self, most: usize) -> Self {
        WorkRanges { most, ..self }
    }

    /// Maximum number of items per claim.
    pub(crate) fn at_once(&self) -> usize {
        let pieces = self.items.div_ceil(self.grain);
        pieces_per_claim(pieces.div_ceil(self.taken.len())).clamp(1, self.most) * self.grain
    }
}

/// The range of items that `thread` owns.
pub(crate) fn owned_range(thread: usize, threads: usize, items: usize) -> Range<usize> {
    let first = |thread: usize| (thread * items).div_ceil(threads);
    first(thread)..first(thread + 1)
}

/// Pieces to claim at once of `left` remaining ones: three quarters, for few claims and a small rest at the
/// end.
fn pieces_per_claim(left: usize) -> usize {
    left * 3 / 4
}

impl Iterator for WorkRanges<'_> {
    type Item = Range<usize>;

    #[inline]
    fn next(&mut self) -> Option<Range<usize>> {
        let (threads, pieces) = (self.taken.len(), self.items.div_ceil(self.grain));
        while self.left > 0 {
            let Range { start: begin, end } = owned_range(self.owner, threads, pieces);
            let RangeCursor(taken) = &self.taken[self.owner];
            let last = if self.reserves_tail && !self.own { (end - begin) / TAIL_FRACTION } else { 0 };
            // A plain load does not take the cache line from other cores.
            let mut before = taken.load(Ordering::Relaxed);
            while begin + before + last < end {
                let count = pieces_per_claim(end - begin - before).clamp(1, self.most);
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
            self.owner = (self.owner + 1) % threads;
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
    fn threads_claim_their_range_and_then_steal() {
        let taken = three();
        let alone: Vec<_> = WorkRanges::new(&taken, 1, 10, 2).collect();
        assert_eq!(alone, [4..6, 6..8, 8..10, 0..2, 2..4], "its own first, and then all");
        assert!((0..3).all(|owner| WorkRanges::new(&taken, owner, 10, 2).next().is_none()));

        let taken = three();
        let mut ranges = [0, 1, 2].map(|owner| WorkRanges::new(&taken, owner, 8, 1));
        for turn in
            [[Some(0), Some(3), Some(6)], [Some(1), Some(4), Some(7)], [Some(2), Some(5), None], [None; 3]]
        {
            assert_eq!(ranges.each_mut().map(|range| range.next().map(|range| range.start)), turn);
        }
    }

    #[test]
    fn reserved_tails_are_not_stolen() {
        let taken = three();
        let first = |owner| WorkRanges::new(&taken, owner, 48, 1).reserve_tail();
        let alone: Vec<_> = first(0).map(|range| range.start).collect();
        assert_eq!(alone, (0..30).chain(32..46).collect::<Vec<_>>(), "all but two of sixteen");
        let left: Vec<_> = [1, 2].into_iter().flat_map(first).map(|range| range.start).collect();
        assert_eq!(left, [30, 31, 46, 47]);
    }

    #[test]
    fn claims_shrink_with_the_remaining_items() {
        let taken = three();
        let first = |owner| WorkRanges::new(&taken, owner, 96, 2).up_to(8);
        assert_eq!(first(0).at_once(), 16);
        let alone: Vec<_> = first(1).take(5).collect();
        assert_eq!(alone, [32..48, 48..60, 60..62, 62..64, 64..80], "its own sixteen pieces, and another's");
        assert_eq!(WorkRanges::new(&taken, 0, 96, 2).up_to(100).at_once(), 24);
        assert_eq!(WorkRanges::new(&taken, 0, 1, 2).up_to(100).at_once(), 2, "one piece that is not whole");
    }

    #[test]
    fn each_item_is_claimed_once() {
        for (items, grain) in [(0, 1), (1, 1), (2, 1), (7, 3), (100, 7), (100, 1)] {
            for (reserves_tail, most) in [(false, 1), (true, 1), (false, 5), (false, 100)] {
                let taken = three();
                let ranges = [2, 0, 1].map(|owner| {
                    let ranges = WorkRanges::new(&taken, owner, items, grain).up_to(most);
                    if reserves_tail { ranges.reserve_tail() } else { ranges }
                });
                let mut all: Vec<usize> = ranges.into_iter().flatten().flatten().collect();
                all.sort_unstable();
                assert_eq!(all, (0..items).collect::<Vec<_>>(), "{items} by {grain}");
            }
        }
    }
}
