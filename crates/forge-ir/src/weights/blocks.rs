//! ggml's block formats, as stored in GGUF files: blocks and superblocks one after the other, each with
//! scales next to its quantized values.
//!
//! Most represent the same values as one of forge's formats, so a weight in blocks has that format; only the
//! byte order or the codes differ. The others are dequantized to f16.

use forge_ops::{Affine, BLOCK, Bits, Format, Group, SUPERBLOCK, Scales};
use serde::{Serialize, Serializer};

/// A ggml block format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types, reason = "the names that ggml gives them")]
pub enum Blocks {
    /// f16 scale, 16 bytes of nibbles: value = (q - 8) * scale.
    Q4_0,
    /// f16 scale and offset, 16 bytes of nibbles: value = q * scale + offset.
    Q4_1,
    /// f16 scale, fifth bits of all values in 4 bytes, 16 bytes of nibbles: value = (q - 16) * scale.
    Q5_0,
    /// f16 scale and offset, fifth bits in 4 bytes, 16 bytes of nibbles: value = q * scale + offset.
    Q5_1,
    /// f16 scale, 32 signed bytes: value = q * scale.
    Q8_0,
    /// 2 bits; scales and offsets of 4 bits per 16 columns: value = q * (d * s) - dmin * m.
    Q2_K,
    /// 3 bits; signed scales of 6 bits per 16 columns: value = q * (d * s).
    Q3_K,
    /// [`Format::Q4K`] with packed scales.
    Q4_K,
    /// [`Format::Q5K`] with packed scales.
    Q5_K,
    /// [`Format::Q6K`].
    Q6_K,
    /// Indices of 256 points of 8 magnitudes, with signs; scales of 4 bits per 32 columns.
    IQ2_XXS,
    /// Indices of 512 points of 8 magnitudes, with signs; scales of 4 bits per 16 columns.
    IQ2_XS,
    /// Indices of 1024 points of 8 magnitudes, with signs; scales of 4 bits per 16 columns.
    IQ2_S,
    /// Indices of 256 points of 4 magnitudes, with signs; scales of 4 bits per 32 columns.
    IQ3_XXS,
    /// Indices of 512 points of 4 magnitudes, with signs; scales of 4 bits per 32 columns.
    IQ3_S,
    /// Indices of 2048 points of 8 ternary values, shifted by 1/8; scales of 3 bits per 32 columns.
    IQ1_S,
    /// The points of [`Blocks::IQ1_S`], shifted per point; scales of 3 bits per 16 columns.
    IQ1_M,
    /// f16 scale, 16 bytes of nibbles, which are indices of 16 signed bytes.
    IQ4_NL,
    /// The bytes of [`Blocks::IQ4_NL`] in superblocks, with signed scales of 6 bits per 32 columns.
    IQ4_XS,
    /// Ternary values, five in a byte, with an f16 scale.
    TQ1_0,
    /// Two bits: value = (q - 1) * scale, with an f16 scale.
    TQ2_0,
    /// [`Format::Mxfp4`], with the exponent before the floats.
    MXFP4,
    /// [`Format::Nvfp4`] without factor, with the four scales of 64 columns before their floats.
    NVFP4,
    /// Signs of an f16 scale.
    Q1_0,
    /// Two bits: value = (q - 1) * scale, with an f16 scale.
    Q2_0,
}

impl Blocks {
    /// All block formats.
    pub const ALL: [Blocks; 25] = [
        Blocks::Q4_0,
        Blocks::Q4_1,
        Blocks::Q5_0,
        Blocks::Q5_1,
        Blocks::Q8_0,
        Blocks::Q2_K,
        Blocks::Q3_K,
        Blocks::Q4_K,
        Blocks::Q5_K,
        Blocks::Q6_K,
        Blocks::IQ2_XXS,
        Blocks::IQ2_XS,
        Blocks::IQ2_S,
        Blocks::IQ3_XXS,
        Blocks::IQ3_S,
        Blocks::IQ1_S,
        Blocks::IQ1_M,
        Blocks::IQ4_NL,
        Blocks::IQ4_XS,
        Blocks::TQ1_0,
        Blocks::TQ2_0,
        Blocks::MXFP4,
        Blocks::NVFP4,
        Blocks::Q1_0,
        Blocks::Q2_0,
    ];

