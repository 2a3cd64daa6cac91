//! Codes of ggml superblocks with few bits: order of the columns, and scales that are packed.

use forge_ir::SUPERBLOCK;

/// Codes of 2 bits: byte j of every 32 has columns j, j + 32, j + 64 and j + 96 of 128, lowest bits first.
pub(crate) fn bit_pairs(bytes: &[u8]) -> [u8; SUPERBLOCK] {
    std::array::from_fn(|column| {
        let (half, block, place) = (column / 128, column / 32 % 4, column % 32);
        bytes[half * 32 + place] >> (2 * block) & 3
    })
}

/// Codes of a Q3_K superblock plus 4: high bits in 32 bytes, of which bit b of byte j is column j of block b,
/// then bit pairs.
pub(crate) fn q3_k_codes(block: &[u8]) -> [u8; SUPERBLOCK] {
    let low = bit_pairs(&block[32..96]);
    std::array::from_fn(|column| low[column] | (block[column % 32] >> (column / 32) & 1) << 2)
}

/// The scale of 16 columns of a Q3_K superblock. Low nibbles of the first 8 are the low nibbles of bytes 0 to
/// 7, of the others their high nibbles. The high bits of group g are in byte 8 + g % 4.
pub(crate) fn q3_k_scale(packed: &[u8], group: usize) -> i8 {
    let low = packed[group % 8] >> (group / 8 * 4) & 15;
    let high = packed[8 + group % 4] >> (group / 4 * 2) & 3;
    (low | high << 4).cast_signed() - 32
}

/// Digits of a TQ1_0 superblock. A byte is a fraction of five digits to the base 3, times 256: 32 bytes with
/// digits 32 columns apart, 16 bytes with digits 16 columns apart, and 4 bytes with four digits each.
pub(crate) fn base_3_digits(block: &[u8]) -> [u8; SUPERBLOCK] {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    std::array::from_fn(|column| {
        let (first, width, within) = match column {
            0..160 => (0, 32, column),
            160..240 => (32, 16, column - 160),
            _ => (48, 4, column - 240),
        };
        let rest = block[first + within % width].wrapping_mul(POWERS[within / width]);
        ((u16::from(rest) * 3) >> 8) as u8
    })
}
