//! The measurements of one test.

use forge_device::model::memory::format_bytes;
use forge_device::offload::CacheStats;
use serde_json::{Value, json};

/// Measurements of one test.
pub(super) struct Result {
    /// Tokens in the context before the test.
    pub(super) depth: u32,
    /// Prompt length in tokens; 0 in a decode test.
    pub(super) prompt: u32,
    /// Generated tokens; 0 in a prefill test.
    pub(super) generated: u32,
    /// Speed of each repetition in tok/s.
    pub(super) samples: Vec<f64>,
    /// Memory bandwidth samples in bytes/s.
    pub(super) reads: Vec<f64>,
    /// Expert cache statistics, if experts are streamed.
    pub(super) streamed: Option<ExpertStats>,
}

/// Expert cache statistics of one test, per token.
pub(super) struct ExpertStats {
    /// Share of requested experts found in the cache.
    hit_rate: f64,
    /// Share of requested experts that had been prefetched.
    prefetch_hit_rate: f64,
    /// Bytes of requested experts not found.
    miss_bytes: f64,
    /// Bytes read from disk, wasted prefetches included.
    read_bytes: f64,
    /// Seconds in which the pass waited for the disk.
    stall_seconds: f64,
    /// Disk bandwidth in bytes/s.
    disk_bandwidth: f64,
    /// Speed in tok/s if the disk read the missed bytes and nothing else took time; `None` without misses.
    disk_bound: Option<f64>,
}

impl ExpertStats {
    /// Divides the counts by `tokens`. `disk_samples` are bandwidths in bytes/s.
    pub(super) fn new(counts: CacheStats, tokens: u32, disk_samples: &[f64]) -> ExpertStats {
        let per_token = 1.0 / f64::from(tokens);
        let disk_bandwidth = mean(disk_samples).unwrap_or(0.0);
        ExpertStats {
            hit_rate: counts.hit_rate(),
            prefetch_hit_rate: counts.prefetch_hit_rate(),
            miss_bytes: counts.miss_bytes as f64 * per_token,
            read_bytes: counts.read_bytes as f64 * per_token,
            stall_seconds: counts.stall_time.as_secs_f64() * per_token,
            disk_bandwidth,
            disk_bound: counts.disk_bound(disk_bandwidth, u64::from(tokens)),
        }
    }

    pub(super) fn summary(&self, per_second: f64) -> String {
        let mut text = format!("expert cache: {:.1}% hits", 100.0 * self.hit_rate);
        if let Some(bound) = self.disk_bound {
            text += &format!(
                ", {:.1}% prefetch hits; per token {} missed, {} read, {:.2} ms stalled; disk {}/s, disk bound {bound:.2} tok/s, \
                 {:.0}% of it reached",
                100.0 * self.prefetch_hit_rate,
                format_bytes(self.miss_bytes as u64),
                format_bytes(self.read_bytes as u64),
                1000.0 * self.stall_seconds,
                format_bytes(self.disk_bandwidth as u64),
                100.0 * per_second / bound,
            );
        }
        text
    }
}

impl Result {
    pub(super) fn name(&self) -> String {
        let test =
            if self.prompt > 0 { format!("pp{}", self.prompt) } else { format!("tg{}", self.generated) };
        if self.depth > 0 { format!("{test} @ d{}", self.depth) } else { test }
    }

    pub(super) fn mean(&self) -> f64 {
        mean(&self.samples).unwrap_or(f64::NAN)
    }

    /// The sample standard deviation; 0 for a single sample.
    pub(super) fn deviation(&self) -> f64 {
        let (mean, count) = (self.mean(), self.samples.len());
        let squares: f64 = self.samples.iter().map(|sample| (sample - mean).powi(2)).sum();
        (squares / count.saturating_sub(1).max(1) as f64).sqrt()
    }

    pub(super) fn json(&self) -> Value {
        let mut value = json!({
            "test": self.name(),
            "n_prompt": self.prompt,
            "n_gen": self.generated,
            "n_depth": self.depth,
            "avg_ts": self.mean(),
            "stddev_ts": self.deviation(),
            "samples_ts": self.samples,
            "memory_bandwidth_samples": self.reads,
        });
        if let Some(streamed) = &self.streamed {
            value["expert_hit_rate"] = json!(streamed.hit_rate);
            value["expert_prefetch_hit_rate"] = json!(streamed.prefetch_hit_rate);
            value["expert_miss_bytes_per_token"] = json!(streamed.miss_bytes);
            value["expert_read_bytes_per_token"] = json!(streamed.read_bytes);
            value["expert_stall_seconds_per_token"] = json!(streamed.stall_seconds);
            value["disk_bytes_per_second"] = json!(streamed.disk_bandwidth);
            value["disk_bound_ts"] = json!(streamed.disk_bound);
        }
        value
    }
}

pub(super) fn mean(samples: &[f64]) -> Option<f64> {
    (!samples.is_empty()).then(|| samples.iter().sum::<f64>() / samples.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_bound_is_stated_with_the_share_reached() {
        let stalled = std::time::Duration::from_millis(500);
        let (wanted, bytes) = (1_000_000_000, 1_200_000_000);
        let counts = CacheStats {
            requests: 100,
            hits: 75,
            prefetch_hits: 5,
            miss_bytes: wanted,
            read_bytes: bytes,
            stall_time: stalled,
        };
        let line = ExpertStats::new(counts, 10, &[1.5e9, 2.5e9, 2e9]).summary(18.0);
        assert_eq!(
            line,
            "expert cache: 75.0% hits, 5.0% prefetch hits; per token 100 MB missed, 120 MB read, 50.00 ms stalled; disk 2.00 GB/s, \
             disk bound 20.00 tok/s, 90% of it reached"
        );
    }
}
