//! Which experts texts ask for: counted while they run, and kept in a small file beside the weights, so that the next run begins
//! with those in memory that are likely to be asked for.
//!
//! The file is no part of the model. Whoever deletes it loses the reads of a beginning; a file that cannot be read, or is of other
//! experts, is as none, and where nothing may be written nothing is kept.

use crate::atomic_write;
use crate::offload::ExpertWeights;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The file, beside that of the weights.
pub(crate) const FILE: &str = "experts.json";

/// From here on all counts are halved when they are written: what texts are about changes.
const MANY: u32 = 1 << 20;

/// How often each expert was asked for.
pub struct UsageStats {
    path: PathBuf,
    counts: Counts,
    has_changed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Counts {
    /// Of each layer that has experts, each expert's.
    asked: Vec<Vec<u32>>,
}

impl UsageStats {
    /// Those of the experts of a weight file.
    pub fn beside(weights: &Path, layers: &[ExpertWeights]) -> UsageStats {
        let path = weights.with_file_name(FILE);
        let none = Counts { asked: layers.iter().map(|stacks| vec![0; stacks.experts]).collect() };
        let is_of_these = |counts: &Counts| {
            counts.asked.len() == none.asked.len()
                && counts.asked.iter().zip(&none.asked).all(|(some, others)| some.len() == others.len())
        };
        let kept = std::fs::read(&path).ok();
        let kept = kept.and_then(|bytes| serde_json::from_slice(&bytes).ok()).filter(is_of_these);
        UsageStats { path, counts: kept.unwrap_or(none), has_changed: false }
    }

    /// Experts of a layer are asked for.
    pub(crate) fn ask(&mut self, layer: usize, experts: impl Iterator<Item = usize>) {
        for expert in experts {
            let count = &mut self.counts.asked[layer][expert];
            *count = count.saturating_add(1);
        }
        self.has_changed = true;
    }

    /// Experts of some layers that were asked for, the one first that was most often.
    pub(crate) fn likeliest(&self, layers: impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
        let layers = self.counts.asked.iter().enumerate().filter(|(layer, _)| layers(*layer));
        let mut experts: Vec<(u32, usize, usize)> = layers
            .flat_map(|(layer, asked)| {
                asked.iter().enumerate().map(move |(expert, count)| (*count, layer, expert))
            })
            .filter(|(count, ..)| *count > 0)
            .collect();
        experts.sort_by_key(|(count, layer, expert)| (u32::MAX - count, *layer, *expert));
        experts.into_iter().map(|(_, layer, expert)| (layer, expert)).collect()
    }

    fn write(&mut self) -> std::io::Result<()> {
        if self.counts.asked.iter().flatten().any(|count| *count >= MANY) {
            self.counts.asked.iter_mut().flatten().for_each(|count| *count /= 2);
        }
        atomic_write::write(&self.path, &serde_json::to_string(&self.counts)?)
    }
}

impl Drop for UsageStats {
    fn drop(&mut self) {
        if self.has_changed {
            // Where nothing may be written nothing is kept.
            let _ = self.write();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Buffer, Span};

    /// Two layers of so many experts.
    fn layers(experts: usize) -> Vec<ExpertWeights> {
        let routes = Span::new(Buffer::Scratch, 0, 0);
        let stacks = ExpertWeights {
            experts,
            chosen: 2,
            shared: 0,
            records: Span::new(Buffer::Weights, 0, 0),
            inner: Vec::new(),
            sum: Vec::new(),
            routes,
            router: Vec::new(),
        };
        vec![stacks.clone(), stacks]
    }

    #[test]
    fn what_was_asked_for_is_remembered_beside_the_weights() {
        let folder = tempfile::tempdir().unwrap();
        let weights = folder.path().join("weights.safetensors");
        let mut habits = UsageStats::beside(&weights, &layers(4));
        assert!(habits.likeliest(|_| true).is_empty());
        habits.ask(1, [3, 0].into_iter());
        habits.ask(0, [2].into_iter());
        habits.ask(1, [3].into_iter());
        drop(habits);
        let habits = UsageStats::beside(&weights, &layers(4));
        assert_eq!(habits.likeliest(|_| true), [(1, 3), (0, 2), (1, 0)]);
        assert_eq!(habits.likeliest(|layer| layer == 0), [(0, 2)]);
        drop(habits);
        // Of other experts, and of nobody.
        assert!(UsageStats::beside(&weights, &layers(5)).likeliest(|_| true).is_empty());
        for wrong in ["", "{}", "[[1]]", r#"{"asked":[[1,2,3,4],[1,2,3,-4]]}"#] {
            std::fs::write(folder.path().join(FILE), wrong).unwrap();
            assert!(UsageStats::beside(&weights, &layers(4)).likeliest(|_| true).is_empty(), "{wrong}");
        }
    }

    #[test]
    fn nothing_is_kept_where_nothing_may_be_written_and_counts_do_not_grow_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let mut habits = UsageStats::beside(&folder.path().join("nowhere/weights.safetensors"), &layers(2));
        habits.ask(0, [1].into_iter());
        drop(habits);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let weights = folder.path().join("weights.safetensors");
        let mut habits = UsageStats::beside(&weights, &layers(2));
        habits.counts.asked = vec![vec![u32::MAX, 8], vec![0, 3]];
        habits.ask(0, [0].into_iter());
        drop(habits);
        let habits = UsageStats::beside(&weights, &layers(2));
        assert_eq!(habits.counts.asked, [[u32::MAX / 2, 4], [0, 1]]);
    }
}
