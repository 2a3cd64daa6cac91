//! What a dispatch asks of device memory, beyond bytes: which of them are distinct, and how many lines of the cache a
//! simdgroup's loads and stores touch.
//!
//! Lanes run one after another here, not together; so the accesses that a GPU would do as one are found afterwards. The
//! n-th time that a lane comes to a place in the code belongs together with the n-th time of every other lane of its
//! simdgroup. That is how a GPU runs lanes that stay together or finish early; where lanes take turns in an `if`, it
//! may pair others.

use serde::Serialize;
use std::ops::AddAssign;

/// Bytes of a line of the cache.
const LINE: u64 = 128;
/// log2 of the bytes that a bit stands for where lines are counted.
const GRANULE: u32 = 4;
/// Granules of a line.
const LINE_GRANULES: u32 = (LINE >> GRANULE) as u32;
/// log2 of the bytes that a bit stands for where distinct bytes are counted: no element is smaller.
const UNIT: u32 = 1;
/// Windows kept. A threadgroup that touches more, which no kernel that ends does, is counted in parts.
const MOST_WINDOWS: usize = 1 << 20;
/// No further window.
const NONE: u32 = u32::MAX;

/// How a kernel uses device memory, all dispatches together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Distinct bytes that each dispatch loads: the least that it could.
    pub loaded: u64,
    /// Distinct bytes that each dispatch stores: the least that it could.
    pub stored: u64,
    /// Loads and stores that a simdgroup does together.
    pub instructions: u64,
    /// Lines of 128 bytes that those touch.
    pub lines: u64,
    /// Lines that their distinct bytes would fill: the least that they could touch.
    pub least_lines: u64,
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        let Traffic { loaded, stored, instructions, lines, least_lines } = other;
        self.loaded += loaded;
        self.stored += stored;
        self.instructions += instructions;
        self.lines += lines;
        self.least_lines += least_lines;
    }
}

/// Counts a dispatch.
#[derive(Default)]
pub(crate) struct Counting {
    traffic: Traffic,
    /// Of each binding, which bytes have been loaded and stored, a bit for every two.
    seen: Vec<[Vec<u64>; 2]>,
    /// By place in the code: the dispatch that found it to touch memory, and the number that it got there.
    sites: Vec<(u32, u32)>,
    /// Counts dispatches.
    dispatch: u32,
    threads: usize,
    /// Of each site, how often each thread of the running threadgroup has been there.
    times: Vec<Vec<u32>>,
    /// Of each site, an instruction for each time of each simdgroup.
    instructions: Vec<Vec<Instruction>>,
    windows: Vec<Window>,
}

/// What the lanes of a simdgroup do together.
#[derive(Clone, Copy)]
struct Instruction {
    /// Bytes that its lanes ask for.
    bytes: u32,
    /// The first of its windows.
    first: u32,
}

const IDLE: Instruction = Instruction { bytes: 0, first: NONE };

/// 64 granules in a row, of which some are touched.
#[derive(Clone, Copy)]
struct Window {
    number: usize,
    touched: u64,
    next: u32,
}

impl Counting {
    /// Begins a dispatch of threadgroups of so many threads, with bindings of so many bytes.
    pub(crate) fn begin(&mut self, threads: usize, bindings: impl Iterator<Item = usize>) {
        let bits = |bytes: usize| vec![0; (bytes >> UNIT) / 64 + 1];
        self.seen = bindings.map(|bytes| [bits(bytes), bits(bytes)]).collect();
        self.dispatch += 1;
        self.times.clear();
        self.instructions.clear();
        self.windows.clear();
        (self.traffic, self.threads) = (Traffic::default(), threads);
    }

    /// Counts an access of a thread to `size` bytes at address `at`, which is `offset` of a binding.
    #[inline]
    pub(crate) fn access(
        &mut self,
        (binding, offset): (usize, usize),
        (at, size): (usize, usize),
        writes: bool,
        (site, thread): (u32, usize),
    ) {
        self.mark(binding, offset, size, writes);
        if self.windows.len() > MOST_WINDOWS {
            self.end_group();
        }
        let site = self.site(site);
        let time = &mut self.times[site][thread];
        let place = *time as usize * self.threads.div_ceil(32) + thread / 32;
        *time += 1;
        let instructions = &mut self.instructions[site];
        if instructions.len() <= place {
            instructions.resize(place + 1, IDLE);
        }
        instructions[place].bytes += size as u32;
        for granule in at >> GRANULE..=(at + size - 1) >> GRANULE {
            touch(&mut self.windows, &mut instructions[place].first, granule);
        }
    }

    /// Notes which bytes were touched.
    fn mark(&mut self, binding: usize, offset: usize, size: usize, writes: bool) {
        let Some(seen) = self.seen.get_mut(binding) else { return };
        let seen = &mut seen[usize::from(writes)];
        let (first, end) = (offset >> UNIT, (offset + size).div_ceil(1 << UNIT));
        let mut new = 0;
        let mut unit = first;
        // Once, but for accesses that are not aligned.
        while unit < end {
            let (word, bit) = (&mut seen[unit / 64], unit % 64);
            let count = (end - unit).min(64 - bit);
            let bits = (!0u64 >> (64 - count)) << bit;
            new += (bits & !*word).count_ones();
            *word |= bits;
            unit += count;
        }
        let count = if writes { &mut self.traffic.stored } else { &mut self.traffic.loaded };
        *count += u64::from(new) << UNIT;
    }

