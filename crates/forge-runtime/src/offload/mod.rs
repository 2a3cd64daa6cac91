//! Experts streamed from disk: a model with more experts than memory has room for.
//!
//! The experts of a layer are [`Stacks`]: what an expert has of all their matrices (codes and scales of each) is a *record* of the
//! weight file, which is whole pages, and the next expert's follows. Where experts are streamed they are not in memory;
//! some have a *seat* there, as long as a record. Seats lie side by side in one region that is taken at the start, so that the
//! kernels which read records read seats, and only look up which seat an expert has. Layers whose records are
//! of equal size share their seats ([`Room`]). A device may want experts in another order than the file's (`arrangement`).
//!
//! Who needs an expert that has no seat takes that of the one that was not asked for longest (`seats`); a few threads read its
//! record from the file (`readers`, `source`), expert by expert, so that one is computed while others are read (`streamed`). Whom
//! the next layer will probably ask for is guessed and read ahead (`foresight`).
//! Experts that every row has keep their seats. A run begins with those that earlier runs asked for most
//! (`habits`).
//!
//! What comes out is the same to the bit wherever experts are: seats are addresses, and sums keep the order of experts. A
//! read that fails, or a file that is not what it was, ends the pass with an error, and what was being read has no seat.

pub(crate) mod cache;
pub(crate) mod cache_layout;
pub(crate) mod direct_io;
pub(crate) mod eviction;
pub(crate) mod io_pool;
pub(crate) mod lookahead;
pub(crate) mod repack;
pub(crate) mod usage;

pub use crate::device::offload_stats::CacheStats;
pub use crate::offload::cache::{BoundPlane, ExpertCache};
pub use crate::offload::cache_layout::{CacheLayout, Forecast};
pub use crate::offload::direct_io::{Source, WeightSource};
pub use crate::offload::lookahead::RouterLookahead;
pub use crate::offload::repack::{RepackJob, Repacking};
pub use crate::offload::usage::UsageStats;

use crate::device::Span;
use std::ops::Range;

/// The matrices of a layer's experts: what the compiler tells of them.
#[derive(Clone, Debug)]
pub struct ExpertWeights {
    /// How many experts there are.
    pub experts: usize,
    /// How many a row has.
    pub chosen: usize,
    /// Those of them that every row has, the last ones.
    pub shared: usize,
    /// What each expert has of all matrices, expert after expert.
    pub records: Span<u8>,
    /// The planes of the matrices that are multiplied first: from where the first expert's begins to where the last one's ends.
    pub inner: Vec<Span<u8>>,
    /// Those of the matrices whose products are summed.
    pub sum: Vec<Span<u8>>,
    /// `[rows, 2 * chosen]` Where a pass keeps the experts of each row, before the bits of their weights.
    pub routes: Span<u32>,
    /// The planes of the router, which says who is chosen.
    pub router: Vec<Span<u8>>,
}

impl ExpertWeights {
    /// Every plane, in the order in which they lie in a record.
    pub fn planes(&self) -> impl Iterator<Item = Span<u8>> + '_ {
        self.inner.iter().chain(&self.sum).copied()
    }

    /// Bytes of a record.
    pub fn record(&self) -> usize {
        self.records.bytes / self.experts
    }

    /// Where in a record a plane lies.
    pub fn place(&self, plane: Span<u8>) -> Range<usize> {
        let start = plane.offset - self.records.offset;
        start..start + plane.bytes - (self.records.bytes - self.record())
    }

    /// Where in the weight file the records of all layers lie, in order.
    pub fn places(layers: &[ExpertWeights]) -> Vec<Range<usize>> {
        let records = layers.iter().map(|stacks| stacks.records);
        let mut places: Vec<_> = records.map(|all| all.offset..all.offset + all.bytes).collect();
        places.sort_by_key(|place| place.start);
        places
    }

    /// Experts that are chosen for a row.
    pub fn picked(&self) -> usize {
        self.chosen - self.shared
    }
}

/// Which matrices of a layer's experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertStage {
    /// What is multiplied first.
    Inner,
    /// Those whose products are summed.
    Sum,
}

/// Where experts are while a program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpertPlacement {
    /// With all other weights.
    #[default]
    Resident,
    /// In the mapped file: the system reads what is touched, and keeps as much of it as it has room for.
    Mapped,
    /// On disk, but for those that have a seat in so many bytes of memory; in what is free if there is no number.
    Streamed(Option<u64>),
}

impl std::str::FromStr for ExpertPlacement {
    type Err = String;

    fn from_str(text: &str) -> Result<ExpertPlacement, String> {
        match text.split_once(':') {
            None if text == "resident" => Ok(ExpertPlacement::Resident),
            None if text == "mmap" => Ok(ExpertPlacement::Mapped),
            None if text == "stream" => Ok(ExpertPlacement::Streamed(None)),
            Some(("stream", memory)) => Ok(ExpertPlacement::Streamed(Some(bytes(memory)?))),
            _ => Err("expected `resident`, `mmap`, `stream` or `stream:SIZE`, such as stream:20G".to_owned()),
        }
    }
}

/// Bytes as people write them: `20G`, `1.5GB`, `800MiB`, `4096`.
pub fn bytes(text: &str) -> Result<u64, String> {
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
        _ => return Err(format!("`{text}` is no size: a number and a unit are wanted, such as 20G")),
    };
    match number.parse::<f64>() {
        Ok(number) if number * unit >= 1.0 => Ok((number * unit) as u64),
        _ => Err(format!("`{text}` is no size: a number and a unit are wanted, such as 20G")),
    }
}

/// Bytes a second as people write them: `6GB/s`.
pub fn speed(text: &str) -> Result<u64, String> {
    bytes(text.strip_suffix("/s").unwrap_or(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
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
            assert_eq!(bytes(text).ok(), value, "{text}");
        }
        assert_eq!(speed("6GB/s"), Ok(6_000_000_000));
    }

    #[test]
    fn where_experts_are_is_said_in_a_word_and_a_size() {
        assert_eq!("resident".parse(), Ok(ExpertPlacement::Resident));
        assert_eq!("mmap".parse(), Ok(ExpertPlacement::Mapped));
        assert_eq!("stream".parse(), Ok(ExpertPlacement::Streamed(None)));
        assert_eq!("stream:2G".parse(), Ok(ExpertPlacement::Streamed(Some(2_000_000_000))));
        for wrong in ["", "map", "mmap:2G", "stream:", "stream:x", "resident:2G"] {
            assert!(wrong.parse::<ExpertPlacement>().is_err(), "{wrong}");
        }
    }
}
