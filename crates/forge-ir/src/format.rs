//! Number formats: what a weight's bytes mean, as planes that kernels can load without looking at neighbours.
//!
//! A matrix is stored row by row. Rows are padded to a multiple of the format's group of columns, so a kernel may always
//! load whole groups of weights. Padding is zeros, in an affine format any numbers: whoever reads it multiplies it by
//! zeros. A format has one plane (plain numbers) or two (codes and their scales); each plane is a tensor of its own in
//! the weight file, 64-byte aligned.

use serde::{Serialize, Serializer};

/// Columns per block: what kernels decode at once. Every format's group is a whole number of blocks.
pub const BLOCK: usize = 32;

/// How the numbers of a weight are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Format {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a single.
    Bf16,
    /// 32 signed bytes and one f16 scale a block: value = code * scale.
    Q8_0,
    /// 32 nibbles and one f16 scale a block: value = (code - 8) * scale.
    /// Byte j of a block's 16 holds element j in its low nibble and element j + 16 in its high one.
    Q4_0,
    /// Unsigned codes, and a scale and an offset for every group: value = code * scale + offset.
    Affine(Affine),
}

/// A format of unsigned codes whose groups have a scale and an offset. Four-bit codes lie as those of `q4_0` do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Affine {
    /// Of a code.
    pub bits: Bits,
    /// Columns that share a scale and an offset.
    pub group: Group,
}

/// Bits of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Bits {
    /// A byte.
    Eight,
    /// A nibble.
    Four,
}

/// Columns of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    /// 32
    Of32,
    /// 64
    Of64,
    /// 128
    Of128,
}

impl Group {
    /// How many.
    pub const fn columns(self) -> usize {
        match self {
            Group::Of32 => 32,
            Group::Of64 => 64,
            Group::Of128 => 128,
        }
    }
}

/// Affine formats by their names; the plain ones have groups of 64.
const AFFINE: [(Affine, &str); 6] = [
    (Affine { bits: Bits::Eight, group: Group::Of32 }, "affine8_32"),
    (Affine { bits: Bits::Eight, group: Group::Of64 }, "affine8"),
    (Affine { bits: Bits::Eight, group: Group::Of128 }, "affine8_128"),
    (Affine { bits: Bits::Four, group: Group::Of32 }, "affine4_32"),
    (Affine { bits: Bits::Four, group: Group::Of64 }, "affine4"),
    (Affine { bits: Bits::Four, group: Group::Of128 }, "affine4_128"),
];

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
    /// Elements that hold one group of the format.
    pub per_group: usize,
}

const fn values(element: PlaneElement) -> Plane {
    Plane { name: "values", element, per_group: BLOCK }
}

const SCALES: Plane = Plane { name: "scales", element: PlaneElement::F16, per_group: 1 };

/// Scale and offset, side by side.
const SCALES_AND_OFFSETS: Plane = Plane { name: "scales", element: PlaneElement::F16, per_group: 2 };

const fn codes(element: PlaneElement, per_group: usize) -> Plane {
    Plane { name: "codes", element, per_group }
}

impl Format {
    /// Every format, widest first.
    pub const ALL: [Format; 11] = [
        Format::F32,
        Format::F16,
        Format::Bf16,
        Format::Q8_0,
        Format::Q4_0,
        Format::Affine(AFFINE[0].0),
        Format::Affine(AFFINE[1].0),
        Format::Affine(AFFINE[2].0),
        Format::Affine(AFFINE[3].0),
        Format::Affine(AFFINE[4].0),
        Format::Affine(AFFINE[5].0),
    ];

    /// The name used on the command line, in files and in generated text.
    pub const fn name(self) -> &'static str {
        match self {
            Format::F32 => "f32",
            Format::F16 => "f16",
            Format::Bf16 => "bf16",
            Format::Q8_0 => "q8_0",
            Format::Q4_0 => "q4_0",
            Format::Affine(affine) => affine.name(),
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
            Format::Q8_0 => const { &[codes(PlaneElement::I8, 32), SCALES] },
            Format::Q4_0 => const { &[codes(PlaneElement::U8, 16), SCALES] },
            Format::Affine(Affine { bits: Bits::Eight, group }) => match group {
                Group::Of32 => const { &[codes(PlaneElement::U8, 32), SCALES_AND_OFFSETS] },
                Group::Of64 => const { &[codes(PlaneElement::U8, 64), SCALES_AND_OFFSETS] },
                Group::Of128 => const { &[codes(PlaneElement::U8, 128), SCALES_AND_OFFSETS] },
            },
            Format::Affine(Affine { bits: Bits::Four, group }) => match group {
                Group::Of32 => const { &[codes(PlaneElement::U8, 16), SCALES_AND_OFFSETS] },
                Group::Of64 => const { &[codes(PlaneElement::U8, 32), SCALES_AND_OFFSETS] },
                Group::Of128 => const { &[codes(PlaneElement::U8, 64), SCALES_AND_OFFSETS] },
            },
        }
    }

    /// Columns that every row is padded to a multiple of; in a quantised format, those that share a scale.
    pub const fn group(self) -> usize {
        match self {
            Format::Affine(affine) => affine.group.columns(),
            _ => BLOCK,
        }
    }

    /// Bytes of one group of columns over all planes.
    pub const fn group_bytes(self) -> usize {
        match self {
            Format::F32 => 128,
            Format::F16 | Format::Bf16 => 64,
            Format::Q8_0 => 34,
            Format::Q4_0 => 18,
            Format::Affine(Affine { bits: Bits::Eight, group }) => group.columns() + 4,
            Format::Affine(Affine { bits: Bits::Four, group }) => group.columns() / 2 + 4,
        }
    }

    /// Whether numbers share a scale, so that storing them loses more than rounding to a float would.
    pub const fn is_quantised(self) -> bool {
        matches!(self, Format::Q8_0 | Format::Q4_0 | Format::Affine(_))
    }

    /// Bytes of a stored matrix over all planes, padding of rows included.
    pub const fn matrix_bytes(self, rows: usize, columns: usize) -> u64 {
        (rows as u64) * (columns.div_ceil(self.group()) as u64) * (self.group_bytes() as u64)
    }
}

impl Affine {
    const fn name(self) -> &'static str {
        let mut index = 0;
        while index < AFFINE.len() {
            let (affine, name) = AFFINE[index];
            if affine.bits as u8 == self.bits as u8 && affine.group as u8 == self.group as u8 {
                return name;
            }
            index += 1;
        }
        unreachable!()
    }
}

impl Serialize for Format {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
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
    fn planes_hold_exactly_the_bytes_of_a_group() {
        for format in Format::ALL {
            let bytes: usize =
                format.planes().iter().map(|plane| plane.per_group * plane.element.bytes()).sum();
            assert_eq!(bytes, format.group_bytes(), "{format}");
            assert_eq!(Format::from_name(format.name()), Some(format));
        }
    }

    #[test]
    fn rows_are_padded_to_whole_blocks() {
        assert_eq!(Format::Q4_0.matrix_bytes(3, 56), 3 * 2 * 18);
        assert_eq!(Format::F32.matrix_bytes(3, 64), 3 * 64 * 4);
        let affine = Format::from_name("affine4").unwrap();
        assert_eq!(affine.matrix_bytes(3, 65), 3 * 2 * 36);
    }
}
