//! Quantized matrices that a checkpoint stores as several tensors of one module: codes, scales and, in some
//! formats, zero points.
//!
//! The value of a code is `(element - zero) * scale`, or `element * scale + bias`. It is computed in f32:
//! products of integers or small floats with a scale of 16 bits are exact. The tensors are named after the
//! module, as in `layers.0.mlp.up_proj.weight_scale`; an [`Encoding`] has the last parts of these names.

use crate::weights::small_float::{from_bf16, from_e4m3, from_e8m0, from_f16};
use serde::Serialize;

/// How a checkpoint stores a quantized matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Encoding {
    /// Name of the format for the user, such as `FP8` or `AWQ int4`.
    pub name: &'static str,
    /// What a code stands for.
    pub element: Element,
    /// Order of the codes.
    pub packing: Packing,
    /// Tensor of the codes.
    pub codes: &'static str,
    /// Scales.
    pub scales: ScaleTensor,
    /// Zero points or biases.
    pub zeros: Zeros,
    /// Tensor with the group of every column, if columns are not grouped in order.
    pub groups: Option<&'static str>,
}

/// What a code stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Element {
    /// An unsigned integer of this many bits.
    Unsigned(u32),
    /// A signed byte.
    Signed8,
    /// A float of 8 bits: 4 of exponent, 3 of fraction, no infinity (OCP E4M3).
    E4m3,
    /// A float of 4 bits: 2 of exponent, 1 of fraction (OCP E2M1).
    E2m1,
    /// An entry of a table of 16 f32, in the tensor of this name.
    Table(&'static str),
}

impl Element {
    /// Bits of a code.
    pub const fn bits(self) -> usize {
        match self {
            Element::Unsigned(bits) => bits as usize,
            Element::Signed8 | Element::E4m3 => 8,
            Element::E2m1 | Element::Table(_) => 4,
        }
    }

    /// The value of a code; of an entry of a table, its index.
    pub fn value(self, code: u8) -> f32 {
        const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        match self {
            Element::Unsigned(_) | Element::Table(_) => f32::from(code),
            Element::Signed8 => f32::from(code.cast_signed()),
            Element::E4m3 => from_e4m3(code),
            Element::E2m1 => {
                let magnitude = MAGNITUDES[usize::from(code & 7)];
                if code & 8 == 0 { magnitude } else { -magnitude }
            }
        }
    }

    /// Whether codes are integers.
    pub const fn is_integer(self) -> bool {
        matches!(self, Element::Unsigned(_) | Element::Signed8)
    }

    /// Significant bits of an element, and the exponent of the smallest bit that it has.
    pub const fn precision(self) -> (u32, i32) {
        match self {
            Element::Unsigned(bits) => (bits, 0),
            Element::Signed8 => (8, 0),
            Element::E4m3 => (4, -9),
            Element::E2m1 => (2, -1),
            Element::Table(_) => (24, -149),
        }
    }
}

/// Order of the codes of a matrix of `rows` outputs and `columns` inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Packing {
    /// Row by row, lowest bits first.
    Rows,
    /// Row by row, the first of two nibbles in the high half of a byte.
    HighFirst,
    /// Words of 32 bits with adjacent columns of a row, lowest bits first: `[columns * bits / 32, rows]`
    /// (GPTQ).
    ColumnWords,
    /// Words of 32 bits with 8 rows of a column, in the order 0, 2, 4, 6, 1, 3, 5, 7 from the lowest nibble
    /// on: `[columns, rows / 8]` (AWQ).
    InterleavedRowWords,
}

/// Nibble of a word that has row `i` of 8, in [`Packing::InterleavedRowWords`].
pub const INTERLEAVED_NIBBLES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// The tensor of scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ScaleTensor {
    /// Name of the tensor.
    pub tensor: &'static str,
    /// Type of a scale.
    pub element: ScaleElement,
    /// Rows that share a scale; `None` for all.
    pub rows: Option<usize>,
    /// Columns that share a scale; `None` for all.
    pub columns: Option<usize>,
    /// Whether the tensor has a row per group of columns instead of a row per group of rows.
    pub transposed: bool,
    /// Factor of all scales.
    pub factor: ScaleFactor,
}

/// Tensor of the scales of [`ScaleElement::Nested`].
pub const NESTED_SCALES: &str = "weight.nested_absmax";

/// Tensor of the table of [`ScaleElement::Nested`].
pub const NESTED_TABLE: &str = "weight.nested_quant_map";

/// Type of a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleElement {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// OCP E4M3.
    E4m3,
    /// A power of two: an exponent of 8 bits.
    E8m0,
    /// A byte that is quantized itself, with scales of blocks in [`NESTED_SCALES`], a table in
    /// [`NESTED_TABLE`], and block size and offset in the JSON text of this tensor (bitsandbytes).
    Nested(&'static str),
}

impl ScaleElement {
    /// Bytes of a scale.
    pub const fn bytes(self) -> usize {
        match self {
            ScaleElement::F32 => 4,
            ScaleElement::F16 | ScaleElement::Bf16 => 2,
            ScaleElement::E4m3 | ScaleElement::E8m0 | ScaleElement::Nested(_) => 1,
        }
    }

