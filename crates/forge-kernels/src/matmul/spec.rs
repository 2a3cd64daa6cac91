//! Layouts of linear kernels.

use crate::context::packet_columns;
use crate::spec::LinearKernel;
use forge_ops::{Bits, Epilogue, Format, Linear};
use serde::{Deserialize, Serialize};

/// Batch-size class of a linear kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// One row (GEMV): every weight is used once, straight from memory.
    One,
    /// 2 rows of the decode schedule (batched GEMV): a weight is loaded once for both. The sums of a row are
    /// added in the same order as in [`Rows::One`]: see [`Knobs::for_decode_batch`].
    Two,
    /// The same with four rows of x per threadgroup.
    Four,
    /// The same with eight rows of x per threadgroup. For MMA.
    Eight,
    /// The same with 16 rows of x per threadgroup. For MMA.
    Sixteen,
    /// Small batch, 2 to 16 rows: a weight is dequantized once for all rows.
    Few,
    /// More rows (GEMM): tiles in threadgroup memory, multiplied with MMA.
    Many,
}

/// Operand type of a tile's products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operand {
    /// f32: exact for any format and any x.
    F32,
    /// f32 for range only: products may be rounded as in f16. For x that may exceed the range of f16.
    Ranged,
    /// f16: half the threadgroup memory. For x within the range of f16. (Weights in bf16 stay as they are.)
    F16,
    /// f32 for x, and f16 for weights, or bf16 as it is. For x that may exceed the range of f16.
    F16Weights,
}

/// Knobs of linear kernels. Which ones matter depends on [`Rows`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Knobs {
    /// Weight rows that a simdgroup computes at once (one row, small batch).
    pub rows_per_simdgroup: usize,
    /// Simdgroups per threadgroup (one row, small batch).
    pub simdgroups: usize,
    /// Column split: simdgroups, or groups of four (many rows), that share outputs.
    pub split: usize,
    /// Packets of 16 bytes that a lane loads of each row before it computes (one row): 1 or 2. With MMA: steps of 64
    /// columns, or of 128 for quantized weights.
    pub packets: usize,
    /// Rows of x per threadgroup (many rows).
    pub tile_rows: usize,
    /// Outputs of a tile (many rows).
    pub tile_outputs: usize,
    /// Whether products use MMA (one row): of TF32 for weights in f16 or bf16, and of integers for quantized
    /// weights, for which x is quantized to 16 bits in blocks of 32 columns. Not used if exact results are requested.
    #[serde(default, alias = "codes")]
    pub mma: bool,
}

impl Rows {
    /// Whether these are rows of the decode schedule.
    pub const fn is_decode(self) -> bool {
        !matches!(self, Rows::Few | Rows::Many)
    }

    /// Rows of x per threadgroup of a batched GEMV.
    pub const fn of_decode_batch(self) -> Option<usize> {
        match self {
            Rows::Two => Some(2),
            Rows::Four => Some(4),
            Rows::Eight => Some(8),
            Rows::Sixteen => Some(16),
            Rows::One | Rows::Few | Rows::Many => None,
        }
    }

    /// The batched GEMV for up to `rows` rows.
    pub const fn for_decode_batch(rows: usize, mma: bool) -> Rows {
        match (rows, mma) {
            (..=2, false) => Rows::Two,
            (..=4, _) | (_, false) => Rows::Four,
            (..=8, true) => Rows::Eight,
            (_, true) => Rows::Sixteen,
        }
    }

    /// Name in kernel names and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Rows::One => "one",
            Rows::Two => "two",
            Rows::Four => "four",
            Rows::Eight => "eight",
            Rows::Sixteen => "sixteen",
            Rows::Few => "few",
            Rows::Many => "many",
        }
    }
}

/// Columns per step with quantized activations: four blocks.
pub const STRETCH: usize = 4 * forge_ops::BLOCK;

/// Columns per step with MMA of floats: two packets of each of the four lanes of a row.
const FLOAT_STEP: usize = 64;

impl Knobs {
    /// Whether one row can be multiplied by weights in `format` with MMA.
    pub(crate) fn can_use_mma(format: Format) -> bool {
        match format {
            Format::F16 | Format::Bf16 | Format::Q4_0 | Format::Q8_0 | Format::Q4K => true,
            Format::Affine(affine) => matches!(affine.bits, Bits::Four | Bits::Eight),
            _ => false,
        }
    }

    /// Whether x is quantized for weights in `format` (one row).
    pub fn quantizes_x(&self, format: Format) -> bool {
        self.mma && format.is_quantized()
    }

    /// Columns per step with MMA (one row).
    pub(crate) fn mma_columns(format: Format) -> usize {
        if format.is_quantized() { STRETCH } else { FLOAT_STEP }
    }

