//! Memory traffic counters: distinct bytes, and cache lines accessed by a simdgroup's loads and stores (coalescing).
//!
//! Lanes execute one after another, so coalesced accesses are reconstructed: the n-th execution of an instruction by a lane
//! is combined with the n-th execution by the other lanes of its simdgroup. This matches a GPU if lanes stay converged or
//! exit early; with divergent branches a GPU may combine others.

use serde::Serialize;
use std::ops::AddAssign;

/// Size of a cache line in bytes.
const LINE: u64 = 128;
/// log2 of the bytes per bit, for counting cache lines.
const GRANULE: u32 = 4;
/// Granules per cache line.
const LINE_GRANULES: u32 = (LINE >> GRANULE) as u32;
/// log2 of the bytes per bit, for counting distinct bytes. No element is smaller.
const UNIT: u32 = 1;
/// Maximum windows. A threadgroup that accesses more is counted in parts.
const MAX_WINDOWS: usize = 1 << 20;
/// End of a window list.
const NONE: u32 = u32::MAX;

/// Device memory traffic of a kernel, summed over dispatches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Distinct bytes loaded per dispatch: the minimum.
    pub loaded: u64,
    /// Distinct bytes stored per dispatch: the minimum.
    pub stored: u64,
    /// Load and store instructions of simdgroups.
    pub instructions: u64,
    /// 128-byte cache lines accessed by these instructions.
    pub lines: u64,
    /// Minimum cache lines for the distinct bytes of these instructions.
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

/// The traffic counter of one dispatch.
#[derive(Default)]
pub(crate) struct TrafficCounter {
    traffic: Traffic,
    /// Loaded and stored bytes of each binding, one bit per two bytes.
    seen: Vec<[Vec<u64>; 2]>,
    /// By code location: the dispatch that last assigned it an index, and the index.
    sites: Vec<(u32, u32)>,
    /// Number of the dispatch.
    dispatch: u32,
    threads: usize,
    /// Executions of each site by each thread of the threadgroup.
    times: Vec<Vec<u32>>,
    /// For each site, one instruction per execution and simdgroup.
    instructions: Vec<Vec<Instruction>>,
    windows: Vec<Window>,
}

/// A load or store by all lanes of a simdgroup.
#[derive(Clone, Copy)]
struct Instruction {
    /// Bytes accessed by all lanes.
    bytes: u32,
    /// Index of its first window.
    first: u32,
}

const IDLE: Instruction = Instruction { bytes: 0, first: NONE };

/// A bitmap of 64 consecutive granules.
#[derive(Clone, Copy)]
struct Window {
    number: usize,
    touched: u64,
    next: u32,
}

impl TrafficCounter {
    /// Begins a dispatch with this threadgroup size and these binding sizes.
    pub(crate) fn begin(&mut self, threads: usize, bindings: impl Iterator<Item = usize>) {
        let bits = |bytes: usize| vec![0; (bytes >> UNIT) / 64 + 1];
        self.seen = bindings.map(|bytes| [bits(bytes), bits(bytes)]).collect();
        self.dispatch += 1;
        self.times.clear();
        self.instructions.clear();
        self.windows.clear();
        (self.traffic, self.threads) = (Traffic::default(), threads);
    }

    /// Counts an access of `size` bytes at address `at`, which is `offset` in a binding.
    #[inline]
    pub(crate) fn access(
        &mut self,
        (binding, offset): (usize, usize),
        (at, size): (usize, usize),
        writes: bool,
        (site, thread): (u32, usize),
    ) {
        self.mark(binding, offset, size, writes);
        if self.windows.len() > MAX_WINDOWS {
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

    /// Marks bytes as loaded or stored.
    fn mark(&mut self, binding: usize, offset: usize, size: usize, writes: bool) {
        let Some(seen) = self.seen.get_mut(binding) else { return };
        let seen = &mut seen[usize::from(writes)];
        let (first, end) = (offset >> UNIT, (offset + size).div_ceil(1 << UNIT));
        let mut new = 0;
        let mut unit = first;
        // One iteration unless the access is misaligned.
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
            // Lanes may access the same bytes, or parts of one granule.
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

/// Marks a granule in the window list that begins at `first`.
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

    /// Counts a threadgroup of 64 threads, each of which loads `size` bytes at `at(thread, time)`.
    fn count(size: usize, times: usize, at: impl Fn(usize, usize) -> usize) -> Traffic {
        let mut counting = TrafficCounter::default();
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
    fn adjacent_loads_share_cache_lines() {
        let traffic = count(16, 3, |thread, time| (time * 64 + thread) * 16);
        assert_eq!((traffic.instructions, traffic.lines, traffic.least_lines), (6, 24, 24));
        assert_eq!((traffic.loaded, traffic.stored), (3 * 64 * 16, 0));
    }

    #[test]
    fn strided_loads_touch_one_line_each() {
        let traffic = count(16, 1, |thread, _| thread * 4096);
        assert_eq!((traffic.lines, traffic.least_lines, traffic.loaded), (64, 8, 1024));
        // Two bytes of every 34, as the scales of interleaved q8_0.
        let scales = count(2, 1, |thread, _| thread * 34);
        assert_eq!((scales.lines, scales.least_lines, scales.loaded), (18, 2, 128));
    }

    #[test]
    fn broadcast_loads_count_once() {
        let traffic = count(4, 5, |_, time| time * 4);
        assert_eq!((traffic.instructions, traffic.lines, traffic.least_lines), (10, 10, 10));
        assert_eq!(traffic.loaded, 20);
    }

    #[test]
    fn misaligned_loads_touch_one_more_line() {
        let traffic = count(16, 1, |thread, _| 64 + thread * 16);
        assert_eq!((traffic.lines, traffic.least_lines), (10, 8));
    }

    #[test]
    fn early_exit_of_lanes_does_not_split_the_others() {
        let mut counting = TrafficCounter::default();
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