    #[inline]
    fn site(&mut self, site: u32) -> usize {
        match self.sites.get(site as usize) {
            Some((dispatch, index)) if *dispatch == self.dispatch => *index as usize,
            _ => self.new_site(site),
        }
    }

    #[cold]
    fn new_site(&mut self, site: u32) -> usize {
        let index = self.times.len();
        if self.sites.len() <= site as usize {
            self.sites.resize(site as usize + 1, (0, 0));
        }
        self.sites[site as usize] = (self.dispatch, index as u32);
        self.times.push(vec![0; self.threads]);
        self.instructions.push(Vec::new());
        index
    }

    /// Ends a threadgroup.
    pub(crate) fn end_group(&mut self) {
        for instruction in self.instructions.iter_mut().flatten().filter(|found| found.bytes > 0) {
            let (mut granules, mut lines, mut next) = (0, 0, instruction.first);
            while let Some(window) = self.windows.get(next as usize) {
                granules += u64::from(window.touched.count_ones());
                lines += (0..64 / LINE_GRANULES)
                    .filter(|line| window.touched >> (line * LINE_GRANULES) & ((1 << LINE_GRANULES) - 1) != 0)
                    .count() as u64;
                next = window.next;
            }
            self.traffic.instructions += 1;
            self.traffic.lines += lines;
            // Lanes may ask for the same bytes, or for a part of a granule each.
            let distinct = (granules << GRANULE).min(u64::from(instruction.bytes));
            self.traffic.least_lines += distinct.div_ceil(LINE);
        }
        self.instructions.iter_mut().for_each(Vec::clear);
        self.times.iter_mut().for_each(|times| times.fill(0));
        self.windows.clear();
    }

    /// Ends the dispatch.
    pub(crate) fn end(&mut self) -> Traffic {
        self.end_group();
        self.seen.clear();
        std::mem::take(&mut self.traffic)
    }
}

/// Notes a granule in the list of windows that begins at `first`.
#[inline]
fn touch(windows: &mut Vec<Window>, first: &mut u32, granule: usize) {
    let (number, bit) = (granule / 64, 1u64 << (granule % 64));
    let mut at = *first;
    while let Some(window) = windows.get_mut(at as usize) {
        if window.number == number {
            window.touched |= bit;
            return;
        }
        at = window.next;
    }
    windows.push(Window { number, touched: bit, next: *first });
    *first = windows.len() as u32 - 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts a threadgroup of 64 threads that each load `size` bytes where `at` says, one after another.
    fn count(size: usize, times: usize, at: impl Fn(usize, usize) -> usize) -> Traffic {
        let mut counting = Counting::default();
        counting.begin(64, [1 << 20].into_iter());
        for thread in 0..64 {
            for time in 0..times {
                let offset = at(thread, time);
                counting.access((0, offset), (0x10_0000 + offset, size), false, (7, thread));
            }
        }
        counting.end()
    }

    #[test]
    fn neighbours_fill_lines() {
        let traffic = count(16, 3, |thread, time| (time * 64 + thread) * 16);
        assert_eq!((traffic.instructions, traffic.lines, traffic.least_lines), (6, 24, 24));
        assert_eq!((traffic.loaded, traffic.stored), (3 * 64 * 16, 0));
    }

    #[test]
    fn strides_touch_a_line_each() {
        let traffic = count(16, 1, |thread, _| thread * 4096);
        assert_eq!((traffic.lines, traffic.least_lines, traffic.loaded), (64, 8, 1024));
        // Two bytes of every 34, as in a format whose scales lie among its codes.
        let scales = count(2, 1, |thread, _| thread * 34);
        assert_eq!((scales.lines, scales.least_lines, scales.loaded), (18, 2, 128));
    }

    #[test]
    fn what_all_lanes_load_is_loaded_once() {
        let traffic = count(4, 5, |_, time| time * 4);
        assert_eq!((traffic.instructions, traffic.lines, traffic.least_lines), (10, 10, 10));
        assert_eq!(traffic.loaded, 20);
    }

    #[test]
    fn what_begins_within_a_line_touches_one_more() {
        let traffic = count(16, 1, |thread, _| 64 + thread * 16);
        assert_eq!((traffic.lines, traffic.least_lines), (10, 8));
    }

    #[test]
    fn lanes_that_finish_early_leave_the_others_together() {
        let mut counting = Counting::default();
        counting.begin(32, [4096].into_iter());
        for thread in 0..32 {
            for time in 0..if thread < 8 { 2 } else { 1 } {
                let offset = (time * 32 + thread) * 4;
                counting.access((0, offset), (offset, 4), true, (1, thread));
            }
        }
        let traffic = counting.end();
        assert_eq!(
            (traffic.instructions, traffic.lines, traffic.least_lines, traffic.stored),
            (2, 2, 2, 160)
        );
    }
}
