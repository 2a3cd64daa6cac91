//! Number formats: how a weight is stored, as planes whose groups kernels can load independently.
//!
//! A matrix is stored row by row. Rows are padded to a multiple of the format's group of columns, so that
//! kernels can load whole groups. Padding is 0, or arbitrary in formats with offsets: kernels multiply it by
//! 0. A format has one plane (plain values) or two (quantized values and scales). Each plane is a tensor of
//! the weight file, aligned to 64 bytes.

use serde::{Serialize, Serializer};

/// Columns per block, the unit that kernels dequantize at once. Every group is a whole number of blocks.
pub const BLOCK: usize = 32;

/// Columns per superblock of the k-quants.
pub const SUPERBLOCK: usize = 256;

/// The values of a nibble in [`Format::Iq4Nl`] and [`Format::Iq4Xs`], as multiples of the scale.
pub const IQ4_ENTRIES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// A number format of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Format {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// Blocks of 32 signed bytes with one f16 scale: value = q * scale.
    Q8_0,
    /// Blocks of 32 nibbles with one f16 scale: value = (q - 8) * scale.
    /// Byte j of a block's 16 holds element j in its low nibble and element j + 16 in its high nibble.
    Q4_0,
    /// Blocks of 32 values of 5 bits with one f16 scale: value = (q - 16) * scale. Ordered as in an affine format
    /// of the same width.
    Q5_0,
    /// Blocks of 32 nibbles with one f16 scale: value = entry * scale. A nibble is an index of [`IQ4_ENTRIES`].
    /// Ordered as in [`Format::Q4_0`].
    Iq4Nl,
    /// The same nibbles in superblocks: value = entry * (d * s). A superblock's scales are d in f16, then a signed
    /// byte s for each of its blocks. ggml packs s in 6 bits.
    Iq4Xs,
    /// k-quant of 4 bits: superblocks whose blocks have a scale and an offset, value = q * (d * s) - dmin *
    /// m.
    ///
    /// Quantized values are ordered as in an affine format of the same width. A superblock's scales are d and
    /// dmin in f16, then two bytes for each of its blocks, s and m, of 6 bits each. ggml packs the 6 bits;
    /// bytes take an eighth of a bit per weight more and let a kernel load a block's scales in one aligned
    /// access.
    Q4K,
    /// The same with 5 bits.
    Q5K,
    /// k-quant of 6 bits: superblocks in which every 16 columns have a scale, value = (q - 32) * (d * s).
    ///
    /// Quantized values are ordered as in an affine format of the same width. A superblock's scales are d in
    /// f16, then a signed byte s for every 16 columns.
    Q6K,
    /// k-quant of 3 bits: as [`Format::Q6K`], value = (q - 4) * (d * s). ggml packs s in 6 bits.
    Q3K,
    /// k-quant of 2 bits: superblocks in which every 16 columns have a scale and an offset, value = q * (d * s) -
    /// dmin * m.
    ///
    /// Quantized values are ordered as in an affine format of the same width. A superblock's scales are d and
    /// dmin in f16, then a byte for every 16 columns with s in its low nibble and m in its high nibble.
    Q2K,
    /// MXFP4 of the OCP microscaling specification: blocks of 32 floats of 4 bits with one exponent.
    ///
    /// Value = float * 2^(exponent - 127). The exponent is a byte; 255 is NaN. A float has its sign in the
    /// highest bit; the others, from 0 to 7, are 0, 0.5, 1, 1.5, 2, 3, 4 and 6. Floats are ordered as in
    /// [`Format::Q4_0`].
    Mxfp4,
    /// NVFP4: floats of 4 bits with an 8-bit scale for every 16 columns.
    ///
    /// Value = float * (factor * scale). Floats are those of [`Format::Mxfp4`], in the same order. A group of 128
    /// columns has the factor in f32, which is the matrix's in most checkpoints, then its 8 scales: E4M3 without
    /// sign, in which the byte 127 is 480.
    Nvfp4,
    /// FP8: floats of 8 bits (OCP E4M3) with one f32 scale for every 128 columns, value = float * scale.
    ///
    /// A float has a sign, 4 bits of exponent with bias 7 and 3 of fraction. There is no infinity, and the
    /// compiler rejects NaN, the float of all ones.
    Fp8,
    /// Unsigned quantized values with a scale and an offset per group: value = q * scale + offset.
    Affine(Affine),
}

