//! What a server has done so far, for `/metrics` in the format of Prometheus.

use crate::offload::CacheStats;
use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A number that only grows, or a level.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: usize) {
        self.0.fetch_add(more as u64, Relaxed);
    }

    pub(crate) fn set(&self, level: usize) {
        self.0.store(level as u64, Relaxed);
    }

    /// What it is now.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Time that adds up, in microseconds.
#[derive(Debug, Default)]
pub(crate) struct DurationCounter(AtomicU64);

impl DurationCounter {
    pub(crate) fn add(&self, more: Duration) {
        self.0.fetch_add(more.as_micros() as u64, Relaxed);
    }

    /// In seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.0.load(Relaxed) as f64 / 1e6
    }
}

/// Ends of texts that are remembered.
const ENDS: usize = 16;

/// Everything that is counted.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Texts that began.
    pub(crate) started: Counter,
    /// Texts that came to their end.
    pub(crate) finished: Counter,
    /// Texts that nobody wanted any more.
    pub(crate) cancelled: Counter,
    /// Texts that could not be written.
    pub(crate) failed: Counter,
    /// Requests refused because too many were waiting.
    pub(crate) refused: Counter,
    /// Ids of prompts.
    pub(crate) prompt: Counter,
    /// Those of them that did not have to be read again.
    pub(crate) reused: Counter,
    /// Ids written.
    pub(crate) written: Counter,
    /// Passes of the model.
    pub(crate) passes: Counter,
    /// Rows in them.
    pub(crate) rows: Counter,
    /// Time in them.
    pub(crate) busy: DurationCounter,
    /// Time from the arrival of texts to their first ids.
    pub(crate) first: DurationCounter,
    /// Time from the arrival of texts to their ends.
    pub(crate) whole: DurationCounter,
    /// When the latest texts ended.
    ends: Mutex<VecDeque<Instant>>,
    /// Texts being written.
    pub(crate) active: Counter,
    /// Texts that wait for a slot.
    pub(crate) waiting: Counter,
    /// Where experts are streamed.
    streaming: Mutex<Option<Streaming>>,
}

/// What has been read of experts, and how fast it could be.
#[derive(Clone, Copy, Debug)]
struct Streaming {
    /// What the device had counted before the first text.
    before: CacheStats,
    /// Since then.
    counts: CacheStats,
    /// Bytes a second that the disk gave before the first text, where nothing else was done.
    disk: f64,
}

impl Metrics {
    /// A text has come to its end, so long after it arrived.
    pub(crate) fn finish(&self, whole: Duration) {
        self.whole.add(whole);
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        if ends.len() == ENDS {
            ends.pop_front();
        }
        ends.push_back(Instant::now());
        drop(ends);
        self.finished.add(1);
    }

    /// How far apart the ends of the latest texts are, the time since the last one included; none if that is not known.
    pub(crate) fn interval(&self) -> Option<Duration> {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.front().map(|first| first.elapsed() / ends.len() as u32)
    }

    /// Experts are streamed from a disk that gives so many bytes a second; what has been read so far was for nobody's text.
    pub(crate) fn stream(&self, disk: f64, before: CacheStats) {
        let streaming = Streaming { before, counts: CacheStats::default(), disk };
        *self.streaming.lock().unwrap_or_else(PoisonError::into_inner) = Some(streaming);
    }

    /// What has been read of experts so far.
    pub(crate) fn set_streamed(&self, counts: CacheStats) {
        if let Some(streaming) = &mut *self.streaming.lock().unwrap_or_else(PoisonError::into_inner) {
            streaming.counts = counts.since(&streaming.before);
        }
    }

    /// As Prometheus reads it.
    pub(crate) fn text(&self, slots: u32) -> String {
        let counters = [
            ("texts_started", "Texts that began", &self.started),
            ("texts_finished", "Texts that came to their end", &self.finished),
            ("texts_cancelled", "Texts whose client went away", &self.cancelled),
            ("texts_failed", "Texts that could not be written", &self.failed),
            ("requests_refused", "Requests refused because the queue was full", &self.refused),
            ("prompt_tokens", "Tokens of prompts", &self.prompt),
            ("prompt_tokens_reused", "Tokens of prompts that did not have to be read again", &self.reused),
            ("tokens", "Tokens written", &self.written),
            ("passes", "Passes of the model", &self.passes),
            ("pass_rows", "Rows in passes of the model", &self.rows),
        ];
        let times = [
            ("pass_seconds", "Time in passes of the model", &self.busy),
            ("first_token_seconds", "Time from arrival to first token, of all texts together", &self.first),
            ("text_seconds", "Time from arrival to end, of all texts together", &self.whole),
        ];
        let slots_now = Counter::default();
        slots_now.set(slots as usize);
        let levels = [
            ("slots", "Texts that can be written at once", &slots_now),
            ("texts_active", "Texts being written", &self.active),
            ("texts_waiting", "Texts that wait for a slot", &self.waiting),
        ];
        let mut text = String::new();
        let mut line = |name: &str, help: &str, kind: &str, value: String| {
            let suffix = if kind == "counter" { "_total" } else { "" };
            let name = format!("model_{name}{suffix}");
            // Writing to a string does not fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        };
        for (name, help, count) in counters {
            line(name, help, "counter", count.get().to_string());
        }
        for (name, help, time) in times {
            line(name, help, "counter", time.seconds().to_string());
        }
        if let Some(Streaming { counts, disk, .. }) =
            *self.streaming.lock().unwrap_or_else(PoisonError::into_inner)
        {
            let waited = counts.stalled.as_secs_f64().to_string();
            for (name, help, value) in [
                ("experts_asked", "Experts that layers asked for", counts.asked.to_string()),
                ("experts_found", "Those of them that were in memory", counts.found.to_string()),
                ("experts_foreseen", "Those of them that were read ahead", counts.foreseen.to_string()),
                ("experts_wanted_bytes", "Bytes of those that were not in memory", counts.wanted.to_string()),
                ("experts_bytes", "Bytes of experts read from disk", counts.bytes.to_string()),
                ("experts_stalled_seconds", "Time in which passes waited for the disk", waited),
            ] {
                line(name, help, "counter", value);
            }
            let disk_help =
                "Bytes a second that the disk gave before the first text, where nothing else was done";
            line("experts_disk_bytes_per_second", disk_help, "gauge", disk.to_string());
            if let Some(permitted) = counts.permitted(disk, self.rows.get()) {
                let reached = self.rows.get() as f64 / self.busy.seconds() / permitted;
                for (name, help, value) in [
                    (
                        "rows_per_second_permitted",
                        "Rows a second if that disk read what was wanted and no more",
                        permitted,
                    ),
                    ("rows_per_second_reached_ratio", "The share of these that passes reached", reached),
                ] {
                    line(&format!("experts_{name}"), help, "gauge", value.to_string());
                }
            }
        }
        for (name, help, level) in levels {
            line(name, help, "gauge", level.get().to_string());
        }
        text
    }
}
