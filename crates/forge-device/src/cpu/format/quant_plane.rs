//! [`QuantPlane`]: the plane of a matrix that holds its integers ("quants"), before scale and offset.
//!
//! Quants of up to 6 bits are unsigned. The bits of a block of 32 are stored as separate parts, low bits first:
//! - 4 bits: byte j holds columns j (low nibble) and j + 16 (high nibble).
//! - 2 bits: byte 4k + j holds columns 8k + j, 8k + j + 16, 8k + j + 4 and 8k + j + 20.
//! - 1 bit: bit 2i + h of byte j belongs to column 4i + j + 16h.
//!
//! So a few shifts and masks unpack half a block, or in a repacked matrix
//! ([`crate::cpu::format::repacked`]) four columns of all rows and the four columns 16 later.

use crate::cpu::format::matrix::BLOCK;
use crate::cpu::format::repacked::OUTPUTS;
use crate::cpu::simd::vectors::Simd;
use std::marker::PhantomData;

/// Integers of `BITS` bits.
pub(crate) trait QuantPlane: Copy {
    /// Bits per quant.
    const BITS: usize;
    /// Added to each result of [`codes`](QuantPlane::codes) gives the quant.
    const OFFSET: i32;
    /// Whether results of `codes` are in 0..=15.
    const SMALL: bool;

    /// The plane at an address.
    fn at(start: *const u8) -> Self;

    /// Its address.
    fn start(self) -> *const u8;

    /// Quants `part * LANES ..` of a block as f32.
    unsafe fn vector<S: Simd>(self, block: usize, part: usize) -> S::V;

    /// The quants of a block as signed bytes, minus `OFFSET`.
    unsafe fn codes(self, block: usize) -> [i8; BLOCK];

    /// The bias of `row_codes` and `strip_codes` relative to `codes`.
    fn raised<S: Simd>() -> i32;

    /// The quants of `LANES / 8` blocks.
    unsafe fn row_codes<S: Simd>(self, block: usize) -> S::Codes;

    /// Two words of quants for `LANES` outputs of a strip, from output `part * LANES` on, for the columns given by
    /// [`columns`]. `block` counts from the start of the matrix, strip after strip.
    unsafe fn strip_codes<S: Simd>(self, block: usize, pair: usize, part: usize) -> [S::Codes; 2];

    /// Address of a block.
    #[inline(always)]
    fn block(self, block: usize) -> *const u8 {
        self.start().wrapping_add(block * Self::BITS * BLOCK / 8)
    }

    /// Address of word `word` of a block in a strip, for outputs from `part * LANES` on.
    #[inline(always)]
    fn word<S: Simd>(self, block: usize, word: usize, part: usize) -> *const u8 {
        self.block(block * OUTPUTS).wrapping_add((word * OUTPUTS + part * S::LANES) * 4)
    }
}

/// The first columns of the two words of a pair in a strip: the same word of both half blocks.
#[inline(always)]
pub(crate) fn columns(pair: usize) -> [usize; 2] {
    [4 * pair, BLOCK / 2 + 4 * pair]
}

/// Signed bytes.
#[derive(Clone, Copy)]
pub struct Bytes(*const u8);

impl QuantPlane for Bytes {
    const BITS: usize = 8;
    const OFFSET: i32 = 0;
    const SMALL: bool = false;

    fn at(start: *const u8) -> Self {
        Bytes(start)
    }

    #[inline(always)]
    fn start(self) -> *const u8 {
        self.0
    }

    #[inline(always)]
    unsafe fn vector<S: Simd>(self, block: usize, part: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::load_i8(self.block(block).add(part * S::LANES).cast()) }
    }

    #[inline(always)]
    unsafe fn codes(self, block: usize) -> [i8; BLOCK] {
        // SAFETY: the caller's contract.
        unsafe { self.block(block).cast::<[i8; BLOCK]>().read() }
    }

    #[inline(always)]
    fn raised<S: Simd>() -> i32 {
        S::RAISED
    }

    #[inline(always)]
    unsafe fn row_codes<S: Simd>(self, block: usize) -> S::Codes {
        // SAFETY: the caller's contract.
        unsafe { S::load_codes(self.block(block).cast()) }
    }

    #[inline(always)]
    unsafe fn strip_codes<S: Simd>(self, block: usize, pair: usize, part: usize) -> [S::Codes; 2] {
        // SAFETY: the caller's contract.
        unsafe {
            let (near, far) =
                (self.word::<S>(block, pair, part), self.word::<S>(block, BLOCK / 8 + pair, part));
            [S::load_codes(near.cast()), S::load_codes(far.cast())]
        }
    }
}

