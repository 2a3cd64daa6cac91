//! Affine formats: integers with a scale and an offset per group of columns.

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

/// Affine formats and their names; a name without suffix has groups of 64 and f16 scales.
pub(crate) const AFFINE: [(Affine, &str); 36] = {
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

    pub(crate) const fn name(self) -> &'static str {
        AFFINE[self.index()].1
    }

    /// Index among the affine formats.
    pub(crate) const fn index(self) -> usize {
        (self.bits as usize * 3 + self.group as usize) * 2 + self.scales as usize
    }

    /// Bytes of a group's quantized values.
    pub const fn code_bytes(self) -> usize {
        self.group.columns() * self.bits.count() / 8
    }
}
