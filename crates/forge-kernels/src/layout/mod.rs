//! How a projection is laid over threads, by chip, format and shape, with the reason of each choice.
//!
//! Nobody has measured these kernels on Apple's chips. What comes from measurements that others published of kernels built
//! alike is marked *published*; the rest is *derived* from what hardware is known to do, and marked so. For NVIDIA's GPUs
//! there are measurements: [`nvidia`]. What a user has measured on a device of theirs takes the place of both; [`tried`] says of what.

pub(crate) mod candidates;
pub(crate) mod nvidia;

use forge_ir::Format;
use serde::Serialize;

use crate::context::packet_columns;
use crate::spec::{ExpertsTiles, Knobs, PerHeadLinear, Rows};

/// A family of GPUs.
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
    /// Those of NVIDIA that `--target cuda` is for.
    Nvidia,
}

impl Family {
    /// Its name, for people; of Apple's the one that Apple's tables use.
    pub const fn name(self) -> &'static str {
        match self {
            Family::Apple7 => "Apple7",
            Family::Apple8 => "Apple8",
            Family::Apple9 => "Apple9",
            Family::Apple10 => "Apple10",
            Family::Nvidia => "NVIDIA",
        }
    }
}

/// Formats that are read alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// Numbers of 2 or 4 bytes.
    Plain,
    /// Codes of a byte.
    Bytes,
    /// Codes of half a byte.
    Nibbles,
}

impl Class {
    fn of(format: Format) -> Class {
        match packet_columns(format) {
            32 => Class::Nibbles,
            16 => Class::Bytes,
            _ => Class::Plain,
        }
    }
}

/// Fewest simdgroups of a core. Derived: two for each of its four pipelines, so that one computes while one waits.
const SIMDGROUPS: usize = 8;

/// Weight rows of a core whose packets are loaded at once. Derived: 15 GB/s a core, which no chip exceeds, with some 600 ns
/// of latency are 9 KiB under way, and twice that where loads are under way half of the time. A packet for each lane of
/// a simdgroup is half a KiB.
const ROWS: usize = 40;

/// Simdgroups of a core past which others compute while one waits, so that loading ahead would only take registers.
/// Published: arithmetic saturates at about 24.
const PLENTY: usize = 24;

impl Knobs {
    /// For one row or few.
    const fn of_rows(rows_per_simdgroup: usize, simdgroups: usize, split: usize, packets: usize) -> Knobs {
        let (tile_rows, tile_outputs) = (1, 1);
        Knobs { rows_per_simdgroup, simdgroups, split, packets, tile_rows, tile_outputs, codes: false }
    }

    /// For many rows: a quartet of simdgroups, or as many as share the columns.
    const fn of_tile(tile_rows: usize, tile_outputs: usize, split: usize) -> Knobs {
        Knobs { tile_rows, tile_outputs, ..Knobs::of_rows(1, 4 * split, split, 1) }
    }

    /// Knobs for `outputs` rows of `inputs` columns in `format`, on a chip with so many GPU cores, or a card with so many
    /// multiprocessors. `leaves_squares`: the
    /// epilogue leaves something for each threadgroup, squares or a candidate, so that there should not be too many. `exact`: nothing of
    /// x may be rounded.
    ///
    /// For many rows they are meant for tiles of halves.
    pub fn for_chip(
        family: Family,
        cores: usize,
        rows: Rows,
        format: Format,
        [outputs, inputs]: [usize; 2],
        leaves_squares: bool,
        exact: bool,
    ) -> Knobs {
        if family == Family::Nvidia {
            return crate::layout::nvidia::knobs(
                cores,
                rows,
                format,
                [outputs, inputs],
                leaves_squares,
                exact,
            );
        }
        let shape = Shape { cores, outputs, packets: inputs.div_ceil(packet_columns(format)) };
        match rows {
            Rows::One => shape.one(most_rows(family, Class::of(format)), leaves_squares),
            Rows::Few => shape.few(inputs.div_ceil(4 * packet_columns(format).max(8))),
            Rows::Many => shape.many(inputs),
        }
    }

