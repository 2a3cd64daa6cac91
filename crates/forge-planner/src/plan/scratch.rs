//! Buffers within a pass, and their places in the arena.

use crate::plan::regime::Schedule;
use crate::plan::step::Operand;
use serde::Serialize;

/// A buffer that is live within one pass.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scratch {
    /// Name of the buffer.
    pub name: String,
    /// Elements (f32) of a row.
    pub width: usize,
    /// What one row belongs to.
    pub per: RowsOf,
    /// Maximum number of rows.
    pub rows: usize,
    /// Byte offset in the arena.
    pub offset: usize,
    /// Size in bytes.
    pub bytes: usize,
    /// Live ranges. Empty: always live.
    pub lifetimes: Vec<LiveRange>,
}

/// What one row of a scratch buffer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RowsOf {
    /// The pass: a single row.
    Pass,
    /// A row of a decode pass.
    DecodeRow,
    /// A row of the pass.
    Row,
    /// A row whose logits are requested.
    Wanted,
    /// A position of an expanded KV tile.
    Position,
    /// A KV split of split-KV attention.
    Split,
}

/// Consecutive steps of one section in one schedule, during which a buffer is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LiveRange {
    /// The schedule.
    pub schedule: Schedule,
    /// Index of the section.
    pub section: usize,
    /// First step.
    pub first: usize,
    /// Last step.
    pub last: usize,
}

/// A byte range of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Span {
    /// The buffer: an operand other than scratch, or `None` for the arena.
    pub outside: Option<Operand>,
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    /// Whether the ranges share a byte.
    pub fn overlaps(&self, other: &Span) -> bool {
        self.outside == other.outside && self.start < other.end && other.start < self.end
    }
}