/// A format of unsigned quantized values with a scale and an offset per group.
///
/// The quantized values of a block of 32 columns take as many 32-bit words as a value has bits. 8-bit values
/// are bytes. Others are split, low bits first: nibbles if there are 4 bits or more, then pairs of bits, then
/// single bits. Each part of a block is dense, and such that a word has the parts of columns 4 apart next to
/// each other:
///
/// * nibbles, 16 bytes: byte j holds columns j (low) and j + 16 (high), as in `q4_0`;
/// * pairs, 8 bytes: byte 4k + j holds, from its lowest bits on, columns 8k + j, 8k + j + 16, 8k + j + 4 and
///   8k + j + 20;
/// * single bits, 4 bytes: bit 2i + h of byte j is that of column 4i + j + 16h.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Affine {
    /// Bits of a quantized value.
    pub bits: Bits,
    /// Columns that share a scale and an offset.
    pub group: Group,
    /// Type of scales and offsets.
    pub scales: Scales,
}

/// Bits of a quantized value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each variant is its number")]
pub enum Bits {
    Eight,
    Six,
    Five,
    Four,
    Three,
    Two,
}

impl Bits {
    /// The number of bits.
    pub const fn count(self) -> usize {
        match self {
            Bits::Eight => 8,
            Bits::Six => 6,
            Bits::Five => 5,
            Bits::Four => 4,
            Bits::Three => 3,
            Bits::Two => 2,
        }
    }
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
    /// The number of columns.
    pub const fn columns(self) -> usize {
        match self {
            Group::Of32 => 32,
            Group::Of64 => 64,
            Group::Of128 => 128,
        }
    }
}

/// Type of scales and offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scales {
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
}

/// All formats but the affine ones.
const NAMED: [Format; 16] = [
    Format::F32,
    Format::F16,
    Format::Bf16,
    Format::Fp8,
    Format::Q8_0,
    Format::Q5_0,
    Format::Q4_0,
    Format::Iq4Nl,
    Format::Iq4Xs,
    Format::Q6K,
    Format::Q5K,
    Format::Q4K,
    Format::Q3K,
    Format::Q2K,
    Format::Mxfp4,
    Format::Nvfp4,
];

/// Affine formats and their names; a name without suffix has groups of 64 and f16 scales.
const AFFINE: [(Affine, &str); 36] = {
    const fn affine(bits: Bits, group: Group, scales: Scales) -> Affine {
        Affine { bits, group, scales }
    }
    macro_rules! named {
        ($($bits:ident $name:literal),*) => {
            [$(
                (affine(Bits::$bits, Group::Of32, Scales::F16), concat!($name, "_32")),
                (affine(Bits::$bits, Group::Of32, Scales::Bf16), concat!($name, "_32_bf16")),
                (affine(Bits::$bits, Group::Of64, Scales::F16), $name),
                (affine(Bits::$bits, Group::Of64, Scales::Bf16), concat!($name, "_bf16")),
                (affine(Bits::$bits, Group::Of128, Scales::F16), concat!($name, "_128")),
                (affine(Bits::$bits, Group::Of128, Scales::Bf16), concat!($name, "_128_bf16")),
            )*]
        };
    }
    named!(Eight "affine8", Six "affine6", Five "affine5", Four "affine4", Three "affine3", Two "affine2")
};