/// Unsigned integers of 2, 3, 4, 5, 6 or 8 bits, plus `OFFSET`.
#[derive(Clone, Copy)]
pub struct Bits<const BITS: usize, const OFFSET: i32>(*const u8);

/// The byte repeated 16 times.
const fn repeat(byte: u8) -> u128 {
    u128::from_le_bytes([byte; 16])
}

/// Concatenates four words, the first in the low bits.
fn words(words: [u32; 4]) -> u128 {
    words.into_iter().rev().fold(0, |all, word| all << 32 | u128::from(word))
}

/// Unpacks half a block, one byte per integer.
#[inline(always)]
unsafe fn half_block<const BITS: usize>(block: *const u8, high: bool) -> [u8; BLOCK / 2] {
    // SAFETY: the caller passes a whole block.
    let word = |index: usize| u32::from_le(unsafe { block.cast::<u32>().add(index).read_unaligned() });
    let (mut codes, mut first, mut shift) = (0, 0, 0);
    if BITS & 4 != 0 {
        let nibbles = words([word(0), word(1), word(2), word(3)]) >> (4 * u32::from(high));
        (codes, first, shift) = (nibbles & repeat(15), 4, 4);
    }
    if BITS & 2 != 0 {
        let (a, b) = (word(first), word(first + 1));
        let pairs = words([a, a >> 4, b, b >> 4]) >> (2 * u32::from(high));
        codes |= (pairs & repeat(3)) << shift;
        (first, shift) = (first + 2, shift + 2);
    }
    if BITS & 1 != 0 {
        let a = word(first);
        let highest = words([a, a >> 2, a >> 4, a >> 6]) >> u32::from(high);
        codes |= (highest & repeat(1)) << shift;
    }
    codes.to_le_bytes()
}

impl<const BITS: usize, const OFFSET: i32> Bits<BITS, OFFSET> {
    /// The integers of a block.
    #[inline(always)]
    unsafe fn unsigned(self, block: usize) -> [u8; BLOCK] {
        // SAFETY: the caller's contract.
        unsafe {
            let (block, mut codes) = (self.block(block), [0; BLOCK]);
            codes[..BLOCK / 2].copy_from_slice(&half_block::<BITS>(block, false));
            codes[BLOCK / 2..].copy_from_slice(&half_block::<BITS>(block, true));
            codes
        }
    }
}

impl<const BITS: usize, const OFFSET: i32> QuantPlane for Bits<BITS, OFFSET> {
    const BITS: usize = BITS;
    // Results of `codes` are signed bytes.
    const OFFSET: i32 = if BITS == 8 { OFFSET + 128 } else { OFFSET };
    const SMALL: bool = BITS <= 4;

    fn at(start: *const u8) -> Self {
        Bits(start)
    }

    #[inline(always)]
    fn start(self) -> *const u8 {
        self.0
    }

    #[inline(always)]
    unsafe fn vector<S: Simd>(self, block: usize, part: usize) -> S::V {
        let (codes, column) = (self.block(block), part * S::LANES);
        // SAFETY: the caller's contract.
        unsafe {
            let v = match BITS {
                8 => S::load_u8(codes.add(column)),
                4 => S::load_u4(codes.add(column % (BLOCK / 2)), column >= BLOCK / 2),
                _ => {
                    let codes = half_block::<BITS>(codes, column >= BLOCK / 2);
                    S::load_u8(codes.as_ptr().add(column % (BLOCK / 2)))
                }
            };
            if OFFSET == 0 { v } else { S::add(v, S::splat(OFFSET as f32)) }
        }
    }

    #[inline(always)]
    unsafe fn codes(self, block: usize) -> [i8; BLOCK] {
        // SAFETY: the caller's contract.
        unsafe {
            match BITS {
                8 => self.block(block).cast::<[u8; BLOCK]>().read().map(|code| (code ^ 128).cast_signed()),
                _ => self.unsigned(block).map(u8::cast_signed),
            }
        }
    }

    #[inline(always)]
    fn raised<S: Simd>() -> i32 {
        if BITS == 8 { S::RAISED } else { 0 }
    }

