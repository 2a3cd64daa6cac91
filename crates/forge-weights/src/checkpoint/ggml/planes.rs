//! Converts rows of ggml blocks into the planes of the format with the same values. Only the byte order or
//! the codes change, so values are identical. `k_quants` converts superblocks of the same format.

use crate::checkpoint::ggml::grid::point;
use crate::checkpoint::ggml::k_quants::ggml_row;
use crate::checkpoint::ggml::low_bits::{base_3_digits, bit_pairs, q3_k_codes, q3_k_scale};
use crate::codec::codes::{block_bytes, pack};
use crate::codec::nvfp4;
use forge_ir::{BLOCK, Bits, Blocks};

/// Fills the planes of a row. The format of the blocks must be quantized.
pub(crate) fn planes(blocks: Blocks, row: &[u8], [codes, scales]: [&mut [u8]; 2]) {
    let count = row.len() / blocks.bytes();
    if count == 0 {
        return;
    }
    if blocks == Blocks::NVFP4 {
        return nvfp4_planes(row, [codes, scales]);
    }
    let places =
        codes.chunks_exact_mut(codes.len() / count).zip(scales.chunks_exact_mut(scales.len() / count));
    for (block, (codes, scales)) in row.chunks_exact(blocks.bytes()).zip(places) {
        match blocks {
            Blocks::Q4_0 | Blocks::Q8_0 | Blocks::IQ4_NL => {
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
            Blocks::MXFP4 => {
                scales.copy_from_slice(&block[..1]);
                codes.copy_from_slice(&block[1..]);
            }
            Blocks::IQ4_XS => {
                scales[..2].copy_from_slice(&block[..2]);
                for (at, scale) in scales[2..].iter_mut().enumerate() {
                    let low = block[4 + at / 2] >> (at % 2 * 4) & 15;
                    let high = block[2 + at / 4] >> (at % 4 * 2) & 3;
                    *scale = (low | high << 4).wrapping_sub(32);
                }
                codes.copy_from_slice(&block[8..]);
            }
            Blocks::TQ1_0 => {
                integers([codes, scales], &base_3_digits(block), &block[52..]);
            }
            Blocks::TQ2_0 => {
                integers([codes, scales], &bit_pairs(&block[..64]), &block[64..]);
            }
            Blocks::Q2_0 => {
                let code = |column: usize| block[2 + column / 4] >> (column % 4 * 2) & 3;
                integers([codes, scales], &std::array::from_fn::<_, 64, _>(code), &block[..2]);
            }
            Blocks::Q1_0 => {
                let code = |column: usize| (block[2 + column / 8] >> (column % 8) & 1) * 2;
                integers([codes, scales], &std::array::from_fn::<_, 128, _>(code), &block[..2]);
            }
            Blocks::Q3_K => {
                superblock(Bits::Three, codes, &q3_k_codes(block));
                scales[..2].copy_from_slice(&block[108..]);
                scales[2..].iter_mut().enumerate().for_each(|(group, scale)| {
                    *scale = q3_k_scale(&block[96..108], group).cast_unsigned();
                });
            }
            Blocks::IQ3_S => {
                superblock(Bits::Six, codes, &iq3_s_codes(block));
                scales[..2].copy_from_slice(&block[..2]);
                scales[2..].iter_mut().enumerate().for_each(|(group, scale)| {
                    *scale = 1 + 2 * (block[106 + group / 4] >> (group / 2 % 2 * 4) & 15);
                });
            }
            Blocks::Q4_K | Blocks::Q5_K | Blocks::Q6_K => ggml_row(blocks.format(), block, [codes, scales]),
            Blocks::Q2_K => {
                superblock(Bits::Two, codes, &bit_pairs(&block[16..80]));
                scales[..4].copy_from_slice(&block[80..]);
                scales[4..].copy_from_slice(&block[..16]);
            }
            Blocks::IQ2_XXS
            | Blocks::IQ2_XS
            | Blocks::IQ2_S
            | Blocks::IQ3_XXS
            | Blocks::IQ1_S
            | Blocks::IQ1_M
            | Blocks::NVFP4 => {}
        }
    }
}

/// Fills the planes of a row of NVFP4: four scales, then 8 bytes of floats for every 16 columns, whose low nibbles
/// are the first eight.
fn nvfp4_planes(row: &[u8], planes: [&mut [u8]; 2]) {
    let (mut floats, mut scales) = (Vec::new(), Vec::new());
    for block in row.chunks_exact(Blocks::NVFP4.bytes()) {
        let (of_block, codes) = block.split_at(4);
        // The sign bit has no meaning, except in the byte of 480.
        scales.extend(of_block.iter().map(|scale| match *scale {
            127 => 0,
            255 => 127,
            scale => scale & 127,
        }));
        for codes in codes.chunks(8) {
            floats.extend(codes.iter().map(|byte| byte & 15));
            floats.extend(codes.iter().map(|byte| byte >> 4));
        }
    }
    nvfp4::store(&floats, &scales, 1.0, planes);
}

/// Stores integers plus 1, of 2 bits, with one scale: the offset of every group is minus the scale.
fn integers([codes, scales]: [&mut [u8]; 2], plus_one: &[u8], scale: &[u8]) {
    let blocks = plus_one.as_chunks::<BLOCK>().0;
    for (block, out) in blocks.iter().zip(codes.chunks_exact_mut(block_bytes(Bits::Two))) {
        pack(Bits::Two, block, out);
    }
    let pair = [scale[0], scale[1], scale[0], scale[1] ^ 0x80];
    scales.as_chunks_mut::<4>().0.fill(pair);
}

/// Stores codes of this many bits.
fn superblock(bits: Bits, codes: &mut [u8], of_superblock: &[u8; 256]) {
    let blocks = of_superblock.as_chunks::<BLOCK>().0;
    for (block, out) in blocks.iter().zip(codes.chunks_exact_mut(block_bytes(bits))) {
        pack(bits, block, out);
    }
}

/// The values of an IQ3_S superblock as multiples of their scales, plus 32.
fn iq3_s_codes(block: &[u8]) -> [u8; 256] {
    std::array::from_fn(|column| {
        let at = column / 4;
        let high = block[66 + at / 8] >> (at % 8) & 1;
        let magnitude = point::iq3_s(usize::from(block[2 + at]) | usize::from(high) << 8)[column % 4];
        let is_negative = block[74 + column / 8] >> (column % 8) & 1 == 1;
        if is_negative { 32 - magnitude } else { 32 + magnitude }
    })
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
    use crate::codec::row::decode_row;
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
                    _ => unreachable!("these have tests of their own"),
                });
            }
        }
        values
    }

    proptest! {
        #[test]
        fn values_match_ggml(bytes in prop::collection::vec(any::<u8>(), 3 * 34)) {
            for blocks in [Blocks::Q4_0, Blocks::Q4_1, Blocks::Q5_0, Blocks::Q5_1, Blocks::Q8_0] {
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