/// Planes of the affine formats, in the order of their names.
static AFFINE_PLANES: [[Plane; 2]; AFFINE.len()] = {
    let mut planes = [[codes(PlaneElement::U8, 0); 2]; AFFINE.len()];
    let mut index = 0;
    while index < planes.len() {
        let affine = AFFINE[index].0;
        let element = match affine.scales {
            Scales::F16 => PlaneElement::F16,
            Scales::Bf16 => PlaneElement::Bf16,
        };
        planes[index] = [
            codes(PlaneElement::U8, affine.code_bytes()),
            // Scale and offset are interleaved.
            Plane { name: "scales", element, per_group: 2 },
        ];
        index += 1;
    }
    planes
};

/// Element type of a plane, as in safetensors.
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
    /// Bytes of an element.
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
    /// `values`, `codes` or `scales`. The plane `values` is stored under the weight's own name, the others as
    /// `<weight>.codes` and `<weight>.scales`.
    pub name: &'static str,
    /// Element type of the tensor.
    pub element: PlaneElement,
    /// Elements per group.
    pub per_group: usize,
}

const fn values(element: PlaneElement) -> Plane {
    Plane { name: "values", element, per_group: BLOCK }
}

const SCALES: Plane = Plane { name: "scales", element: PlaneElement::F16, per_group: 1 };

/// Columns that share an f32 in [`Format::Fp8`] and [`Format::Nvfp4`].
const FLOAT_GROUP: usize = 128;

const fn codes(element: PlaneElement, per_group: usize) -> Plane {
    Plane { name: "codes", element, per_group }
}

/// Scales stored as bytes: mixed types of a superblock, or exponents.
const fn bytes(count: usize) -> Plane {
    Plane { name: "scales", element: PlaneElement::U8, per_group: count }
}

impl Format {
    /// Every format: plain ones, then quantized ones, then affine ones by descending bits.
    pub const ALL: [Format; NAMED.len() + AFFINE.len()] = {
        let mut all = [Format::F32; NAMED.len() + AFFINE.len()];
        let mut index = 0;
        while index < all.len() {
            all[index] = if index < NAMED.len() {
                NAMED[index]
            } else {
                Format::Affine(AFFINE[index - NAMED.len()].0)
            };
            index += 1;
        }
        all
    };

