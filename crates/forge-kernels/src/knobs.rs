//! How a projection is laid over threads when nobody has measured, by chip and shape, each choice with its reason.

use forge_ir::Format;
use serde::Serialize;

use crate::context::packet_columns;
use crate::spec::{Knobs, Rows};

/// A family of Apple's GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// M1.
    Apple7,
    /// M2.
    Apple8,
    /// M3 and M4.
    Apple9,
    /// M5.
    Apple10,
}

impl Family {
    /// The name that Apple's tables use.
    pub const fn name(self) -> &'static str {
        match self {
            Family::Apple7 => "Apple7",
            Family::Apple8 => "Apple8",
            Family::Apple9 => "Apple9",
            Family::Apple10 => "Apple10",
        }
    }
}

/// Simdgroups of a core that keep memory busy: with 4 rows each has 2 KiB under way.
const BUSY: usize = 16;

impl Knobs {
    /// Knobs for `outputs` rows of `inputs` columns in `format`, on a chip with so many GPU cores. `leaves_squares`: each
    /// threadgroup leaves something that all threadgroups of another kernel read.
    pub fn for_chip(
        family: Family,
        cores: usize,
        rows: Rows,
        format: Format,
        outputs: usize,
        inputs: usize,
        leaves_squares: bool,
    ) -> Knobs {
        match rows {
            Rows::One => one(family, cores, format, outputs, inputs, leaves_squares),
            Rows::Few | Rows::Many => Knobs::default_for(rows, format, outputs, inputs),
        }
    }

    /// Knobs for a chip that nobody has named.
    pub fn default_for(rows: Rows, format: Format, outputs: usize, inputs: usize) -> Knobs {
        let tiles = Knobs {
            rows_per_simdgroup: 1,
            simdgroups: 2,
            split: 1,
            packets: 1,
            tile_rows: 1,
            tile_outputs: 1,
        };
        match rows {
            Rows::One => one(Family::Apple9, 20, format, outputs, inputs, false),
            Rows::Few => Knobs { rows_per_simdgroup: 8, simdgroups: 4, split: 2, ..tiles },
            Rows::Many => Knobs { simdgroups: 4, tile_rows: 32, tile_outputs: 64, ..tiles },
        }
    }
}

fn one(family: Family, cores: usize, format: Format, outputs: usize, inputs: usize, leaves: bool) -> Knobs {
    let packets = inputs.div_ceil(packet_columns(format));
    let most = if family == Family::Apple10 && format.is_quantised() { 8 } else { 4 };
    let (mut rows_per_simdgroup, mut split) = (most, 1);
    while outputs.div_ceil(rows_per_simdgroup) * split < BUSY * cores {
        // A lane that has several packets shares its rows at little cost; with fewer rows x is loaded more often.
        if packets >= 32 * split * 4 && split < 8 {
            split *= 2;
        } else if rows_per_simdgroup > 2 {
            rows_per_simdgroup /= 2;
        } else if packets >= 32 * split * 2 && split < 8 {
            split *= 2;
        } else {
            break;
        }
    }
    let groups = |simdgroups: usize| outputs.div_ceil(rows_per_simdgroup * simdgroups / split);
    let mut simdgroups = split.max(2);
    if leaves {
        simdgroups = 8;
        while groups(simdgroups) > 512 && simdgroups < 32 {
            simdgroups *= 2;
        }
        while groups(simdgroups) < 2 * cores && simdgroups > split.max(2) {
            simdgroups /= 2;
        }
    }
    let all = outputs.div_ceil(rows_per_simdgroup) * split;
    let packets = if all < 24 * cores && packets >= 32 * split * 2 { 2 } else { 1 };
    Knobs { rows_per_simdgroup, simdgroups, split, packets, tile_rows: 1, tile_outputs: 1 }
}
