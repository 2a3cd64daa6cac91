//! Expert usage counts, kept in a file next to the weights. The next run starts with the most used experts in
//! its cache.
//!
//! The file may be deleted. A missing, unreadable or mismatching file counts as empty. If it cannot be
//! written, nothing is kept.

use crate::atomic_write;
use crate::offload::expert_weights::ExpertWeights;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The file name.
pub(crate) const FILE: &str = "expert_usage.json";

/// All counts are halved when one reaches this, so that old usage fades.
const HALVE_AT: u32 = 1 << 20;

/// How often each expert was requested.
pub struct UsageStats {
    path: PathBuf,
    counts: Counts,
    has_changed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Counts {
    /// For each MoE layer, the count of each expert.
    counts: Vec<Vec<u32>>,
}

impl UsageStats {
    /// The counts of the experts of a weight file.
    pub fn load(weights: &Path, layers: &[ExpertWeights]) -> UsageStats {
        let path = weights.with_file_name(FILE);
        let none = Counts { counts: layers.iter().map(|stacks| vec![0; stacks.experts]).collect() };
        let has_same_shape = |counts: &Counts| {
            counts.counts.len() == none.counts.len()
                && counts.counts.iter().zip(&none.counts).all(|(some, others)| some.len() == others.len())
        };
        let saved = std::fs::read(&path).ok();
        let saved = saved.and_then(|bytes| serde_json::from_slice(&bytes).ok()).filter(has_same_shape);
        UsageStats { path, counts: saved.unwrap_or(none), has_changed: false }
    }

    /// Counts requests of experts of a layer.
    pub(crate) fn record(&mut self, layer: usize, experts: impl Iterator<Item = usize>) {
        for expert in experts {
            let count = &mut self.counts.counts[layer][expert];
            *count = count.saturating_add(1);
        }
        self.has_changed = true;
    }

    /// Requested experts of some layers, most used first.
    pub(crate) fn most_used(&self, layers: impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
        let layers = self.counts.counts.iter().enumerate().filter(|(layer, _)| layers(*layer));
        let mut experts: Vec<(u32, usize, usize)> = layers
            .flat_map(|(layer, counts)| {
                counts.iter().enumerate().map(move |(expert, count)| (*count, layer, expert))
            })
            .filter(|(count, ..)| *count > 0)
            .collect();
        experts.sort_by_key(|(count, layer, expert)| (u32::MAX - count, *layer, *expert));
        experts.into_iter().map(|(_, layer, expert)| (layer, expert)).collect()
    }

    fn write(&mut self) -> std::io::Result<()> {
        if self.counts.counts.iter().flatten().any(|count| *count >= HALVE_AT) {
            self.counts.counts.iter_mut().flatten().for_each(|count| *count /= 2);
        }
        atomic_write::write(&self.path, &serde_json::to_string(&self.counts)?)
    }
}

impl Drop for UsageStats {
    fn drop(&mut self) {
        if self.has_changed {
            // Errors are ignored: the counts are optional.
            let _ = self.write();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Buffer, Span};

    /// Two layers with this many experts.
    fn layers(experts: usize) -> Vec<ExpertWeights> {
        let routes = Span::new(Buffer::Scratch, 0, 0);
        let stacks = ExpertWeights {
            experts,
            experts_per_token: 2,
            shared: 0,
            records: Span::new(Buffer::Weights, 0, 0),
            gate_up: Vec::new(),
            down: Vec::new(),
            routes,
            router: Vec::new(),
        };
        vec![stacks.clone(), stacks]
    }

    #[test]
    fn counts_are_kept_next_to_the_weights() {
        let folder = tempfile::tempdir().unwrap();
        let weights = folder.path().join("weights.safetensors");
        let mut usage = UsageStats::load(&weights, &layers(4));
        assert!(usage.most_used(|_| true).is_empty());
        usage.record(1, [3, 0].into_iter());
        usage.record(0, [2].into_iter());
        usage.record(1, [3].into_iter());
        drop(usage);
        let usage = UsageStats::load(&weights, &layers(4));
        assert_eq!(usage.most_used(|_| true), [(1, 3), (0, 2), (1, 0)]);
        assert_eq!(usage.most_used(|layer| layer == 0), [(0, 2)]);
        drop(usage);
        // Files for other experts, and invalid files.
        assert!(UsageStats::load(&weights, &layers(5)).most_used(|_| true).is_empty());
        for wrong in ["", "{}", "[[1]]", r#"{"counts":[[1,2,3,4],[1,2,3,-4]]}"#] {
            std::fs::write(folder.path().join(FILE), wrong).unwrap();
            assert!(UsageStats::load(&weights, &layers(4)).most_used(|_| true).is_empty(), "{wrong}");
        }
    }

    #[test]
    fn unwritable_counts_are_dropped_and_large_counts_are_halved() {
        let folder = tempfile::tempdir().unwrap();
        let mut usage = UsageStats::load(&folder.path().join("nowhere/weights.safetensors"), &layers(2));
        usage.record(0, [1].into_iter());
        drop(usage);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let weights = folder.path().join("weights.safetensors");
        let mut usage = UsageStats::load(&weights, &layers(2));
        usage.counts.counts = vec![vec![u32::MAX, 8], vec![0, 3]];
        usage.record(0, [0].into_iter());
        drop(usage);
        let usage = UsageStats::load(&weights, &layers(2));
        assert_eq!(usage.counts.counts, [[u32::MAX / 2, 4], [0, 1]]);
    }
}