    /// Name on the command line, in files and in generated text.
    pub const fn name(self) -> &'static str {
        match self {
            Format::F32 => "f32",
            Format::F16 => "f16",
            Format::Bf16 => "bf16",
            Format::Fp8 => "fp8",
            Format::Q8_0 => "q8_0",
            Format::Q5_0 => "q5_0",
            Format::Q4_0 => "q4_0",
            Format::Iq4Nl => "iq4_nl",
            Format::Iq4Xs => "iq4_xs",
            Format::Q6K => "q6_k",
            Format::Q5K => "q5_k",
            Format::Q4K => "q4_k",
            Format::Q3K => "q3_k",
            Format::Q2K => "q2_k",
            Format::Mxfp4 => "mxfp4",
            Format::Nvfp4 => "nvfp4",
            Format::Affine(affine) => affine.name(),
        }
    }

    /// The format of that name.
    pub fn from_name(name: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.name() == name)
    }

    /// The cargo feature of the runtime that contains the format's CPU kernels.
    pub const fn feature(self) -> &'static str {
        match self {
            Format::Affine(_) => "affine",
            _ => self.name(),
        }
    }

    /// The format's type in the runtime, as Rust source.
    pub fn rust_type(self) -> String {
        match self {
            Format::Affine(Affine { bits, group, scales }) => {
                let name = match scales {
                    Scales::F16 => "Affine",
                    Scales::Bf16 => "AffineBf16",
                };
                format!("{name}<{}, {}>", bits.count(), group.columns())
            }
            // Variants have the names of the types.
            _ => format!("{self:?}"),
        }
    }

    /// The planes of this format, in the order of kernel arguments.
    pub fn planes(self) -> &'static [Plane] {
        match self {
            Format::F32 => const { &[values(PlaneElement::F32)] },
            Format::F16 => const { &[values(PlaneElement::F16)] },
            Format::Bf16 => const { &[values(PlaneElement::Bf16)] },
            Format::Fp8 => {
                const { &[codes(PlaneElement::U8, FLOAT_GROUP), Plane { element: PlaneElement::F32, ..SCALES }] }
            }
            Format::Q8_0 => const { &[codes(PlaneElement::I8, 32), SCALES] },
            Format::Q5_0 => const { &[codes(PlaneElement::U8, 20), SCALES] },
            Format::Q4_0 | Format::Iq4Nl => const { &[codes(PlaneElement::U8, 16), SCALES] },
            Format::Iq4Xs => const { &[codes(PlaneElement::U8, 128), bytes(10)] },
            Format::Q6K => const { &[codes(PlaneElement::U8, 192), bytes(18)] },
            Format::Q5K => const { &[codes(PlaneElement::U8, 160), bytes(20)] },
            Format::Q4K => const { &[codes(PlaneElement::U8, 128), bytes(20)] },
            Format::Q3K => const { &[codes(PlaneElement::U8, 96), bytes(18)] },
            Format::Q2K => const { &[codes(PlaneElement::U8, 64), bytes(20)] },
            Format::Mxfp4 => const { &[codes(PlaneElement::U8, 16), bytes(1)] },
            Format::Nvfp4 => {
                const { &[codes(PlaneElement::U8, FLOAT_GROUP / 2), bytes(4 + FLOAT_GROUP / 16)] }
            }
            Format::Affine(affine) => &AFFINE_PLANES[affine.index()],
        }
    }

    /// The number of columns that rows are padded to a multiple of: for quantized formats the columns that
    /// share a scale, for k-quants the superblock.
    pub const fn group(self) -> usize {
        match self {
            Format::Affine(affine) => affine.group.columns(),
            Format::Fp8 | Format::Nvfp4 => FLOAT_GROUP,
            Format::Q6K | Format::Q5K | Format::Q4K | Format::Q3K | Format::Q2K | Format::Iq4Xs => SUPERBLOCK,
            _ => BLOCK,
        }
    }

    /// Bytes of one group of columns over all planes.
    pub const fn group_bytes(self) -> usize {
        match self {
            Format::F32 => 128,
            Format::F16 | Format::Bf16 => 64,
            Format::Fp8 => FLOAT_GROUP + 4,
            Format::Nvfp4 => FLOAT_GROUP / 2 + 4 + FLOAT_GROUP / 16,
            Format::Q8_0 => 34,
            Format::Q5_0 => 22,
            Format::Q4_0 | Format::Iq4Nl => 18,
            Format::Iq4Xs => 138,
            Format::Mxfp4 => 17,
            Format::Q6K => 210,
            Format::Q5K => 180,
            Format::Q4K => 148,
            Format::Q3K => 114,
            Format::Q2K => 84,
            Format::Affine(affine) => affine.code_bytes() + 4,
        }
    }

    /// Whether values share a scale, so that storing loses more than rounding to a float.
    pub const fn is_quantized(self) -> bool {
        !matches!(self, Format::F32 | Format::F16 | Format::Bf16)
    }

    /// Whether matrices of this many columns can be stored. Rows are padded to whole groups but not to whole
    /// superblocks, because padding would cost more than k-quants save.
    pub const fn takes(self, columns: usize) -> bool {
        self.group() < SUPERBLOCK || columns.is_multiple_of(SUPERBLOCK)
    }

    /// Bits of a quantized value, if ordered as in [`Affine`].
    pub const fn bits(self) -> Option<Bits> {
        match self {
            Format::F32 | Format::F16 | Format::Bf16 | Format::Fp8 | Format::Q8_0 => None,
            Format::Q4_0 | Format::Iq4Nl | Format::Iq4Xs | Format::Q4K | Format::Mxfp4 | Format::Nvfp4 => {
                Some(Bits::Four)
            }
            Format::Q5_0 | Format::Q5K => Some(Bits::Five),
            Format::Q6K => Some(Bits::Six),
            Format::Q3K => Some(Bits::Three),
            Format::Q2K => Some(Bits::Two),
            Format::Affine(affine) => Some(affine.bits),
        }
    }

    /// Whether values have an offset.
    pub const fn has_offsets(self) -> bool {
        matches!(self, Format::Affine(_) | Format::Q5K | Format::Q4K | Format::Q2K)
    }

    /// Whether each half of a block has its own scale.
    pub const fn has_half_scales(self) -> bool {
        matches!(self, Format::Q6K | Format::Q3K | Format::Q2K | Format::Nvfp4)
    }

    /// Whether values are integers, or indices of a table of integers, before scale and offset. The CPU repacks such
    /// matrices into strips of 16 rows and multiplies them in int8.
    pub const fn has_integers(self) -> bool {
        self.is_quantized() && !matches!(self, Format::Fp8)
    }

    /// Bytes of each plane of a stored row. The second is 0 for formats with one plane.
    pub fn plane_bytes(self, columns: usize) -> [usize; 2] {
        let mut bytes = [0; 2];
        for (bytes, plane) in bytes.iter_mut().zip(self.planes()) {
            *bytes = columns.div_ceil(self.group()) * plane.per_group * plane.element.bytes();
        }
        bytes
    }

    /// Bytes of a stored matrix over all planes, including row padding.
    pub const fn matrix_bytes(self, rows: usize, columns: usize) -> u64 {
        (rows as u64) * (columns.div_ceil(self.group()) as u64) * (self.group_bytes() as u64)
    }
}

