//! Converts ggml superblocks (k-quants), as stored in GGUF files, to forge's planes. Scales are unpacked and
//! quantized values are reordered; values stay bitwise identical.
//!
//! * `q4_k`, 144 bytes: d, dmin, 12 bytes of scales, then nibbles: byte j of every 32 has column j of one
//!   block in its low nibble and column j of the next in its high nibble.
//! * `q5_k`, 176 bytes: d, dmin, 12 bytes of scales, 32 bytes of fifth bits (bit b of byte j is column j of
//!   block b), and nibbles as above.
//! * `q6_k`, 210 bytes: nibbles, where byte j of every 32 has column j of one block low and of the second
//!   after it high; bit pairs, 32 bytes per half of the superblock, of which byte j has column j of its four
//!   blocks; 16 signed scales; d.
//!
//! The 12 bytes are 8 scales and 8 offsets of 6 bits. The first four of each are the low 6 bits of bytes 0 to
//! 3 and of bytes 4 to 7. The low nibbles of the last four are in bytes 8 to 11, the scale's in the low
//! nibble. Their two high bits are in the high bits of bytes 0 to 3 and of bytes 4 to 7.

use crate::codec::codes::{block_bytes, pack};
use forge_ir::{BLOCK, Bits, Format, SUPERBLOCK};
use std::array;

/// Blocks of a superblock.
const BLOCKS: usize = SUPERBLOCK / BLOCK;

/// Bytes of a ggml superblock; `None` if the format has no superblocks.
pub fn ggml_bytes(format: Format) -> Option<usize> {
    match format {
        Format::Q4K => Some(144),
        Format::Q5K => Some(176),
        Format::Q6K => Some(210),
        _ => None,
    }
}

/// Converts a row of ggml superblocks to planes with the same values.
///
/// # Panics
/// If the format has no superblocks, or the planes do not have the sizes of [`Format::plane_bytes`].
pub fn ggml_row(format: Format, row: &[u8], planes: [&mut [u8]; 2]) {
    let Some((of_superblock, bits)) = ggml_bytes(format).zip(format.bits()) else {
        panic!("{format} has no superblocks");
    };
    let columns = row.len() / of_superblock * SUPERBLOCK;
    assert_eq!(planes.each_ref().map(|plane| plane.len()), format.plane_bytes(columns));
    let [of_codes, of_scales] = format.plane_bytes(SUPERBLOCK);
    let [codes, scales] = planes;
    let to = codes.chunks_exact_mut(of_codes).zip(scales.chunks_exact_mut(of_scales));
    for (from, (codes, scales)) in row.chunks_exact(of_superblock).zip(to) {
        for (block, bytes) in codes.chunks_exact_mut(block_bytes(bits)).enumerate() {
            pack(bits, &block_codes(bits, from, block), bytes);
        }
        if bits == Bits::Six {
            scales[..2].copy_from_slice(&from[208..]);
            scales[2..].copy_from_slice(&from[192..208]);
        } else {
            scales[..4].copy_from_slice(&from[..4]);
            for (block, pair) in scales[4..].chunks_exact_mut(2).enumerate() {
                pair.copy_from_slice(&scale_and_offset(&from[4..16], block));
            }
        }
    }
}

/// The quantized values of a block.
fn block_codes(bits: Bits, from: &[u8], block: usize) -> [u8; BLOCK] {
    let bytes = |start: usize, of: usize| &from[start + of * BLOCK..][..BLOCK];
    let nibbles = |start: usize, of: usize, is_high: bool| -> [u8; BLOCK] {
        let bytes = bytes(start, of);
        if is_high { array::from_fn(|i| bytes[i] >> 4) } else { array::from_fn(|i| bytes[i] & 15) }
    };
    match bits {
        Bits::Six => {
            let (of, within) = (block / 4, block % 4);
            let (low, pairs) = (nibbles(0, 2 * of + within % 2, within >= 2), bytes(128, of));
            array::from_fn(|i| low[i] | (pairs[i] >> (2 * within) & 3) << 4)
        }
        Bits::Five => {
            let (low, fifths) = (nibbles(48, block / 2, block % 2 == 1), bytes(16, 0));
            array::from_fn(|i| low[i] | (fifths[i] >> block & 1) << 4)
        }
        _ => nibbles(16, block / 2, block % 2 == 1),
    }
}

/// A block's 6-bit scale and offset.
fn scale_and_offset(packed: &[u8], block: usize) -> [u8; 2] {
    if block < BLOCKS / 2 {
        return [packed[block] & 63, packed[block + 4] & 63];
    }
    let (low, high) = (packed[block + 4], [packed[block - 4] >> 6, packed[block] >> 6]);
    [low & 15 | high[0] << 4, low >> 4 | high[1] << 4]
}
