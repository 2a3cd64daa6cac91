//! Unpacks the codes of rows.

use crate::checkpoint::encoded::matrix::EncodedMatrix;
use forge_ir::{INTERLEAVED_NIBBLES, Packing};
use std::io;
use std::ops::Range;

/// Bits of a word.
const WORD: usize = 32;

/// Columns whose words are unpacked together.
const TILE: usize = 64;

impl EncodedMatrix<'_> {
    /// The codes of rows, one byte each.
    pub(super) fn codes(&self, rows: Range<usize>) -> io::Result<Vec<u8>> {
        let (name, bits, columns) = (self.encoding.codes, self.encoding.element.bits(), self.columns);
        match self.encoding.packing {
            Packing::Rows | Packing::HighFirst => {
                let of_row = columns * bits / 8;
                let bytes = self.bytes(name, rows.start * of_row, rows.len() * of_row)?;
                Ok(match self.encoding.packing {
                    Packing::HighFirst => bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).collect(),
                    _ => stream(&bytes, bits).collect(),
                })
            }
            Packing::ColumnWords => {
                let words = self.whole(name, columns * bits / WORD * self.rows * 4)?;
                let word = |place: usize| word(&words, place);
                let mut codes = vec![0; rows.len() * columns];
                let each = WORD / bits;
                for line in 0..columns / each {
                    for (row, codes) in rows.clone().zip(codes.chunks_exact_mut(columns)) {
                        let word = word(line * self.rows + row);
                        for (place, code) in codes[line * each..][..each].iter_mut().enumerate() {
                            *code = field(word, place, bits);
                        }
                    }
                }
                Ok(codes)
            }
            Packing::InterleavedRowWords => {
                let of_column = self.rows / INTERLEAVED_NIBBLES.len();
                let words = self.whole(name, columns * of_column * 4)?;
                let mut codes = vec![0; rows.len() * columns];
                // Tiles of columns, so that the written lines stay in the cache.
                for tile in (0..columns).step_by(TILE) {
                    let tile = tile..columns.min(tile + TILE);
                    for (row, codes) in rows.clone().zip(codes.chunks_exact_mut(columns)) {
                        for column in tile.clone() {
                            codes[column] = interleaved(&words, column * of_column, row);
                        }
                    }
                }
                Ok(codes)
            }
        }
    }
}

/// Codes of a stream of bytes, lowest bits first. Codes have at most 8 bits.
fn stream(bytes: &[u8], bits: usize) -> impl Iterator<Item = u8> + '_ {
    // Bits read and not yet used, the next one lowest.
    let (mut waiting, mut count) = (0_u32, 0);
    let mut bytes = bytes.iter();
    std::iter::from_fn(move || {
        if count < bits {
            waiting |= u32::from(*bytes.next()?) << count;
            count += 8;
        }
        let code = field(waiting, 0, bits);
        waiting >>= bits;
        count -= bits;
        Some(code)
    })
}

/// The word at a place of a tensor.
pub(super) fn word(bytes: &[u8], place: usize) -> u32 {
    bytes.as_chunks::<4>().0.get(place).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// The code at a place of a word.
pub(super) fn field(word: u32, place: usize, bits: usize) -> u8 {
    (word >> (place * bits) & ((1 << bits) - 1)) as u8
}

/// The code of a row, in words of 8 interleaved rows from word `first` on.
pub(super) fn interleaved(words: &[u8], first: usize, row: usize) -> u8 {
    let each = INTERLEAVED_NIBBLES.len();
    field(word(words, first + row / each), INTERLEAVED_NIBBLES[row % each], 4)
}