impl Affine {
    /// The format of this many bits per value and columns per group, if there is one.
    pub const fn of(bits: usize, group: usize, scales: Scales) -> Option<Affine> {
        let bits = match bits {
            8 => Bits::Eight,
            6 => Bits::Six,
            5 => Bits::Five,
            4 => Bits::Four,
            3 => Bits::Three,
            2 => Bits::Two,
            _ => return None,
        };
        let group = match group {
            32 => Group::Of32,
            64 => Group::Of64,
            128 => Group::Of128,
            _ => return None,
        };
        Some(Affine { bits, group, scales })
    }

    const fn name(self) -> &'static str {
        AFFINE[self.index()].1
    }

    /// Index among the affine formats.
    const fn index(self) -> usize {
        (self.bits as usize * 3 + self.group as usize) * 2 + self.scales as usize
    }

    /// Bytes of a group's quantized values.
    pub const fn code_bytes(self) -> usize {
        self.group.columns() * self.bits.count() / 8
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
    fn planes_hold_the_bytes_of_a_group() {
        for format in Format::ALL {
            let bytes: usize =
                format.planes().iter().map(|plane| plane.per_group * plane.element.bytes()).sum();
            assert_eq!(bytes, format.group_bytes(), "{format}");
            assert_eq!(Format::from_name(format.name()), Some(format));
            if let Format::Affine(affine) = format {
                let bits = affine.bits.count().to_string();
                assert!(format.name().starts_with(&format!("affine{bits}")), "{format}");
            }
        }
    }

    #[test]
    fn rows_are_padded_to_whole_blocks() {
        assert_eq!(Format::Q4_0.matrix_bytes(3, 56), 3 * 2 * 18);
        assert_eq!(Format::F32.matrix_bytes(3, 64), 3 * 64 * 4);
        let affine = |name| Format::from_name(name).unwrap();
        assert_eq!(affine("affine4").matrix_bytes(3, 65), 3 * 2 * 36);
        assert_eq!(affine("affine3_32_bf16").matrix_bytes(3, 65), 3 * 3 * 16);
        assert_eq!(Format::Q4K.matrix_bytes(3, 257), 3 * 2 * (128 + 4 + 16));
    }
}