    /// Suffix of a kernel's name, with the knobs that matter for this batch-size class.
    pub fn name(&self, rows: Rows) -> String {
        let Knobs { rows_per_simdgroup, simdgroups, split, packets, tile_rows, tile_outputs, mma } = self;
        match rows {
            Rows::Few => format!("r{rows_per_simdgroup}_g{simdgroups}_s{split}"),
            Rows::Many => format!("t{tile_rows}x{tile_outputs}_s{split}"),
            _ => {
                let kind = if *mma { 'm' } else { 'r' };
                format!("{kind}{rows_per_simdgroup}_g{simdgroups}_s{split}_p{packets}")
            }
        }
    }

    /// The knobs of a decode batch, for the knobs of one row. Outputs and columns are divided in the same way
    /// among threadgroups and parts of the columns, because results must not differ.
    ///
    /// Measured on H200 with 8B models. In f16, fewer simdgroups with 8 rows of W each, instead of 2 or 4, take up
    /// to 26% less time, since x is loaded less often. For two rows of x, a matrix whose columns are split needs its
    /// simdgroups: 4,096 outputs of 14,336 columns take 33 µs, and 49 with half of them. With quantized activations, 16 rows instead of 32 take up
    /// to 5% less. Loading ahead takes 6% less for up to four rows of x in q4_0, 12% more in q8_0, and 15% more for
    /// eight rows.
    pub fn for_decode_batch(self, rows: Rows, format: Format) -> Knobs {
        if self.mma {
            let loads_ahead = rows == Rows::Four && packet_columns(format) == 32;
            let packets = if loads_ahead { self.packets } else { 1 };
            return Knobs { packets, ..self };
        }
        if rows == Rows::Two && self.split > 1 {
            return self;
        }
        let mut knobs = self;
        while 2 * knobs.rows_per_simdgroup <= 8 && knobs.simdgroups.is_multiple_of(2 * knobs.split) {
            knobs.rows_per_simdgroup *= 2;
            knobs.simdgroups /= 2;
        }
        knobs
    }

    /// Outputs per threadgroup of a one-row kernel.
    pub fn outputs_of_group(&self) -> usize {
        self.rows_per_simdgroup * self.simdgroups / self.split
    }
}

/// Layout of a linear kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LinearLayout {
    /// Batch-size class.
    pub rows: Rows,
    /// Operand type of a tile's products (small batch, many rows).
    pub operand: Operand,
    /// Kernel layout.
    pub knobs: Knobs,
    /// Whether the kernel also writes quantized rows of y, or of the gained y, for the next linear layer (batched
    /// GEMV).
    pub quantizes: bool,
}

impl LinearKernel {
    /// Whether the kernel multiplies tensors in Metal 4, which are fast for factors of 16 bits. Four simdgroups
    /// multiply a tile together, so none split its columns.
    pub(crate) fn has_tensors(&self) -> bool {
        let is_short = matches!(self.layout.operand, Operand::F16 | Operand::F16Weights);
        self.layout.rows == Rows::Many && self.layout.knobs.split == 1 && is_short
    }

    /// Threadgroup memory of a decode batch in bytes: sums, and squares of x.
    pub(crate) fn decode_batch_bytes(&self) -> usize {
        let rows = self.layout.rows.of_decode_batch().unwrap_or(0);
        let Knobs { rows_per_simdgroup, simdgroups, split, .. } = self.layout.knobs;
        4 * rows * (simdgroups * rows_per_simdgroup + split)
    }

    /// The kernel that also writes quantized rows, if it is for a decode batch: a simdgroup has a block of 32
    /// results.
    pub fn with_quantized_output(self) -> LinearKernel {
        if self.layout.rows.of_decode_batch().is_none() {
            return self;
        }
        let mut knobs = self.layout.knobs;
        if matches!(self.op.epilogue, Epilogue::Gate(_)) {
            knobs.rows_per_simdgroup = 32;
            knobs.simdgroups = 2 * knobs.split;
        }
        self.with_layout(|layout| LinearLayout { knobs, quantizes: true, ..layout })
    }

    /// Whether the kernel can write quantized rows: a simdgroup writes a block of 32 values of y.
    pub fn can_quantize(op: &Linear) -> bool {
        let width = op.outputs / op.epilogue.results_per_output();
        matches!(op.epilogue, Epilogue::AddSquares(_) | Epilogue::Gate(_)) && width.is_multiple_of(STRETCH)
    }

    /// The kernel with these knobs.
    pub fn with_knobs(self, knobs: Knobs) -> LinearKernel {
        self.with_layout(|layout| LinearLayout { knobs, ..layout })
    }
}