    /// Rows of a simdgroup, and simdgroups of a threadgroup, of kernels of experts that compute `outputs` rows of `inputs`
    /// columns for a row of x, those of all its experts together. Columns are not shared: a row has several experts, so that
    /// there are many outputs, or many columns that count as one row.
    pub fn of_experts(
        family: Family,
        cores: usize,
        format: Format,
        outputs: usize,
        inputs: usize,
        leaves_squares: bool,
    ) -> (usize, usize) {
        let shape = Shape { cores, outputs, packets: inputs.div_ceil(packet_columns(format)) };
        shape.of_experts(most_rows(family, Class::of(format)), leaves_squares)
    }
}

impl ExpertsTiles {
    /// Pairs of a tile, and its outputs. Derived: 64 outputs as in other tiles; of rows as many as an expert has of a pass of
    /// `rows`, up to the 32 of other tiles: those that a tile lacks are computed all the same, and each further tile of an expert
    /// loads its matrix again.
    pub fn tile_for(experts: usize, chosen: usize, rows: usize) -> [usize; 2] {
        [if rows * chosen / experts > 16 { 32 } else { 16 }, 64]
    }
}

impl PerHeadLinear {
    /// Rows of x that a threadgroup computes at once where there are several. Derived: registers hold 64 sums of a lane, or
    /// those of 4 weight rows.
    pub fn together(format: Format, turned: bool) -> usize {
        if turned { (64 / packet_columns(format)).min(4) } else { 4 }
    }

    /// `each` for heads' matrices of so many rows and columns, on a chip with so many GPU cores. Derived: as much of a row at
    /// once as leaves two threadgroups a core; of a turned matrix at least 64 bytes, so that no line is loaded for a part of it.
    pub fn each_for(cores: usize, format: Format, [heads, rows, columns]: [usize; 3], turned: bool) -> usize {
        let packets = columns.div_ceil(packet_columns(format));
        if turned {
            let mut each = packets.next_power_of_two().min(32);
            while each > 4 && heads * packets.div_ceil(each) < 2 * cores {
                each /= 2;
            }
            return each;
        }
        let side_by_side = 2 * (32 / packets.next_power_of_two().clamp(4, 32));
        let mut each = 4;
        while each > 1 && heads * rows.div_ceil(side_by_side * each) < 2 * cores {
            each /= 2;
        }
        each
    }
}

/// Weight rows that a simdgroup computes at once for one row of x, if there are enough of them.
///
/// What a lane loads of x serves all its rows, so more rows are less loading; each row takes 4 registers for its packet.
fn most_rows(family: Family, class: Class) -> usize {
    match (family, class) {
        // Derived: a lane's columns of x lie 16 or 32 bytes from the next lane's, nearly as good as side by side.
        // Published for halves: 2 rows (llama.cpp), 1 (uzu); 4 of these have the bytes of 8 rows of q8_0.
        (_, Class::Plain) => 4,
        // Published: 4 rows are the choice of MLX and uzu for all chips before M5.
        (Family::Apple7 | Family::Apple8 | Family::Apple9, Class::Bytes) => 4,
        // Asked of experts alone. Measured in q4_0 with 12,288 outputs of 2,048 columns: 6% less time than 8 take.
        (Family::Nvidia, _) => 4,
        // Published: from 4 rows to 8 gave 24 to 35 % on a base M5 (MLX #3753).
        (Family::Apple10, Class::Bytes) => 8,
        // Published for M5, as above. Derived for the others: a packet of nibbles meets 128 bytes of x, a cache line for
        // each lane and load, twice as many as in kernels that do with 4 rows. At 4 rows M1 Max would need 44 G lines
        // a second, and one for each cycle of each core are 41 G.
        (_, Class::Nibbles) => 8,
    }
}

struct Shape {
    cores: usize,
    outputs: usize,
    /// Packets of a row.
    packets: usize,
}

