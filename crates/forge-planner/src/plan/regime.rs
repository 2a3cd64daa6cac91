//! How many rows a pass has, and what follows from it: which of a plan's two programs runs, and which of its kernels.

use serde::Serialize;

/// Most rows of the regime of few rows, and most rows that the head is ever applied to at once.
pub const FEW: usize = 16;

/// Positions that are worth a split of attention over few rows: what a threadgroup reads while the step that joins the
/// splits would be launched.
pub const SPLIT_POSITIONS: usize = 256;

/// Most shares of caches in a pass of few rows: rows times the splits of each.
pub const MAX_SHARES: usize = 128;

/// How many rows a pass has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Regime {
    /// One.
    One,
    /// 2 to [`FEW`].
    Few,
    /// More.
    Many,
}

impl Regime {
    /// All three.
    pub const ALL: [Regime; 3] = [Regime::One, Regime::Few, Regime::Many];

    /// The regime of so many rows.
    pub fn of(rows: usize) -> Regime {
        match rows {
            0 | 1 => Regime::One,
            2..=FEW => Regime::Few,
            _ => Regime::Many,
        }
    }

    /// In a kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Regime::One => "one",
            Regime::Few => "few",
            Regime::Many => "many",
        }
    }
}

/// The two programs that a plan holds: steps differ by how many rows a pass has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// One row.
    Decode,
    /// More.
    Batch,
}

impl Schedule {
    /// Both.
    pub const ALL: [Schedule; 2] = [Schedule::Decode, Schedule::Batch];

    /// The name used in printed plans.
    pub fn name(self) -> &'static str {
        match self {
            Schedule::Decode => "decode",
            Schedule::Batch => "batch",
        }
    }
}

impl Regime {
    /// The program of a pass in this regime.
    pub fn schedule(self) -> Schedule {
        match self {
            Regime::One => Schedule::Decode,
            Regime::Few | Regime::Many => Schedule::Batch,
        }
    }
}
