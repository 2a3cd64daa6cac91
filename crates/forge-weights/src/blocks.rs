//! Converts rows of ggml blocks into the planes of the format with the same values. Only the byte order
//! changes, so values are bitwise identical. `ggml` converts superblocks.

use crate::codes::pack;
use crate::ggml::ggml_row;
use forge_ir::{BLOCK, Bits, Blocks};

/// Fills the planes of a row.
pub(crate) fn planes(blocks: Blocks, row: &[u8], [codes, scales]: [&mut [u8]; 2]) {
    let count = row.len() / blocks.bytes();
    if count == 0 {
        return;
    }
    let places =
        codes.chunks_exact_mut(codes.len() / count).zip(scales.chunks_exact_mut(scales.len() / count));
    for (block, (codes, scales)) in row.chunks_exact(blocks.bytes()).zip(places) {
        match blocks {
            Blocks::Q4_0 | Blocks::Q8_0 => {
                scales.copy_from_slice(&block[..2]);
                codes.copy_from_slice(&block[2..]);
            }
            Blocks::Q4_1 => {
                scales.copy_from_slice(&block[..4]);
                pack(Bits::Four, &nibbles(&block[4..]), codes);
            }
            Blocks::Q5_0 => {
                scales.copy_from_slice(&block[..2]);
                pack(Bits::Five, &five_bit_codes(&block[2..]), codes);
            }
            Blocks::Q5_1 => {
                scales.copy_from_slice(&block[..4]);
                pack(Bits::Five, &five_bit_codes(&block[4..]), codes);
            }
            Blocks::Q4_K | Blocks::Q5_K | Blocks::Q6_K => ggml_row(blocks.format(), block, [codes, scales]),
        }
    }
}

/// Unpacks nibbles: byte j has column j in its low and column j + 16 in its high nibble.
fn nibbles(bytes: &[u8]) -> [u8; BLOCK] {
    std::array::from_fn(|column| bytes[column % 16] >> (column / 16 * 4) & 15)
}

/// Unpacks five-bit values: 4 bytes with the highest bit of each column, then nibbles.
fn five_bit_codes(bytes: &[u8]) -> [u8; BLOCK] {
    let (highest, low) = bytes.split_at(4);
    let low = nibbles(low);
    std::array::from_fn(|column| low[column] | (highest[column / 8] >> (column % 8) & 1) << 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::decode_row;
    use half::f16;
    use proptest::prelude::*;

    const COLUMNS: usize = 96;

    /// The values of the planes.
    fn decoded(blocks: Blocks, row: &[u8]) -> Vec<f32> {
        let [codes, scales] = blocks.format().plane_bytes(COLUMNS);
        let (mut codes, mut scales) = (vec![0; codes], vec![0; scales]);
        planes(blocks, row, [&mut codes, &mut scales]);
        let mut out = vec![0.0; COLUMNS];
        decode_row(blocks.format(), [&codes, &scales], &mut out);
        out
    }

    /// ggml's definition of a row's values, in f32.
    fn ggml_values(blocks: Blocks, row: &[u8]) -> Vec<f32> {
        let half = |block: &[u8], at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
        let mut values = Vec::new();
        for block in row.chunks_exact(blocks.bytes()) {
            let d = half(block, 0);
            for column in 0..BLOCK {
                let nibble = |from: usize| i32::from(block[from + column % 16] >> (column / 16 * 4) & 15);
                let five = |from: usize| {
                    let bits = u32::from_le_bytes(block[from..from + 4].try_into().unwrap());
                    nibble(from + 4) | ((bits >> column & 1) << 4) as i32
                };
                values.push(match blocks {
                    Blocks::Q4_0 => (nibble(2) - 8) as f32 * d,
                    Blocks::Q4_1 => nibble(4) as f32 * d + half(block, 2),
                    Blocks::Q5_0 => (five(2) - 16) as f32 * d,
                    Blocks::Q5_1 => five(4) as f32 * d + half(block, 2),
                    Blocks::Q8_0 => f32::from(block[2 + column].cast_signed()) * d,
                    Blocks::Q4_K | Blocks::Q5_K | Blocks::Q6_K => {
                        unreachable!("these have tests of their own")
                    }
                });
            }
        }
        values
    }

    proptest! {
        #[test]
        fn values_match_ggml(bytes in prop::collection::vec(any::<u8>(), 3 * 34)) {
            for blocks in Blocks::ALL.into_iter().filter(|blocks| blocks.columns() == BLOCK) {
                let mut row = bytes[..blocks.row_bytes(COLUMNS)].to_vec();
                // Scales and offsets are finite, and otherwise arbitrary, including negative and subnormal
                // ones.
                for block in row.chunks_exact_mut(blocks.bytes()) {
                    for high in [1, 3] {
                        if matches!(blocks, Blocks::Q4_1 | Blocks::Q5_1) || high == 1 {
                            block[high] &= 0xfb;
                        }
                    }
                }
                let expected = ggml_values(blocks, &row);
                prop_assert_eq!(decoded(blocks, &row), expected, "{:?}", blocks);
            }
        }
    }
}
