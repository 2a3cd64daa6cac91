//! Batch-size classes. They select one of a plan's two schedules, and the kernels.

use serde::Serialize;

/// Maximum rows of a small batch, and maximum rows with logits in a pass.
pub const SMALL_BATCH_MAX: usize = 16;

/// Minimum KV positions of a split in split-KV attention. A threadgroup reads about this many positions in
/// the time that it takes to launch the combine step.
pub const SPLIT_POSITIONS: usize = 256;

/// Maximum total KV splits in a small batch: rows times splits per row.
pub const MAX_KV_SPLITS: usize = 128;

/// Batch-size class of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Regime {
    /// One row (decode).
    One,
    /// Small batch: 2 to [`SMALL_BATCH_MAX`] rows.
    Few,
    /// More than [`SMALL_BATCH_MAX`] rows (prefill).
    Many,
}

impl Regime {
    /// All regimes.
    pub const ALL: [Regime; 3] = [Regime::One, Regime::Few, Regime::Many];

    /// The regime of a number of rows.
    pub fn of(rows: usize) -> Regime {
        match rows {
            0 | 1 => Regime::One,
            2..=SMALL_BATCH_MAX => Regime::Few,
            _ => Regime::Many,
        }
    }

    /// Suffix of a kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Regime::One => "one",
            Regime::Few => "few",
            Regime::Many => "many",
        }
    }
}

/// The two schedules of a plan. Their steps differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// One row.
    Decode,
    /// Two or more rows.
    Batch,
}

impl Schedule {
    /// Both schedules.
    pub const ALL: [Schedule; 2] = [Schedule::Decode, Schedule::Batch];

    /// Name in printed plans.
    pub fn name(self) -> &'static str {
        match self {
            Schedule::Decode => "decode",
            Schedule::Batch => "batch",
        }
    }
}

impl Regime {
    /// The schedule that runs passes of this regime.
    pub fn schedule(self) -> Schedule {
        match self {
            Regime::One => Schedule::Decode,
            Regime::Few | Regime::Many => Schedule::Batch,
        }
    }
}
