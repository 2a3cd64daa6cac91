//! Server metrics for `/metrics`, in the Prometheus text format.

use forge_device::offload::CacheStats;
use std::collections::VecDeque;
use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A counter, or a gauge.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds to a counter.
    pub(crate) fn add(&self, more: usize) {
        self.0.fetch_add(more as u64, Relaxed);
    }

    /// Sets a gauge.
    pub(crate) fn set(&self, level: usize) {
        self.0.store(level as u64, Relaxed);
    }

    /// The current value.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A sum of durations, kept in microseconds.
#[derive(Debug, Default)]
pub(crate) struct DurationCounter(AtomicU64);

impl DurationCounter {
    pub(crate) fn add(&self, more: Duration) {
        self.0.fetch_add(more.as_micros() as u64, Relaxed);
    }

    /// The sum in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.0.load(Relaxed) as f64 / 1e6
    }
}

/// Upper bounds of the histogram buckets, in seconds. The last bucket, `+Inf`, is the count.
const BUCKETS: [f64; 14] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// A Prometheus histogram of durations.
#[derive(Debug, Default)]
pub(crate) struct Histogram(Mutex<Observations>);

/// The state of a [`Histogram`]. One lock covers all of it, so a scrape sees a consistent count and sum.
#[derive(Clone, Copy, Debug, Default)]
struct Observations {
    /// Observations at or below each bound of [`BUCKETS`].
    buckets: [u64; BUCKETS.len()],
    count: u64,
    sum: Duration,
}

impl Histogram {
    /// Adds one observation.
    pub(crate) fn observe(&self, time: Duration) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (bucket, bound) in seen.buckets.iter_mut().zip(BUCKETS) {
            *bucket += u64::from(time.as_secs_f64() <= bound);
        }
        seen.count += 1;
        seen.sum += time;
    }

    fn read(&self) -> Observations {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Completion times kept for [`Metrics::interval`].
const RECENT_COMPLETIONS: usize = 16;

/// All metrics of a server. A sequence is one generation: a request with `n` above 1 has several.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Sequences that got a slot.
    pub(crate) started: Counter,
    /// Sequences that finished.
    pub(crate) finished: Counter,
    /// Sequences whose client disconnected.
    pub(crate) cancelled: Counter,
    /// Sequences that ended with an error.
    pub(crate) failed: Counter,
    /// Requests rejected because the queue was full.
    pub(crate) rejected: Counter,
    /// Prompt tokens.
    pub(crate) prompt_tokens: Counter,
    /// Prompt tokens reused from the prefix cache.
    pub(crate) cached_tokens: Counter,
    /// Generated tokens.
    pub(crate) generated_tokens: Counter,
    /// Forward passes.
    pub(crate) passes: Counter,
    /// Rows in forward passes.
    pub(crate) batch_tokens: Counter,
    /// Time in forward passes.
    pub(crate) forward_time: DurationCounter,
    /// Time from the arrival of a request to its first token.
    pub(crate) time_to_first_token: Histogram,
    /// Time from the arrival of a request to its end.
    whole: Histogram,
    /// When the latest sequences finished, the oldest first.
    ends: Mutex<VecDeque<Instant>>,
    /// Sequences in a slot.
    pub(crate) running: Counter,
    /// Sequences waiting for a slot.
    pub(crate) waiting: Counter,
    /// Expert cache statistics, if experts are streamed.
    streaming: Mutex<Option<Streaming>>,
}

/// Statistics of the expert cache and the disk bandwidth that bounds it.
#[derive(Clone, Copy, Debug)]
struct Streaming {
    /// The device's counts after warm-up.
    before: CacheStats,
    /// The counts since then.
    counts: CacheStats,
    /// Disk bandwidth measured before the first request, in bytes/s.
    disk: f64,
}

/// Writes metrics in the Prometheus text format.
#[derive(Default)]
struct Exposition(String);

impl Exposition {
    fn header(&mut self, name: &str, help: &str, kind: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP forge_{name} {help}\n# TYPE forge_{name} {kind}");
    }

    fn sample(&mut self, name: &str, value: impl Display) {
        let _ = writeln!(self.0, "forge_{name} {value}");
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        let name = format!("{name}_total");
        self.header(&name, help, "counter");
        self.sample(&name, value);
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.header(name, help, "gauge");
        self.sample(name, value);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        let Observations { buckets, count, sum } = histogram.read();
        self.header(name, help, "histogram");
        for (bound, observed) in BUCKETS.iter().zip(buckets) {
            self.sample(&format!("{name}_bucket{{le=\"{bound}\"}}"), observed);
        }
        self.sample(&format!("{name}_bucket{{le=\"+Inf\"}}"), count);
        self.sample(&format!("{name}_sum"), sum.as_secs_f64());
        self.sample(&format!("{name}_count"), count);
    }
}

impl Metrics {
    /// Counts a sequence that finished, `whole` after its request arrived.
    pub(crate) fn finish(&self, whole: Duration) {
        self.whole.observe(whole);
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        if ends.len() == RECENT_COMPLETIONS {
            ends.pop_front();
        }
        ends.push_back(Instant::now());
        drop(ends);
        self.finished.add(1);
    }

    /// The mean time between the latest completions, up to now; `None` before the first completion.
    pub(crate) fn interval(&self) -> Option<Duration> {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.front().map(|first| first.elapsed() / ends.len() as u32)
    }

