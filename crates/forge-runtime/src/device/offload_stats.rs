//! Counters of the expert cache: requests, hits, bytes read and stall time.

use std::ops::AddAssign;
use std::time::Duration;

/// Counters of the expert cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Requests, without those for pinned experts.
    pub asked: u64,
    /// Hits that were not prefetched.
    pub found: u64,
    /// Prefetch hits.
    pub foreseen: u64,
    /// Bytes of misses.
    pub wanted: u64,
    /// Bytes read, wasted prefetches included.
    pub bytes: u64,
    /// Time in which compute waited for reads.
    pub stalled: Duration,
}

impl CacheStats {
    /// The hit rate, without prefetch hits.
    pub fn hits(&self) -> f64 {
        if self.asked == 0 { 1.0 } else { self.found as f64 / self.asked as f64 }
    }

    /// The prefetch hit rate.
    pub fn guesses(&self) -> f64 {
        if self.asked == 0 { 0.0 } else { self.foreseen as f64 / self.asked as f64 }
    }

    /// The disk-bound limit in tokens per second: `disk` is the bandwidth in bytes per second, and `rows` is
    /// the number of rows the counters cover. It assumes that only misses are read and that all other work is
    /// free. None without misses.
    pub fn permitted(&self, disk: f64, rows: u64) -> Option<f64> {
        (self.wanted > 0).then(|| disk * rows as f64 / self.wanted as f64)
    }

    /// The difference to the earlier counters `before`.
    pub fn since(&self, before: &CacheStats) -> CacheStats {
        CacheStats {
            asked: self.asked - before.asked,
            found: self.found - before.found,
            foreseen: self.foreseen - before.foreseen,
            wanted: self.wanted - before.wanted,
            bytes: self.bytes - before.bytes,
            stalled: self.stalled - before.stalled,
        }
    }
}

impl AddAssign for CacheStats {
    fn add_assign(&mut self, more: CacheStats) {
        self.asked += more.asked;
        self.found += more.found;
        self.foreseen += more.foreseen;
        self.wanted += more.wanted;
        self.bytes += more.bytes;
        self.stalled += more.stalled;
    }
}
