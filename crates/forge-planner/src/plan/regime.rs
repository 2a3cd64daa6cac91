//! Batch-size classes. They select one of a plan's two schedules, and the kernels.

use serde::Serialize;

/// Maximum rows of a decode pass, and maximum rows with logits in a pass.
pub const DECODE_ROWS: usize = 64;

/// Maximum rows of a decode pass whose KV splits do not depend on the number of rows.
pub const INDEPENDENT_ROWS: usize = 16;

/// Maximum rows of a small batch, and maximum rows with logits in a pass of the batch schedule.
pub const SMALL_BATCH_MAX: usize = 16;

/// Minimum KV positions of a split in split-KV attention. A threadgroup reads about this many positions in
/// the time that it takes to launch the combine step.
pub const SPLIT_POSITIONS: usize = 256;

/// Maximum total KV splits of a pass: rows times splits per row.
pub const MAX_KV_SPLITS: usize = 512;

/// Batch-size class of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Regime {
    /// One row of the decode schedule.
    One,
    /// Two rows of the decode schedule.
    Two,
    /// 3 or 4 rows of the decode schedule.
    Four,
    /// 5 to 8 rows of the decode schedule.
    Eight,
    /// 9 to [`DECODE_ROWS`] rows of the decode schedule.
    Sixteen,
    /// Small batch: up to [`SMALL_BATCH_MAX`] rows of the batch schedule.
    Few,
    /// More than [`SMALL_BATCH_MAX`] rows (prefill).
    Many,
}

impl Regime {
    /// All regimes.
    pub const ALL: [Regime; 7] =
        [Regime::One, Regime::Two, Regime::Four, Regime::Eight, Regime::Sixteen, Regime::Few, Regime::Many];

    /// Maximum rows; `None` without a limit.
    pub const fn max_rows(self) -> Option<usize> {
        match self {
            Regime::One => Some(1),
            Regime::Two => Some(2),
            Regime::Four => Some(4),
            Regime::Eight => Some(8),
            Regime::Sixteen => Some(DECODE_ROWS),
            Regime::Few => Some(SMALL_BATCH_MAX),
            Regime::Many => None,
        }
    }

    /// The regime of a number of rows of one sequence.
    pub fn of(rows: usize) -> Regime {
        match rows {
            0 | 1 => Regime::One,
            2..=SMALL_BATCH_MAX => Regime::Few,
            _ => Regime::Many,
        }
    }

    /// The regime of a number of rows, each of another sequence.
    pub fn decoded(rows: usize) -> Regime {
        let fits = |regime: &Regime| regime.max_rows().is_none_or(|most| rows <= most);
        let decoded = Regime::ALL.into_iter().filter(|regime| regime.schedule() == Schedule::Decode);
        decoded.into_iter().find(fits).unwrap_or(Regime::of(rows))
    }

    /// Suffix of a kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Regime::One => "one",
            Regime::Two => "two",
            Regime::Four => "four",
            Regime::Eight => "eight",
            Regime::Sixteen => "sixteen",
            Regime::Few => "few",
            Regime::Many => "many",
        }
    }
}

/// The two schedules of a plan. Their steps differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// Few rows: one of each slot, or up to [`INDEPENDENT_ROWS`] of any slots.
    Decode,
    /// Any number of rows.
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
            Regime::Few | Regime::Many => Schedule::Batch,
            _ => Schedule::Decode,
        }
    }
}
