//! Affine formats: unsigned quants with a scale and an offset per group, value = quant * scale + offset.
//!
//! A group's scale and offset are adjacent. `BITS` is 2, 3, 4, 5, 6 or 8 bits per weight, and `GROUP` is 32,
//! 64 or 128 columns. The bits of a block of 32 quants are stored as separate parts, low bits first:
//! - 4 bits: byte j holds columns j (low nibble) and j + 16 (high nibble).
//! - 2 bits: byte 4k + j holds columns 8k + j, 8k + j + 16, 8k + j + 4 and 8k + j + 20.
//! - 1 bit: bit 2i + h of byte j belongs to column 4i + j + 16h.
//!
//! Each half of a block is decoded with a few shifts and masks over all its bytes.

use crate::cpu::device::kernel_args::{KernelArgs, Pod};
use crate::cpu::format::matrix::{AT_ONCE, BLOCK, Matrix, Scaling};
use crate::cpu::format::repacked::OUTPUTS;
use crate::cpu::format::scales::{Scale, widen_scales};
use crate::cpu::simd::vectors::Simd;
use half::{bf16, f16};

/// An affine matrix with scales and offsets of type `T`.
#[derive(Clone, Copy)]
pub struct AffineOf<const BITS: usize, const GROUP: usize, T> {
    codes: *const u8,
    scales: *const T,
}

/// Affine format with f16 scales and offsets.
pub type Affine<const BITS: usize, const GROUP: usize> = AffineOf<BITS, GROUP, f16>;
/// Affine format with bf16 scales and offsets.
pub type AffineBf16<const BITS: usize, const GROUP: usize> = AffineOf<BITS, GROUP, bf16>;

/// The byte repeated 16 times.
const fn repeat(byte: u8) -> u128 {
    u128::from_le_bytes([byte; 16])
}

/// Concatenates four words, the first in the low bits.
fn words(words: [u32; 4]) -> u128 {
    words.into_iter().rev().fold(0, |all, word| all << 32 | u128::from(word))
}

/// Unpacks the quants of half a block, one byte each.
#[inline(always)]
unsafe fn half_block<const BITS: usize>(block: *const u8, high: bool) -> [u8; 16] {
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

/// Quants `part * LANES ..` of a block.
#[inline(always)]
pub(crate) unsafe fn codes<S: Simd, const BITS: usize>(from: *const u8, block: usize, part: usize) -> S::V {
    let (codes, column) = (from.wrapping_add(block * BITS * BLOCK / 8), part * S::LANES);
    // SAFETY: the caller's contract.
    unsafe {
        match BITS {
            8 => S::load_u8(codes.add(column)),
            4 => S::load_u4(codes.add(column % 16), column >= 16),
            _ => {
                let codes = half_block::<BITS>(codes, column >= 16);
                S::load_u8(codes.as_ptr().add(column % 16))
            }
        }
    }
}

/// The constant to add to [`signed_codes`] to get the quants.
pub(crate) const fn quant_offset<const BITS: usize>() -> i32 {
    if BITS == 8 { 128 } else { 0 }
}

/// The quants of a block as signed bytes; 8-bit quants minus 128.
#[inline(always)]
pub(crate) unsafe fn signed_codes<const BITS: usize>(from: *const u8, block: usize) -> [i8; BLOCK] {
    let codes = from.wrapping_add(block * BITS * BLOCK / 8);
    // SAFETY: the caller's contract.
    unsafe {
        if BITS == 8 {
            return codes.cast::<[u8; BLOCK]>().read().map(|code| (code ^ 128).cast_signed());
        }
        let halves = [half_block::<BITS>(codes, false), half_block::<BITS>(codes, true)];
        std::array::from_fn(|column| halves[column / 16][column % 16].cast_signed())
    }
}

/// Address of the scales of a strip's outputs for the group of `block`; the offsets follow.
#[inline(always)]
unsafe fn strip_group<const GROUP: usize, T>(scales: *const T, block: usize) -> *const T {
    // SAFETY: the caller's contract.
    unsafe { scales.add(block / (GROUP / BLOCK) * 2 * OUTPUTS) }
}

impl<const BITS: usize, const GROUP: usize, T: Scale + Pod> Matrix for AffineOf<BITS, GROUP, T> {
    const SCALING: Scaling = Scaling::Offset;
    const GROUP: usize = GROUP / BLOCK;
    const QUANT_OFFSET: Option<i32> = Some(quant_offset::<BITS>());
    const SMALL: bool = BITS <= 4;

    fn find(call: &KernelArgs<'_>, weight: &str, rows: usize, blocks: usize) -> Self {
        let groups = rows * blocks / <Self as Matrix>::GROUP;
        AffineOf {
            codes: call.input::<u8>(&format!("{weight}_codes"), rows * blocks * BITS * BLOCK / 8).as_ptr(),
            scales: call.input::<T>(&format!("{weight}_scales"), 2 * groups).as_ptr(),
        }
    }

    fn after(self, bytes: usize) -> Self {
        let (codes, scales) = (self.codes.wrapping_byte_add(bytes), self.scales.wrapping_byte_add(bytes));
        AffineOf { codes, scales }
    }

    #[inline(always)]
    unsafe fn vector<S: Simd>(self, block: usize, part: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { codes::<S, BITS>(self.codes, block, part) }
    }

    #[inline(always)]
    unsafe fn codes(self, block: usize) -> [i8; BLOCK] {
        // SAFETY: the caller's contract.
        unsafe { signed_codes::<BITS>(self.codes, block) }
    }

    const ROW: bool = BITS == 4;
    const STRIPS: bool = BITS == 4;

    #[inline(always)]
    fn nibbles(self) -> *const u8 {
        self.codes
    }

    #[inline(always)]
    unsafe fn strip_scale(self, block: usize, output: usize) -> [f32; 2] {
        // SAFETY: the caller's contract.
        unsafe {
            let scale = strip_group::<GROUP, T>(self.scales, block).add(output);
            [scale.read().as_f32(), scale.add(OUTPUTS).read().as_f32()]
        }
    }

    #[inline(always)]
    unsafe fn strip_scales<S: Simd>(self, block: usize, part: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { T::load::<S>(strip_group::<GROUP, T>(self.scales, block).add(part * S::LANES)) }
    }

    #[inline(always)]
    unsafe fn strip_offsets<S: Simd>(self, block: usize, part: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { T::load::<S>(strip_group::<GROUP, T>(self.scales, block).add(OUTPUTS + part * S::LANES)) }
    }

    #[inline(always)]
    unsafe fn prefetch<S: Simd>(self, block: usize) {
        // SAFETY: the caller's contract.
        unsafe { S::prefetch(self.codes.wrapping_add(block * BITS * BLOCK / 8)) }
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, _half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { T::splat::<S>(self.scales.add(block / <Self as Matrix>::GROUP * 2)) }
    }

    #[inline(always)]
    unsafe fn offset<S: Simd>(self, block: usize, _half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { T::splat::<S>(self.scales.add(block / <Self as Matrix>::GROUP * 2 + 1)) }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, group: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        // SAFETY: the caller's contract.
        unsafe { widen_scales::<S, T, { 2 * AT_ONCE }>(self.scales.add(2 * group), 2 * count, to) }
    }
}
