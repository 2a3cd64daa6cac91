//! Packs and unpacks the quantized values of a block of 32 columns in an affine format. See
//! [`forge_ir::Affine`] for the order.

use forge_ir::{BLOCK, Bits};

/// Bytes of a block's quantized values.
pub(crate) const fn block_bytes(bits: Bits) -> usize {
    BLOCK * bits.count() / 8
}

/// First columns of the four columns whose bit pairs are in four bytes, lowest bits first. Those of the next four bytes
/// are 8 columns further.
const BIT_PAIR_COLUMNS: [usize; 4] = [0, 16, 4, 20];

/// First columns of the four columns whose single bits are in four bytes, lowest bits first.
const BIT_COLUMNS: [usize; 8] = [0, 16, 4, 20, 8, 24, 12, 28];

/// The lowest bit of each byte of a word.
const LOWEST: u32 = 0x0101_0101;

/// Four bytes as a word.
fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Unpacks a block.
#[inline]
pub(crate) fn unpack(bits: Bits, mut bytes: &[u8]) -> [u8; BLOCK] {
    let mut codes = [0; BLOCK];
    let parts = bits.count();
    if parts & 8 != 0 {
        codes.copy_from_slice(&bytes[..BLOCK]);
        return codes;
    }
    let mut shift = 0;
    if parts & 4 != 0 {
        let (low, high) = codes.split_at_mut(BLOCK / 2);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
            (*low, *high) = (byte & 15, byte >> 4);
        }
        (bytes, shift) = (&bytes[BLOCK / 2..], 4);
    }
    let mut add = |column: usize, part: u32| {
        let codes = &mut codes[column..column + 4];
        codes.copy_from_slice(&(word(codes) | part).to_le_bytes());
    };
    if parts & 2 != 0 {
        for (index, bytes) in bytes[..BLOCK / 4].chunks_exact(4).enumerate() {
            for (place, column) in BIT_PAIR_COLUMNS.into_iter().enumerate() {
                add(8 * index + column, (word(bytes) >> (2 * place) & (3 * LOWEST)) << shift);
            }
        }
        (bytes, shift) = (&bytes[BLOCK / 4..], shift + 2);
    }
    if parts & 1 != 0 {
        for (place, column) in BIT_COLUMNS.into_iter().enumerate() {
            add(column, (word(bytes) >> place & LOWEST) << shift);
        }
    }
    codes
}

/// Packs a block. Values must fit `bits`.
#[inline]
pub(crate) fn pack(bits: Bits, codes: &[u8; BLOCK], mut bytes: &mut [u8]) {
    let parts = bits.count();
    if parts & 8 != 0 {
        bytes.copy_from_slice(codes);
        return;
    }
    let mut shift = 0;
    if parts & 4 != 0 {
        let (nibbles, rest) = bytes.split_at_mut(BLOCK / 2);
        for (index, byte) in nibbles.iter_mut().enumerate() {
            *byte = codes[index] & 15 | codes[index + BLOCK / 2] << 4;
        }
        (bytes, shift) = (rest, 4);
    }
    if parts & 2 != 0 {
        let (pairs, rest) = bytes.split_at_mut(BLOCK / 4);
        for (index, bytes) in pairs.chunks_exact_mut(4).enumerate() {
            let columns =
                BIT_PAIR_COLUMNS.map(|column| word(&codes[8 * index + column..]) >> shift & (3 * LOWEST));
            let packed = columns.iter().rev().fold(0, |packed, column| packed << 2 | column);
            bytes.copy_from_slice(&packed.to_le_bytes());
        }
        (bytes, shift) = (rest, shift + 2);
    }
    if parts & 1 != 0 {
        let columns = BIT_COLUMNS.map(|column| word(&codes[column..]) >> shift & LOWEST);
        let packed = columns.iter().rev().fold(0, |packed, column| packed << 1 | column);
        bytes.copy_from_slice(&packed.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: [Bits; 6] = [Bits::Two, Bits::Three, Bits::Four, Bits::Five, Bits::Six, Bits::Eight];

    proptest! {
        #[test]
        fn unpack_reverses_pack(codes in any::<[u8; BLOCK]>()) {
            for bits in ALL {
                let codes = codes.map(|code| code & ((1_u16 << bits.count()) - 1) as u8);
                let mut bytes = vec![0; block_bytes(bits)];
                pack(bits, &codes, &mut bytes);
                prop_assert_eq!(unpack(bits, &bytes), codes, "{:?}", bits);
            }
        }
    }

    #[test]
    fn packs_bits_as_the_format_specifies() {
        // The bytes that change when one column has all bits set.
        let of = |bits: Bits, column: usize| {
            let mut codes = [0; BLOCK];
            codes[column] = ((1_u16 << bits.count()) - 1) as u8;
            let mut bytes = vec![0; block_bytes(bits)];
            pack(bits, &codes, &mut bytes);
            let set = bytes.into_iter().enumerate().filter(|(_, byte)| *byte != 0);
            set.map(|(index, byte)| format!("{index}:{byte:08b}")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of(Bits::Four, 21), "5:11110000");
        assert_eq!(of(Bits::Two, 0), "0:00000011");
        assert_eq!(of(Bits::Two, 13), "5:00110000");
        assert_eq!(of(Bits::Three, 29), "5:11000000 9:10000000");
        assert_eq!(of(Bits::Five, 6), "6:00001111 18:00000100");
        assert_eq!(of(Bits::Six, 18), "2:11110000 18:00001100");
        assert_eq!(of(Bits::Eight, 7), "7:11111111");
    }
}
