//! The expert matrices of a layer and their records in the weight file.

use crate::device::Span;
use std::ops::Range;

/// The expert matrices of one layer.
#[derive(Clone, Debug)]
pub struct ExpertWeights {
    /// Number of experts.
    pub experts: usize,
    /// Experts per token, shared ones included.
    pub experts_per_token: usize,
    /// Number of shared experts; they are the last ones.
    pub shared: usize,
    /// The records of all experts.
    pub records: Span<u8>,
    /// The planes of gate and up, each from the first expert's plane to the end of the last expert's.
    pub gate_up: Vec<Span<u8>>,
    /// The planes of down.
    pub down: Vec<Span<u8>>,
    /// `[rows, 2 * chosen]` The experts of each row, then their routing weights as bits.
    pub routes: Span<u32>,
    /// The planes of the router.
    pub router: Vec<Span<u8>>,
}

impl ExpertWeights {
    /// All planes, in the order of a record.
    pub fn planes(&self) -> impl Iterator<Item = Span<u8>> + '_ {
        self.gate_up.iter().chain(&self.down).copied()
    }

    /// Size of a record in bytes.
    pub fn record_bytes(&self) -> usize {
        self.records.bytes / self.experts
    }

    /// The byte range of a plane within a record.
    pub fn byte_range(&self, plane: Span<u8>) -> Range<usize> {
        let start = plane.offset - self.records.offset;
        start..start + plane.bytes - (self.records.bytes - self.record_bytes())
    }

    /// The byte ranges of the records of all layers in the weight file, ascending.
    pub fn record_ranges(layers: &[ExpertWeights]) -> Vec<Range<usize>> {
        let records = layers.iter().map(|stacks| stacks.records);
        let mut places: Vec<_> = records.map(|all| all.offset..all.offset + all.bytes).collect();
        places.sort_by_key(|place| place.start);
        places
    }

    /// Routed experts per token.
    pub fn routed_per_token(&self) -> usize {
        self.experts_per_token - self.shared
    }
}

/// The two stages of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertStage {
    /// Gate and up.
    GateUp,
    /// Down, whose outputs are summed.
    Down,
}