    /// ggml's name.
    pub const fn name(self) -> &'static str {
        match self {
            Blocks::Q4_0 => "Q4_0",
            Blocks::Q4_1 => "Q4_1",
            Blocks::Q5_0 => "Q5_0",
            Blocks::Q5_1 => "Q5_1",
            Blocks::Q8_0 => "Q8_0",
            Blocks::Q2_K => "Q2_K",
            Blocks::Q3_K => "Q3_K",
            Blocks::Q4_K => "Q4_K",
            Blocks::Q5_K => "Q5_K",
            Blocks::Q6_K => "Q6_K",
            Blocks::IQ2_XXS => "IQ2_XXS",
            Blocks::IQ2_XS => "IQ2_XS",
            Blocks::IQ2_S => "IQ2_S",
            Blocks::IQ3_XXS => "IQ3_XXS",
            Blocks::IQ3_S => "IQ3_S",
            Blocks::IQ1_S => "IQ1_S",
            Blocks::IQ1_M => "IQ1_M",
            Blocks::IQ4_NL => "IQ4_NL",
            Blocks::IQ4_XS => "IQ4_XS",
            Blocks::TQ1_0 => "TQ1_0",
            Blocks::TQ2_0 => "TQ2_0",
            Blocks::MXFP4 => "MXFP4",
            Blocks::NVFP4 => "NVFP4",
            Blocks::Q1_0 => "Q1_0",
            Blocks::Q2_0 => "Q2_0",
        }
    }

    /// The block format of that name.
    pub fn from_name(name: &str) -> Option<Blocks> {
        Blocks::ALL.into_iter().find(|blocks| blocks.name() == name)
    }

    /// The format that its values are kept in: one with the same values, or f16.
    pub const fn format(self) -> Format {
        const fn affine(bits: Bits, group: Group) -> Format {
            Format::Affine(Affine { bits, group, scales: Scales::F16 })
        }
        match self {
            Blocks::Q4_0 => Format::Q4_0,
            Blocks::Q4_1 => affine(Bits::Four, Group::Of32),
            Blocks::Q5_0 => Format::Q5_0,
            Blocks::Q5_1 => affine(Bits::Five, Group::Of32),
            Blocks::Q8_0 => Format::Q8_0,
            Blocks::IQ4_NL => Format::Iq4Nl,
            Blocks::IQ4_XS => Format::Iq4Xs,
            Blocks::Q4_K => Format::Q4K,
            Blocks::Q5_K => Format::Q5K,
            Blocks::Q2_K => Format::Q2K,
            Blocks::Q3_K => Format::Q3K,
            Blocks::Q6_K | Blocks::IQ3_S => Format::Q6K,
            Blocks::TQ1_0 | Blocks::TQ2_0 | Blocks::Q1_0 => affine(Bits::Two, Group::Of128),
            Blocks::Q2_0 => affine(Bits::Two, Group::Of64),
            Blocks::MXFP4 => Format::Mxfp4,
            Blocks::NVFP4 => Format::Nvfp4,
            Blocks::IQ2_XXS
            | Blocks::IQ2_XS
            | Blocks::IQ2_S
            | Blocks::IQ3_XXS
            | Blocks::IQ1_S
            | Blocks::IQ1_M => Format::F16,
        }
    }

    /// Whether [`Blocks::format`] has the same codes and scales.
    pub const fn has_same_codes(self) -> bool {
        matches!(
            self,
            Blocks::Q4_0
                | Blocks::Q4_1
                | Blocks::Q5_0
                | Blocks::Q5_1
                | Blocks::Q8_0
                | Blocks::IQ4_NL
                | Blocks::IQ4_XS
                | Blocks::Q2_K
                | Blocks::Q3_K
                | Blocks::Q4_K
                | Blocks::Q5_K
                | Blocks::Q6_K
                | Blocks::MXFP4
                | Blocks::NVFP4
        )
    }

    /// Whether [`Blocks::format`] has the same values.
    pub const fn has_same_values(self) -> bool {
        self.format().is_quantized()
    }

    /// Columns of a block.
    pub const fn columns(self) -> usize {
        match self {
            Blocks::Q4_0
            | Blocks::Q4_1
            | Blocks::Q5_0
            | Blocks::Q5_1
            | Blocks::Q8_0
            | Blocks::IQ4_NL
            | Blocks::MXFP4 => BLOCK,
            Blocks::NVFP4 | Blocks::Q2_0 => 64,
            Blocks::Q1_0 => 128,
            _ => SUPERBLOCK,
        }
    }

    /// Bytes of a block.
    pub const fn bytes(self) -> usize {
        match self {
            Blocks::MXFP4 => 17,
            Blocks::Q4_0 | Blocks::IQ4_NL | Blocks::Q1_0 | Blocks::Q2_0 => 18,
            Blocks::Q4_1 => 20,
            Blocks::Q5_0 => 22,
            Blocks::Q5_1 => 24,
            Blocks::Q8_0 => 34,
            Blocks::NVFP4 => 36,
            Blocks::IQ1_S => 50,
            Blocks::TQ1_0 => 54,
            Blocks::IQ1_M => 56,
            Blocks::IQ2_XXS | Blocks::TQ2_0 => 66,
            Blocks::IQ2_XS => 74,
            Blocks::IQ2_S => 82,
            Blocks::Q2_K => 84,
            Blocks::IQ3_XXS => 98,
            Blocks::Q3_K | Blocks::IQ3_S => 110,
            Blocks::IQ4_XS => 136,
            Blocks::Q4_K => 144,
            Blocks::Q5_K => 176,
            Blocks::Q6_K => 210,
        }
    }

    /// Bytes of a row of whole blocks.
    pub const fn row_bytes(self, columns: usize) -> usize {
        columns / self.columns() * self.bytes()
    }
}

impl Serialize for Blocks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
