//! Counters of the expert cache: requests, hits, bytes read and stall time.

use std::ops::AddAssign;
use std::time::Duration;

/// Counters of the expert cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Requests, without those for pinned experts.
    pub requests: u64,
    /// Hits that were not prefetched.
    pub hits: u64,
    /// Prefetch hits.
    pub prefetch_hits: u64,
    /// Bytes of misses.
    pub miss_bytes: u64,
    /// Bytes read, wasted prefetches included.
    pub read_bytes: u64,
    /// Time in which compute waited for reads.
    pub stall_time: Duration,
}

impl CacheStats {
    /// The hit rate, without prefetch hits.
    pub fn hit_rate(&self) -> f64 {
        if self.requests == 0 { 1.0 } else { self.hits as f64 / self.requests as f64 }
    }

    /// The prefetch hit rate.
    pub fn prefetch_hit_rate(&self) -> f64 {
        if self.requests == 0 { 0.0 } else { self.prefetch_hits as f64 / self.requests as f64 }
    }

    /// The disk-bound limit in tokens per second: `disk` is the bandwidth in bytes per second, and `rows` is
    /// the number of rows the counters cover. It assumes that only misses are read and that all other work is
    /// free. None without misses.
    pub fn disk_bound(&self, disk: f64, rows: u64) -> Option<f64> {
        (self.miss_bytes > 0).then(|| disk * rows as f64 / self.miss_bytes as f64)
    }

    /// The difference to the earlier counters `before`.
    pub fn since(&self, before: &CacheStats) -> CacheStats {
        CacheStats {
            requests: self.requests - before.requests,
            hits: self.hits - before.hits,
            prefetch_hits: self.prefetch_hits - before.prefetch_hits,
            miss_bytes: self.miss_bytes - before.miss_bytes,
            read_bytes: self.read_bytes - before.read_bytes,
            stall_time: self.stall_time - before.stall_time,
        }
    }
}

impl AddAssign for CacheStats {
    fn add_assign(&mut self, more: CacheStats) {
        self.requests += more.requests;
        self.hits += more.hits;
        self.prefetch_hits += more.prefetch_hits;
        self.miss_bytes += more.miss_bytes;
        self.read_bytes += more.read_bytes;
        self.stall_time += more.stall_time;
    }
}