    /// Enables expert cache metrics. `disk` is the disk bandwidth in bytes/s; `before` are the counts after warm-up.
    pub(crate) fn enable_expert_cache(&self, disk: f64, before: CacheStats) {
        let streaming = Streaming { before, counts: CacheStats::default(), disk };
        *self.streaming.lock().unwrap_or_else(PoisonError::into_inner) = Some(streaming);
    }

    /// Updates the expert cache statistics; ignored unless [`Metrics::enable_expert_cache`] was called.
    pub(crate) fn set_expert_cache(&self, counts: CacheStats) {
        if let Some(streaming) = &mut *self.streaming.lock().unwrap_or_else(PoisonError::into_inner) {
            streaming.counts = counts.since(&streaming.before);
        }
    }

    /// All metrics in the Prometheus text format. `slots` is the number of parallel sequences.
    pub(crate) fn text(&self, slots: u32) -> String {
        let mut out = Exposition::default();
        for (name, help, count) in [
            ("requests_started", "Sequences that started", &self.started),
            ("requests_completed", "Sequences that finished", &self.finished),
            ("requests_cancelled", "Sequences whose client disconnected", &self.cancelled),
            ("requests_failed", "Sequences that ended with an error", &self.failed),
            ("requests_rejected", "Requests rejected because the queue was full", &self.rejected),
            ("prompt_tokens", "Prompt tokens", &self.prompt_tokens),
            ("prompt_tokens_cached", "Prompt tokens reused from the prefix cache", &self.cached_tokens),
            ("generation_tokens", "Generated tokens", &self.generated_tokens),
            ("forward_passes", "Forward passes", &self.passes),
            ("batch_tokens", "Rows in forward passes", &self.batch_tokens),
        ] {
            out.counter(name, help, count.get());
        }
        out.counter("forward_seconds", "Time in forward passes", self.forward_time.seconds());
        out.histogram(
            "time_to_first_token_seconds",
            "Time from arrival to the first token",
            &self.time_to_first_token,
        );
        out.histogram("request_seconds", "Time from arrival to the end", &self.whole);
        out.gauge("slots", "Parallel sequences", slots);
        out.gauge("requests_running", "Sequences in a slot", self.running.get());
        out.gauge("requests_waiting", "Sequences waiting for a slot", self.waiting.get());
        let streaming = *self.streaming.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Streaming { counts, disk, .. }) = streaming {
            self.write_expert_cache(&mut out, &counts, disk);
        }
        out.0
    }

    fn write_expert_cache(&self, out: &mut Exposition, counts: &CacheStats, disk: f64) {
        for (name, help, value) in [
            ("requests", "Experts requested by layers", counts.requests),
            ("hits", "Requested experts found in the cache", counts.hits),
            ("prefetch_hits", "Requested experts that had been prefetched", counts.prefetch_hits),
            ("miss_bytes", "Bytes of requested experts not found", counts.miss_bytes),
            ("read_bytes", "Bytes read from disk, wasted prefetches included", counts.read_bytes),
        ] {
            out.counter(&format!("expert_cache_{name}"), help, value);
        }
        let help = "Time in which passes waited for the disk";
        out.counter("expert_cache_stall_seconds", help, counts.stall_time.as_secs_f64());
        let help = "Disk bandwidth, measured before the first request";
        out.gauge("expert_disk_bytes_per_second", help, disk);
        if let Some(bound) = counts.disk_bound(disk, self.batch_tokens.get()) {
            let help = "Rows per second if the disk read the missed bytes and nothing else took time";
            out.gauge("expert_disk_bound_tokens_per_second", help, bound);
            let reached = self.batch_tokens.get() as f64 / self.forward_time.seconds() / bound;
            out.gauge("expert_disk_bound_ratio", "Share of that bound that was reached", reached);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_has_cumulative_buckets_a_sum_and_a_count() {
        let metrics = Metrics::default();
        for millis in [5, 10, 40, 700_000] {
            metrics.time_to_first_token.observe(Duration::from_millis(millis));
        }
        let text = metrics.text(1);
        let name = "forge_time_to_first_token_seconds";
        for line in [
            format!("# TYPE {name} histogram"),
            format!("{name}_bucket{{le=\"0.01\"}} 2"),
            format!("{name}_bucket{{le=\"0.025\"}} 2"),
            format!("{name}_bucket{{le=\"0.05\"}} 3"),
            format!("{name}_bucket{{le=\"1\"}} 3"),
            format!("{name}_bucket{{le=\"300\"}} 3"),
            format!("{name}_bucket{{le=\"+Inf\"}} 4"),
            format!("{name}_sum 700.055"),
            format!("{name}_count 4"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing:\n{text}");
        }
    }

    #[test]
    fn every_metric_has_the_prefix_and_a_help_line() {
        let metrics = Metrics::default();
        metrics.enable_expert_cache(1e9, CacheStats::default());
        let text = metrics.text(4);
        assert!(text.contains("\nforge_slots 4\n") && text.contains("forge_expert_cache_requests_total 0"));
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(line.starts_with("forge_"), "{line}");
        }
        let [helps, kinds] = ["# HELP forge_", "# TYPE forge_"]
            .map(|start| text.lines().filter(|line| line.starts_with(start)).count());
        assert_eq!(helps, kinds);
    }
}
