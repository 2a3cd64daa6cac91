//! Layouts of linear kernels.

use crate::spec::LinearKernel;
use forge_ops::{Bits, Format};
use serde::{Deserialize, Serialize};

/// Batch-size class of a linear kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// One row (GEMV): every weight is used once, straight from memory.
    One,
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
    /// f16: half the threadgroup memory. For x within the range of f16.
    F16,
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
    /// Packets of 16 bytes that a lane loads of each row before it computes (one row): 1 or 2. With quantized
    /// activations: steps of four blocks.
    pub packets: usize,
    /// Rows of x per threadgroup (many rows).
    pub tile_rows: usize,
    /// Outputs of a tile (many rows).
    pub tile_outputs: usize,
    /// Whether x is quantized to 16 bits in blocks of 32 columns and multiplied with integer MMA (one row).
    /// Not used if exact results are requested.
    #[serde(default)]
    pub codes: bool,
}

impl Rows {
    /// Name in kernel names and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Rows::One => "one",
            Rows::Few => "few",
            Rows::Many => "many",
        }
    }
}

/// Columns per step with quantized activations: four blocks.
pub(crate) const STRETCH: usize = 4 * forge_ops::BLOCK;

impl Knobs {
    /// Whether activations can be quantized for weights in `format`.
    pub(crate) fn can_take_codes(format: Format) -> bool {
        match format {
            Format::Q4_0 | Format::Q8_0 | Format::Q4K => true,
            Format::Affine(affine) => matches!(affine.bits, Bits::Four | Bits::Eight),
            _ => false,
        }
    }

    /// Suffix of a kernel's name, with the knobs that matter for this batch-size class.
    pub fn name(&self, rows: Rows) -> String {
        let Knobs { rows_per_simdgroup, simdgroups, split, packets, tile_rows, tile_outputs, codes } = self;
        match rows {
            Rows::One if *codes => format!("c{rows_per_simdgroup}_g{simdgroups}_s{split}_p{packets}"),
            Rows::One => format!("r{rows_per_simdgroup}_g{simdgroups}_s{split}_p{packets}"),
            Rows::Few => format!("r{rows_per_simdgroup}_g{simdgroups}_s{split}"),
            Rows::Many => format!("t{tile_rows}x{tile_outputs}_s{split}"),
        }
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
}

impl LinearKernel {
    /// The kernel with these knobs.
    pub fn with_knobs(self, knobs: Knobs) -> LinearKernel {
        self.with_layout(|layout| LinearLayout { knobs, ..layout })
    }
}
