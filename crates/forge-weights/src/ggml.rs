//! Superblocks as ggml stores them, the way GGUF files have them: one after another, each with its halves, its scales, and its
//! codes. What they mean is what ours mean, so scales are unpacked, codes are put in our order, and nothing else.
//!
//! * `q4_k`, 144 bytes: d, dmin, 12 bytes of scales, then nibbles: byte j of every 32 holds column j of one block in its low
//!   nibble and column j of the next in its high one.
//! * `q5_k`, 176 bytes: d, dmin, 12 bytes of scales, 32 of fifth bits, where bit b of byte j is that of column j of block b,
//!   and nibbles as above.
//! * `q6_k`, 210 bytes: nibbles, where byte j of every 32 holds column j of one block low and of the second after it high;
//!   pairs of bits, where each half of the superblock has 32 bytes, of which byte j holds column j of its four blocks; 16
//!   signed scales; d.
//!
//! The 12 bytes are 8 scales and 8 offsets of 6 bits: the first four of each are the low bits of bytes 0 to 3 and of bytes 4
//! to 7. The last four have their low nibbles together in bytes 8 to 11, the scale's low, and their two high bits in the
//! high bits of bytes 0 to 3 and of bytes 4 to 7.

use crate::codes::{block_bytes, pack};
use forge_ir::{BLOCK, Bits, Format, SUPERBLOCK};

/// Blocks of a superblock.
const BLOCKS: usize = SUPERBLOCK / BLOCK;

/// Bytes of a superblock as ggml stores it; none of a format that has no superblocks.
pub fn ggml_bytes(format: Format) -> Option<usize> {
    match format {
        Format::Q4K => Some(144),
        Format::Q5K => Some(176),
        Format::Q6K => Some(210),
        _ => None,
    }
}

/// Turns a row of ggml's superblocks into our planes, which mean the same numbers.
///
/// # Panics
/// When the format has no superblocks, or the planes are not those of [`Format::plane_bytes`].
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
            pack(bits, &std::array::from_fn(|column| code(bits, from, block, column)), bytes);
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

/// The code of a block's column.
fn code(bits: Bits, from: &[u8], block: usize, column: usize) -> u8 {
    let nibble =
        |start: usize, of: usize, high: bool| from[start + of * BLOCK + column] >> (4 * u8::from(high)) & 15;
    match bits {
        Bits::Six => {
            let (of, within) = (block / 4, block % 4);
            let pairs = from[128 + of * BLOCK + column];
            nibble(0, 2 * of + within % 2, within >= 2) | (pairs >> (2 * within) & 3) << 4
        }
        Bits::Five => nibble(48, block / 2, block % 2 == 1) | (from[16 + column] >> block & 1) << 4,
        _ => nibble(16, block / 2, block % 2 == 1),
    }
}

/// A block's two numbers of 6 bits.
fn scale_and_offset(packed: &[u8], block: usize) -> [u8; 2] {
    if block < BLOCKS / 2 {
        return [packed[block] & 63, packed[block + 4] & 63];
    }
    let (low, high) = (packed[block + 4], [packed[block - 4] >> 6, packed[block] >> 6]);
    [low & 15 | high[0] << 4, low >> 4 | high[1] << 4]
}
