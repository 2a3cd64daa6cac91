//! ggml's block formats, as stored in GGUF files: blocks and superblocks one after the other, each with
//! scales next to its quantized values.
//!
//! Each represents the same values as one of forge's formats, so a weight in blocks has that format; only the
//! byte order differs.

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
    /// [`Format::Q4K`] with packed scales.
    Q4_K,
    /// [`Format::Q5K`] with packed scales.
    Q5_K,
    /// [`Format::Q6K`].
    Q6_K,
}

impl Blocks {
    /// All block formats.
    pub const ALL: [Blocks; 8] = [
        Blocks::Q4_0,
        Blocks::Q4_1,
        Blocks::Q5_0,
        Blocks::Q5_1,
        Blocks::Q8_0,
        Blocks::Q4_K,
        Blocks::Q5_K,
        Blocks::Q6_K,
    ];

    /// ggml's name.
    pub const fn name(self) -> &'static str {
        match self {
            Blocks::Q4_0 => "Q4_0",
            Blocks::Q4_1 => "Q4_1",
            Blocks::Q5_0 => "Q5_0",
            Blocks::Q5_1 => "Q5_1",
            Blocks::Q8_0 => "Q8_0",
            Blocks::Q4_K => "Q4_K",
            Blocks::Q5_K => "Q5_K",
            Blocks::Q6_K => "Q6_K",
        }
    }

    /// The block format of that name.
    pub fn from_name(name: &str) -> Option<Blocks> {
        Blocks::ALL.into_iter().find(|blocks| blocks.name() == name)
    }

    /// The format with the same values.
    pub const fn format(self) -> Format {
        const fn affine(bits: Bits) -> Format {
            Format::Affine(Affine { bits, group: Group::Of32, scales: Scales::F16 })
        }
        match self {
            Blocks::Q4_0 => Format::Q4_0,
            Blocks::Q4_1 => affine(Bits::Four),
            Blocks::Q5_0 => Format::Q5_0,
            Blocks::Q5_1 => affine(Bits::Five),
            Blocks::Q8_0 => Format::Q8_0,
            Blocks::Q4_K => Format::Q4K,
            Blocks::Q5_K => Format::Q5K,
            Blocks::Q6_K => Format::Q6K,
        }
    }

    /// Columns of a block.
    pub const fn columns(self) -> usize {
        match self {
            Blocks::Q4_K | Blocks::Q5_K | Blocks::Q6_K => SUPERBLOCK,
            _ => BLOCK,
        }
    }

    /// Bytes of a block.
    pub const fn bytes(self) -> usize {
        match self {
            Blocks::Q4_0 => 18,
            Blocks::Q4_1 => 20,
            Blocks::Q5_0 => 22,
            Blocks::Q5_1 => 24,
            Blocks::Q8_0 => 34,
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
