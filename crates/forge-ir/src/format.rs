//! Number formats: what a weight's bytes mean, as planes that kernels can load without looking at neighbours.
//!
//! A matrix is stored row by row. Rows are padded with zeros to a multiple of [`BLOCK`] columns, so a kernel may
//! always load whole blocks of weights. A format has one plane (plain numbers) or two (codes and their scales);
//! each plane is a tensor of its own in the weight file, 64-byte aligned.

use serde::{Deserialize, Serialize};

/// Columns per block: quantised formats share one scale a block, and every row is padded to whole blocks.
pub const BLOCK: usize = 32;

/// How the numbers of a weight are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a single.
    Bf16,
    /// 32 signed bytes and one f16 scale a block: value = code * scale.
    #[serde(rename = "q8_0")]
    Q8_0,
    /// 32 nibbles and one f16 scale a block: value = (code - 8) * scale.
    /// Byte j of a block's 16 holds element j in its low nibble and element j + 16 in its high one.
    #[serde(rename = "q4_0")]
    Q4_0,
}

/// What one plane's elements are, in the vocabulary of safetensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaneElement {
    /// `F32`
    F32,
    /// `F16`
    F16,
    /// `BF16`
    Bf16,
    /// `I8`
    I8,
    /// `U8`
    U8,
}

impl PlaneElement {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            PlaneElement::F32 => 4,
            PlaneElement::F16 | PlaneElement::Bf16 => 2,
            PlaneElement::I8 | PlaneElement::U8 => 1,
        }
    }
}

/// One tensor of a stored weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plane {
    /// `values`, `codes` or `scales`; the plane `values` is stored under the weight's own name, the others as
    /// `<weight>.codes` and `<weight>.scales`.
    pub name: &'static str,
    /// The element type of the stored tensor.
    pub element: PlaneElement,
    /// Elements that hold one block of [`BLOCK`] columns.
    pub per_block: usize,
}

const fn values(element: PlaneElement) -> Plane {
    Plane { name: "values", element, per_block: BLOCK }
}

const SCALES: Plane = Plane { name: "scales", element: PlaneElement::F16, per_block: 1 };

impl Format {
    /// Every format, widest first.
    pub const ALL: [Format; 5] = [Format::F32, Format::F16, Format::Bf16, Format::Q8_0, Format::Q4_0];

    /// The name used on the command line, in files and in generated text.
    pub const fn name(self) -> &'static str {
        match self {
            Format::F32 => "f32",
            Format::F16 => "f16",
            Format::Bf16 => "bf16",
            Format::Q8_0 => "q8_0",
            Format::Q4_0 => "q4_0",
        }
    }

    /// The format of that name.
    pub fn from_name(name: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.name() == name)
    }

    /// The planes of this format, in the order in which kernels take them.
    pub const fn planes(self) -> &'static [Plane] {
        match self {
            Format::F32 => const { &[values(PlaneElement::F32)] },
            Format::F16 => const { &[values(PlaneElement::F16)] },
            Format::Bf16 => const { &[values(PlaneElement::Bf16)] },
            Format::Q8_0 => {
                const { &[Plane { name: "codes", element: PlaneElement::I8, per_block: 32 }, SCALES] }
            }
            Format::Q4_0 => {
                const { &[Plane { name: "codes", element: PlaneElement::U8, per_block: 16 }, SCALES] }
            }
        }
    }

    /// Bytes of one block of [`BLOCK`] columns over all planes.
    pub const fn block_bytes(self) -> usize {
        match self {
            Format::F32 => 128,
            Format::F16 | Format::Bf16 => 64,
            Format::Q8_0 => 34,
            Format::Q4_0 => 18,
        }
    }

    /// Whether numbers share a scale, so that storing them loses more than rounding to a float would.
    pub const fn is_quantised(self) -> bool {
        matches!(self, Format::Q8_0 | Format::Q4_0)
    }

    /// Bytes of a stored matrix over all planes, padding of rows included.
    pub const fn matrix_bytes(self, rows: usize, columns: usize) -> u64 {
        (rows as u64) * (columns.div_ceil(BLOCK) as u64) * (self.block_bytes() as u64)
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_hold_exactly_the_bytes_of_a_block() {
        for format in Format::ALL {
            let bytes: usize =
                format.planes().iter().map(|plane| plane.per_block * plane.element.bytes()).sum();
            assert_eq!(bytes, format.block_bytes(), "{format}");
            assert_eq!(Format::from_name(format.name()), Some(format));
        }
    }

    #[test]
    fn rows_are_padded_to_whole_blocks() {
        assert_eq!(Format::Q4_0.matrix_bytes(3, 56), 3 * 2 * 18);
        assert_eq!(Format::F32.matrix_bytes(3, 64), 3 * 64 * 4);
    }
}