    #[inline(always)]
    unsafe fn row_codes<S: Simd>(self, block: usize) -> S::Codes {
        // SAFETY: the caller's contract.
        unsafe {
            match BITS {
                8 => S::load_unsigned_codes(self.block(block)),
                4 => S::load_nibble_codes(self.block(block)),
                _ => {
                    let mut blocks = [[0; BLOCK]; 2];
                    for (i, codes) in blocks.iter_mut().enumerate().take(S::LANES / 8) {
                        *codes = self.unsigned(block + i);
                    }
                    S::load_bytes(blocks.as_ptr().cast())
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn strip_codes<S: Simd>(self, block: usize, pair: usize, part: usize) -> [S::Codes; 2] {
        // SAFETY: the caller's contract.
        unsafe {
            if BITS == 8 {
                let near = S::load_unsigned_codes(self.word::<S>(block, pair, part));
                return [near, S::load_unsigned_codes(self.word::<S>(block, BLOCK / 8 + pair, part))];
            }
            let (mut codes, mut first, mut shift) = ([S::zero_bytes(); 2], 0, 0);
            if BITS & 4 != 0 {
                let nibbles = S::load_bytes(self.word::<S>(block, pair, part));
                codes = [S::field(nibbles, 0, 15), S::field(nibbles, 4, 15)];
                (first, shift) = (4, 4);
            }
            if BITS & 2 != 0 {
                let four = S::load_bytes(self.word::<S>(block, first + pair / 2, part));
                let at = pair as u32 % 2 * 4;
                codes[0] = S::join(codes[0], S::field(four, at, 3), shift);
                codes[1] = S::join(codes[1], S::field(four, at + 2, 3), shift);
                (first, shift) = (first + 2, shift + 2);
            }
            if BITS & 1 != 0 {
                let eight = S::load_bytes(self.word::<S>(block, first, part));
                let at = pair as u32 * 2;
                codes[0] = S::join(codes[0], S::field(eight, at, 1), shift);
                codes[1] = S::join(codes[1], S::field(eight, at + 1, 1), shift);
            }
            codes
        }
    }
}

/// A codebook of 16 values.
pub(crate) trait Entries: Copy {
    /// The values, as multiples of the scale.
    const ENTRIES: [i8; 16];
}

/// Nibbles that are indices of a codebook.
#[derive(Clone, Copy)]
pub struct Indices<E>(*const u8, PhantomData<E>);

impl<E: Entries> QuantPlane for Indices<E> {
    const BITS: usize = 4;
    const OFFSET: i32 = 0;
    const SMALL: bool = false;

    fn at(start: *const u8) -> Self {
        Indices(start, PhantomData)
    }

    #[inline(always)]
    fn start(self) -> *const u8 {
        self.0
    }

    #[inline(always)]
    unsafe fn vector<S: Simd>(self, block: usize, part: usize) -> S::V {
        let column = part * S::LANES;
        let from = self.block(block).wrapping_add(column % (BLOCK / 2));
        // SAFETY: the caller's contract.
        unsafe { S::load_entries(from, column >= BLOCK / 2, &E::ENTRIES) }
    }

    #[inline(always)]
    unsafe fn codes(self, block: usize) -> [i8; BLOCK] {
        // SAFETY: the caller's contract.
        let bytes = unsafe { self.block(block).cast::<[u8; BLOCK / 2]>().read() };
        std::array::from_fn(|column| {
            E::ENTRIES[usize::from(bytes[column % (BLOCK / 2)] >> (column / (BLOCK / 2) * 4) & 15)]
        })
    }

    #[inline(always)]
    fn raised<S: Simd>() -> i32 {
        S::RAISED
    }

    #[inline(always)]
    unsafe fn row_codes<S: Simd>(self, block: usize) -> S::Codes {
        // SAFETY: the caller's contract.
        unsafe { S::lookup_codes(S::load_nibble_codes(self.block(block)), &E::ENTRIES) }
    }

    #[inline(always)]
    unsafe fn strip_codes<S: Simd>(self, block: usize, pair: usize, part: usize) -> [S::Codes; 2] {
        // SAFETY: the caller's contract.
        unsafe {
            let nibbles = S::load_bytes(self.word::<S>(block, pair, part));
            [
                S::lookup_codes(S::field(nibbles, 0, 15), &E::ENTRIES),
                S::lookup_codes(S::field(nibbles, 4, 15), &E::ENTRIES),
            ]
        }
    }
}