    /// The scale of type [`ScaleElement::Nested`] as its index, any other by its value.
    pub fn value(self, bytes: &[u8]) -> f32 {
        match (self, bytes) {
            (ScaleElement::F32, [a, b, c, d]) => f32::from_le_bytes([*a, *b, *c, *d]),
            (ScaleElement::F16, [a, b]) => from_f16(u16::from_le_bytes([*a, *b])),
            (ScaleElement::Bf16, [a, b]) => from_bf16(u16::from_le_bytes([*a, *b])),
            (ScaleElement::E4m3, [a]) => from_e4m3(*a),
            (ScaleElement::E8m0, [a]) => from_e8m0(*a),
            (ScaleElement::Nested(_), [a]) => f32::from(*a),
            _ => f32::NAN,
        }
    }
}

/// Factor of all scales of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleFactor {
    /// 1.
    One,
    /// The f32 in the tensor of this name.
    Times(&'static str),
    /// The inverse of the f32 in the tensor of this name.
    Over(&'static str),
    /// The inverse of this number.
    OverConstant(u32),
}

/// The factor that replaces a divisor of E4M3 scales, and whether all products equal the quotients.
pub fn factor_of_divisor(divisor: f32) -> (f32, bool) {
    // Scales have 8 different fractions, and powers of two change no rounding.
    let different = |factor: &f32| (8_u8..16).map(f32::from).filter(|x| x * factor != x / divisor).count();
    let inverse = 1.0 / divisor;
    let near = [inverse, inverse.next_down(), inverse.next_up()];
    let best = near.into_iter().min_by_key(different).unwrap_or(inverse);
    (best, different(&best) == 0)
}

/// What codes are relative to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Zeros {
    /// The code of 0 in every group.
    Constant(u32),
    /// Zero points in a tensor, as many as scales.
    Tensor {
        /// Name of the tensor.
        tensor: &'static str,
        /// Order of the zero points.
        packing: ZeroPacking,
        /// Number that is added to a stored zero point.
        plus: u32,
    },
    /// Biases in a tensor: value = element * scale + bias. They have the type and order of the scales.
    Biases(&'static str),
}

/// Order of zero points, which have as many bits as codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ZeroPacking {
    /// Words with adjacent rows of a group, lowest bits first: `[groups, rows * bits / 32]` (GPTQ).
    RowWords,
    /// The same in the order of [`Packing::InterleavedRowWords`] (AWQ).
    InterleavedRowWords,
    /// Words with adjacent rows of a group, lowest bits first: `[rows * bits / 32, groups]`
    /// (compressed-tensors).
    TransposedRowWords,
    /// Signed bytes: `[rows, groups]`.
    SignedBytes,
}

impl Encoding {
    /// Columns that share a scale, of a matrix of this many columns.
    pub fn group(&self, columns: usize) -> usize {
        self.scales.columns.unwrap_or(columns).max(1)
    }

    /// Names of the tensors that it reads.
    pub fn tensors(&self) -> Vec<&'static str> {
        let mut all = vec![self.codes, self.scales.tensor];
        all.extend(self.groups);
        match self.scales.factor {
            ScaleFactor::Times(tensor) | ScaleFactor::Over(tensor) => all.push(tensor),
            ScaleFactor::One | ScaleFactor::OverConstant(_) => {}
        }
        match self.zeros {
            Zeros::Tensor { tensor, .. } | Zeros::Biases(tensor) => all.push(tensor),
            Zeros::Constant(_) => {}
        }
        if let Element::Table(tensor) = self.element {
            all.push(tensor);
        }
        if let ScaleElement::Nested(state) = self.scales.element {
            all.extend([state, NESTED_SCALES, NESTED_TABLE]);
        }
        all
    }

    /// Groups of columns of a matrix of this many columns.
    pub fn groups_of(&self, columns: usize) -> usize {
        columns.div_ceil(self.group(columns))
    }
}

impl std::fmt::Display for Encoding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)?;
        match (self.scales.rows, self.scales.columns) {
            (None, None) => f.write_str(", one scale"),
            (Some(1), None) => f.write_str(", one scale per row"),
            (Some(1), Some(columns)) => write!(f, ", groups of {columns}"),
            (Some(rows), Some(columns)) => write!(f, ", blocks of {rows}x{columns}"),
            (Some(rows), None) => write!(f, ", blocks of {rows} rows"),
            (None, Some(columns)) => write!(f, ", blocks of {columns} columns"),
        }?;
        if self.groups.is_some() { f.write_str(", reordered columns") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_become_factors() {
        assert_eq!(factor_of_divisor(2688.0 / 0.75).0, 0.75 / 2688.0);
        assert_eq!(factor_of_divisor(8.0), (0.125, true));
        let divisors = (0..1000).map(|i| 1000.0 + 1.37 * i as f32);
        let exact = divisors.map(factor_of_divisor).filter(|(_, exact)| *exact).count();
        // Whether a divisor has such a factor depends on rounding.
        assert!(exact > 0 && exact < 1000, "{exact}");
    }
}
