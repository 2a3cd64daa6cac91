//! Kernel layouts of linear layers by chip, format and shape, with the reason for each choice.
//!
//! These kernels have not been measured on Apple chips. Choices based on others' measurements of similar
//! kernels are marked *published*; choices derived from hardware properties are marked *derived*. For NVIDIA
//! GPUs there are measurements, see [`nvidia`]. Measurements on a user's device override both; [`candidates`]
//! lists the candidates.

pub(crate) mod candidates;
mod class;
pub(crate) mod nvidia;

use crate::context::packet_columns;
use crate::layout::class::Class;
use crate::spec::{ExpertsTileLayout, Knobs, PerHeadLayout, Rows};
use forge_ops::Format;
use serde::Serialize;

/// GPU family.
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
    /// NVIDIA GPUs supported by `--target cuda`.
    Nvidia,
}

impl Family {
    /// Name of the family; for Apple the name in Apple's feature tables.
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

/// Minimum simdgroups per core. Derived: two for each of its four pipelines, so that one computes while the
/// other waits.
const SIMDGROUPS: usize = 8;

/// Weight rows per core whose packets are loaded at once. Derived: 15 GB/s per core (no chip exceeds it) at
/// about 600 ns latency is 9 KiB in flight, doubled because loads are in flight half of the time. A packet
/// per lane of a simdgroup is 0.5 KiB.
const ROWS: usize = 40;

/// Simdgroups per core above which other simdgroups hide latency, so that loading ahead only costs registers.
/// Published: arithmetic saturates at about 24.
const PLENTY: usize = 24;

impl Knobs {
    /// Knobs for one row or a small batch.
    const fn of_rows(rows_per_simdgroup: usize, simdgroups: usize, split: usize, packets: usize) -> Knobs {
        let (tile_rows, tile_outputs) = (1, 1);
        Knobs { rows_per_simdgroup, simdgroups, split, packets, tile_rows, tile_outputs, mma: false }
    }

    /// Knobs for many rows: four simdgroups, or four for each part of the columns.
    const fn of_tile(tile_rows: usize, tile_outputs: usize, split: usize) -> Knobs {
        Knobs { tile_rows, tile_outputs, ..Knobs::of_rows(1, 4 * split, split, 1) }
    }

    /// Knobs for a matrix of `outputs` rows and `inputs` columns in `format`, on a GPU with this many cores
    /// or multiprocessors. `leaves_squares`: the epilogue writes a partial result per threadgroup (squares or
    /// an argmax candidate), so there should not be too many. `exact`: activations must not be quantized.
    ///
    /// For many rows the knobs assume f16 tiles.
    pub fn for_chip(
        family: Family,
        cores: usize,
        rows: Rows,
        format: Format,
        [outputs, inputs]: [usize; 2],
        leaves_squares: bool,
        exact: bool,
    ) -> Knobs {
        if rows.of_decode_batch().is_some() {
            let shape = [outputs, inputs];
            let one = Knobs::for_chip(family, cores, Rows::One, format, shape, leaves_squares, exact);
            return one.for_decode_batch(rows, format);
        }
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
            Rows::Few => shape.few(inputs.div_ceil(4 * packet_columns(format).max(8))),
            Rows::Many => shape.many(inputs),
            _ => shape.one(most_rows(family, Class::of(format)), leaves_squares),
        }
    }

    /// Rows per simdgroup and simdgroups per threadgroup of expert kernels. `outputs` and `inputs` are for
    /// one row of x, over all its experts. Columns are not split: a row has several experts, and therefore
    /// many outputs, or many columns in one sum.
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

impl ExpertsTileLayout {
    /// Rows and outputs of a grouped-GEMM tile. Derived: 64 outputs as in other tiles. Rows are what an
    /// expert has in a pass of `rows`, up to the 32 of other tiles: missing rows are computed too, and each
    /// further tile of an expert reloads its matrix.
    pub fn tile_for(experts: usize, chosen: usize, rows: usize) -> [usize; 2] {
        [if rows * chosen / experts > 16 { 32 } else { 16 }, 64]
    }
}

impl PerHeadLayout {
    /// Rows of x that a threadgroup computes at once. Derived: registers hold 64 sums per lane, or those of 4
    /// weight rows.
    pub fn together(format: Format, transposed: bool) -> usize {
        if transposed { (64 / packet_columns(format)).min(4) } else { 4 }
    }