impl Shape {
    fn one(&self, most_rows: usize, leaves: bool) -> Knobs {
        let (mut rows, mut split) = (most_rows, 1);
        let all = |rows: usize, split: usize| self.outputs.div_ceil(rows) * split;
        let busy =
            |rows: usize, split: usize| all(rows, split) >= self.cores * SIMDGROUPS.max(ROWS.div_ceil(rows));
        // Derived: sharing rows costs an addition through threadgroup memory, which is little where each lane still has
        // 2 packets; fewer rows cost more loads of x; sharing down to a packet a lane is the last resort.
        while !busy(rows, split) {
            if split < 8 && self.packets >= 32 * 2 * split * 2 {
                split *= 2;
            } else if rows > 2 {
                rows /= 2;
            } else if split < 8 && self.packets >= 32 * split * 2 {
                split *= 2;
            } else {
                break;
            }
        }
        let simdgroups = if leaves { self.leaving(rows, split) } else { split.max(2) };
        // Derived: with few simdgroups nobody else computes while one waits. Registers hold the packets of 4 rows twice,
        // those of 8 once.
        let ahead = rows <= 4 && all(rows, split) < PLENTY * self.cores && self.packets > 32 * split;
        let packets = if ahead { 2 } else { 1 };
        Knobs::of_rows(rows, simdgroups, split, packets)
    }

    fn of_experts(&self, most_rows: usize, leaves: bool) -> (usize, usize) {
        let mut rows = most_rows;
        while rows > 2 && self.outputs.div_ceil(rows) < self.cores * SIMDGROUPS.max(ROWS.div_ceil(rows)) {
            rows /= 2;
        }
        (rows, if leaves { self.leaving(rows, 1) } else { 2 })
    }

    /// Simdgroups of a threadgroup that leaves something. Without, it is 2, or as many as share rows. Published: 2 are the
    /// choice of llama.cpp and MLX; small threadgroups are placed on cores more evenly.
    ///
    /// Derived: as many as one simdgroup can finish the outputs of, so that little is left to be read by everyone, down to
    /// where each core has 2 threadgroups.
    fn leaving(&self, rows: usize, split: usize) -> usize {
        let groups = |simdgroups: usize| self.outputs.div_ceil(rows * simdgroups / split);
        let mut simdgroups = 32 * split / rows;
        while simdgroups > split.max(2) && (simdgroups > 16 || groups(simdgroups) < 2 * self.cores) {
            simdgroups /= 2;
        }
        simdgroups
    }

    /// Derived: a simdgroup loads 8 rows of x for each 8 rows of W that it computes. With 16 rows of W loads take as long
    /// as products; with 8 they take longer. Columns are shared until each pipeline has 3 simdgroups, as long as each
    /// has two strips. Four simdgroups of a threadgroup that do not share columns read the same x at about the same time.
    fn few(&self, strips: usize) -> Knobs {
        let enough = 12 * self.cores;
        let (mut rows, mut split) = (16, 1);
        while self.outputs.div_ceil(rows) * split < enough {
            if split < 8 && strips >= 4 * split {
                split *= 2;
            } else if rows > 8 {
                rows = 8;
            } else {
                break;
            }
        }
        let simdgroups = split.max(4);
        Knobs::of_rows(rows, simdgroups, split, 1)
    }

    /// 64 outputs by 32 rows. Published: the choice of llama.cpp; and that of uzu for less than 6144 outputs, 64 rows
    /// past that. Derived: a prompt of 128 rows keeps every core busy with two threadgroups, or columns are shared.
    fn many(&self, inputs: usize) -> Knobs {
        let tile_rows = if self.outputs >= 6144 { 64 } else { 32 };
        let tiles = self.outputs.div_ceil(64) * (128 / tile_rows);
        let split = if tiles < 2 * self.cores && tile_rows == 32 && inputs >= 256 { 2 } else { 1 };
        Knobs::of_tile(tile_rows, 64, split)
    }
}
