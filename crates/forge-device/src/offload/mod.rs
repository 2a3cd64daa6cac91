//! Expert streaming: MoE experts on disk, with a cache in memory.
//!
//! The planes of all matrices of one expert form a *record* in the weight file, page-aligned and contiguous
//! ([`ExpertWeights`]). With streaming, memory holds a cache of slots, each as large as a record. Kernels
//! that read records read slots instead, and look up the slot of each expert. Layers whose records have the
//! same size share their slots ([`CacheLayout`]). A device may repack experts in their slots (`repack`).
//!
//! A requested expert that is not cached evicts another (`eviction`). I/O threads read its record (`io_pool`,
//! `direct_io`). Experts are computed as they arrive, while others are read (`cache`). The next layer's
//! experts are predicted and prefetched (`lookahead`). Shared experts are pinned. A new run first loads the
//! most used experts of earlier runs (`usage`).
//!
//! Results are bitwise identical with and without streaming: slots are only addresses, and sums keep the
//! order of experts. A failed read or a changed file ends the pass with an error; the experts being read are
//! invalidated.

pub(crate) mod cache;
pub(crate) mod cache_layout;
pub(crate) mod direct_io;
pub(crate) mod eviction;
pub(crate) mod expert_weights;
pub(crate) mod io_pool;
pub(crate) mod lookahead;
pub(crate) mod repack;
pub(crate) mod usage;

pub use crate::device::offload_stats::CacheStats;
pub use crate::offload::cache::{BoundPlane, ExpertCache};
pub use crate::offload::cache_layout::{CacheLayout, Forecast};
pub use crate::offload::direct_io::{Source, WeightSource};
pub use crate::offload::expert_weights::{ExpertStage, ExpertWeights};
pub use crate::offload::lookahead::RouterLookahead;
pub use crate::offload::repack::{RepackJob, Repacking};
pub use crate::offload::usage::UsageStats;

/// Where expert weights are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpertPlacement {
    /// In memory with all other weights.
    #[default]
    Resident,
    /// In the memory-mapped file; the OS page cache decides what stays in memory.
    Mmap,
    /// On disk, with a cache of this many bytes; as large as free memory allows if `None`.
    Stream(Option<u64>),
}

impl std::str::FromStr for ExpertPlacement {
    type Err = String;

    fn from_str(text: &str) -> Result<ExpertPlacement, String> {
        match text.split_once(':') {
            None if text == "resident" => Ok(ExpertPlacement::Resident),
            None if text == "mmap" => Ok(ExpertPlacement::Mmap),
            None if text == "stream" => Ok(ExpertPlacement::Stream(None)),
            Some(("stream", memory)) => Ok(ExpertPlacement::Stream(Some(parse_bytes(memory)?))),
            _ => Err("expected `resident`, `mmap`, `stream` or `stream:SIZE`, such as stream:20G".to_owned()),
        }
    }
}

/// Parses a size in bytes: `20G`, `1.5GB`, `800MiB`, `4096`.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = match unit.trim_end_matches(['B', 'b']) {
        "" => 1.0,
        "k" | "K" => 1e3,
        "M" | "m" => 1e6,
        "G" | "g" => 1e9,
        "T" | "t" => 1e12,
        "Ki" => 1024.0,
        "Mi" => 1024.0 * 1024.0,
        "Gi" => 1024.0 * 1024.0 * 1024.0,
        _ => return Err(invalid(text)),
    };
    match number.parse::<f64>() {
        Ok(number) if number * unit >= 1.0 => Ok((number * unit) as u64),
        _ => Err(invalid(text)),
    }
}

fn invalid(text: &str) -> String {
    format!("invalid size `{text}`: expected a number and a unit, such as 20G")
}

/// Parses a bandwidth in bytes/s: `6GB/s`.
pub fn parse_bandwidth(text: &str) -> Result<u64, String> {
    parse_bytes(text.strip_suffix("/s").unwrap_or(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, value) in [
            ("20G", Some(20_000_000_000)),
            ("1.5GB", Some(1_500_000_000)),
            ("800MiB", Some(800 << 20)),
            ("4096", Some(4096)),
            ("", None),
            ("0", None),
            ("G", None),
            ("3 apples", None),
            ("-1G", None),
        ] {
            assert_eq!(parse_bytes(text).ok(), value, "{text}");
        }
        assert_eq!(parse_bandwidth("6GB/s"), Ok(6_000_000_000));
    }

    #[test]
    fn expert_placement_is_a_word_and_a_size() {
        assert_eq!("resident".parse(), Ok(ExpertPlacement::Resident));
        assert_eq!("mmap".parse(), Ok(ExpertPlacement::Mmap));
        assert_eq!("stream".parse(), Ok(ExpertPlacement::Stream(None)));
        assert_eq!("stream:2G".parse(), Ok(ExpertPlacement::Stream(Some(2_000_000_000))));
        for wrong in ["", "map", "mmap:2G", "stream:", "stream:x", "resident:2G"] {
            assert!(wrong.parse::<ExpertPlacement>().is_err(), "{wrong}");
        }
    }
}
