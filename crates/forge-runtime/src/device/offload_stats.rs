//! What streaming experts has come to: how many were found, and what was read and waited for.

use std::ops::AddAssign;
use std::time::Duration;

/// What has been read, and what for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Experts that layers asked for, but for those that keep their seats.
    pub asked: u64,
    /// Those of them that had a seat, and not because they were foreseen.
    pub found: u64,
    /// Those of them that were foreseen.
    pub foreseen: u64,
    /// Bytes of those that were not found.
    pub wanted: u64,
    /// Bytes read, those of experts among them that were foreseen and that nobody asked for.
    pub bytes: u64,
    /// Time in which nothing was computed because of reads.
    pub stalled: Duration,
}

impl CacheStats {
    /// The share of experts asked for that had a seat.
    pub fn hits(&self) -> f64 {
        if self.asked == 0 { 1.0 } else { self.found as f64 / self.asked as f64 }
    }

    /// The share of experts asked for that had been foreseen.
    pub fn guesses(&self) -> f64 {
        if self.asked == 0 { 0.0 } else { self.foreseen as f64 / self.asked as f64 }
    }

    /// Rows a second that a disk permits which gives so many bytes in it, where this many rows took what was counted: it reads what is
    /// wanted and no more, and nothing else takes time. None where nothing was wanted.
    pub fn permitted(&self, disk: f64, rows: u64) -> Option<f64> {
        (self.wanted > 0).then(|| disk * rows as f64 / self.wanted as f64)
    }

    /// What has been counted since `before`.
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
