//! Number formats: how a weight is stored, as planes whose groups kernels can load independently.
//!
//! A matrix is stored row by row. Rows are padded to a multiple of the format's group of columns, so that
//! kernels can load whole groups. Padding is 0, or arbitrary in formats with offsets: kernels multiply it by
//! 0. A format has one plane (plain values) or two (quantized values and scales). Each plane is a tensor of
//! the weight file, aligned to 64 bytes.

use crate::affine::{AFFINE, Affine, Bits, Scales};
use serde::{Serialize, Serializer};

/// Columns per block, the unit that kernels dequantize at once. Every group is a whole number of blocks.
pub const BLOCK: usize = 32;

/// Columns per superblock of the k-quants.
pub const SUPERBLOCK: usize = 256;

/// Columns that share an f32 in [`Format::Fp8`] and [`Format::Nvfp4`].
pub(crate) const FLOAT_GROUP: usize = 128;

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

    /// Bytes of a stored matrix over all planes, including row padding.
    pub const fn matrix_bytes(self, rows: usize, columns: usize) -> u64 {
        (rows as u64) * (columns.div_ceil(self.group()) as u64) * (self.group_bytes() as u64)
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