    /// `each` for per-head matrices of this shape on a GPU with this many cores. Derived: as much of a row at
    /// once as leaves two threadgroups per core. A transposed matrix reads at least 64 bytes per row, so that
    /// no cache line is loaded in part.
    pub fn each_for(
        cores: usize,
        format: Format,
        [heads, rows, columns]: [usize; 3],
        transposed: bool,
    ) -> usize {
        let packets = columns.div_ceil(packet_columns(format));
        if transposed {
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

/// Weight rows per simdgroup for one row of x, if there are enough rows. A lane reuses its values of x for
/// all of them, so more rows mean fewer loads; each row uses 4 registers for its packet.
fn most_rows(family: Family, class: Class) -> usize {
    match (family, class) {
        // Derived: adjacent lanes read x at a distance of 16 or 32 bytes, nearly as good as contiguous.
        // Published for f16: 2 rows (llama.cpp), 1 (uzu); 4 of them have the bytes of 8 rows of q8_0.
        (_, Class::Plain) => 4,
        // Published: MLX and uzu use 4 rows for all chips before M5.
        (Family::Apple7 | Family::Apple8 | Family::Apple9, Class::Bytes) => 4,
        // Used for experts only. Measured for q4_0 with 12,288 outputs of 2,048 columns: 6% less time than
        // with 8.
        (Family::Nvidia, _) => 4,
        // Published: 4 to 8 rows gained 24 to 35% on a base M5 (MLX #3753).
        (Family::Apple10, Class::Bytes) => 8,
        // Published for M5, as above. Derived for the others: a 4-bit packet is multiplied by 128 bytes of x,
        // one cache line per lane and load, twice as many as in kernels that use 4 rows. With 4 rows M1 Max
        // would need 44 G lines/s; one line per cycle and core is 41 G.
        (_, Class::Nibbles) => 8,
    }
}

struct Shape {
    cores: usize,
    outputs: usize,
    /// Packets per row.
    packets: usize,
}

impl Shape {
    fn one(&self, most_rows: usize, writes_partials: bool) -> Knobs {
        let (mut rows, mut split) = (most_rows, 1);
        let all = |rows: usize, split: usize| self.outputs.div_ceil(rows) * split;
        let busy =
            |rows: usize, split: usize| all(rows, split) >= self.cores * SIMDGROUPS.max(ROWS.div_ceil(rows));
        // Derived: splitting columns costs an addition through threadgroup memory, which is cheap while each
        // lane has 2 packets. Fewer rows cost more loads of x. Splitting down to one packet per lane is the
        // last resort.
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
        let simdgroups = if writes_partials { self.partials_simdgroups(rows, split) } else { split.max(2) };
        // Derived: with few simdgroups no other simdgroup hides latency. Registers hold the packets of 4 rows
        // twice, those of 8 rows once.
        let ahead = rows <= 4 && all(rows, split) < PLENTY * self.cores && self.packets > 32 * split;
        let packets = if ahead { 2 } else { 1 };
        Knobs::of_rows(rows, simdgroups, split, packets)
    }

    fn of_experts(&self, most_rows: usize, writes_partials: bool) -> (usize, usize) {
        let mut rows = most_rows;
        while rows > 2 && self.outputs.div_ceil(rows) < self.cores * SIMDGROUPS.max(ROWS.div_ceil(rows)) {
            rows /= 2;
        }
        (rows, if writes_partials { self.partials_simdgroups(rows, 1) } else { 2 })
    }

    /// Simdgroups per threadgroup for kernels that write partial results; otherwise it is 2, or the split.
    /// Published: llama.cpp and MLX use 2; small threadgroups are distributed more evenly over cores.
    ///
    /// Derived: as many as one simdgroup can write the outputs of, to minimize partial results, with at least
    /// 2 threadgroups per core.
    fn partials_simdgroups(&self, rows: usize, split: usize) -> usize {
        let groups = |simdgroups: usize| self.outputs.div_ceil(rows * simdgroups / split);
        let mut simdgroups = 32 * split / rows;
        while simdgroups > split.max(2) && (simdgroups > 16 || groups(simdgroups) < 2 * self.cores) {
            simdgroups /= 2;
        }
        simdgroups
    }

    /// Derived: a simdgroup loads 8 rows of x for each 8 rows of W. With 16 rows of W loads take as long as
    /// products; with 8 they take longer. Columns are split until each pipeline has 3 simdgroups, as long as
    /// each has two steps. Four simdgroups of a threadgroup that do not split columns read the same x at
    /// about the same time.
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

    /// 64 outputs by 32 rows. Published: llama.cpp uses this; uzu uses it below 6144 outputs, and 64 rows
    /// above. Derived: a prompt of 128 rows gives every core two threadgroups; otherwise columns are split.
    fn many(&self, inputs: usize) -> Knobs {
        let tile_rows = if self.outputs >= 6144 { 64 } else { 32 };
        let tiles = self.outputs.div_ceil(64) * (128 / tile_rows);
        let split = if tiles < 2 * self.cores && tile_rows == 32 && inputs >= 256 { 2 } else { 1 };
        Knobs::of_tile(tile_rows, 64, split)
    }
}
