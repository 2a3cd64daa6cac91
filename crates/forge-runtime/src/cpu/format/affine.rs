//! Formats of unsigned codes whose groups have a scale and an offset: value = code * scale + offset.
//!
//! A group's scale and offset lie side by side. `BITS` is of a code: 2, 3, 4, 5, 6 or 8. `GROUP` is a group's columns: 32, 64
//! or 128. A block's codes are parts of bits, the low ones first: nibbles, where byte j holds columns j (low) and j + 16
//! (high); pairs, where byte 4k + j holds columns 8k + j, 8k + j + 16, 8k + j + 4 and 8k + j + 20; and single bits, where bit
//! 2i + h of byte j is column 4i + j + 16h's. So each half of a block is a few shifts and masks of all its bytes at once.

use crate::cpu::device::kernel_args::{KernelArgs, Pod};
use crate::cpu::format::matrix::{AT_ONCE, BLOCK, Matrix, Scaling};
use crate::cpu::format::repacked::OUTPUTS;
use crate::cpu::format::scales::{Scale, widen_scales};
use crate::cpu::simd::vectors::Simd;
use half::{bf16, f16};

/// Codes, with scales and offsets in `T`.
#[derive(Clone, Copy)]
pub struct AffineOf<const BITS: usize, const GROUP: usize, T> {
    codes: *const u8,
    scales: *const T,
}

/// Scales and offsets are halves.
pub type Affine<const BITS: usize, const GROUP: usize> = AffineOf<BITS, GROUP, f16>;
/// Scales and offsets are bfloats.
pub type AffineBf16<const BITS: usize, const GROUP: usize> = AffineOf<BITS, GROUP, bf16>;

/// A byte in each of 16.
const fn in_all(byte: u8) -> u128 {
    u128::from_le_bytes([byte; 16])
}

/// Words side by side.
fn words(words: [u32; 4]) -> u128 {
    words.into_iter().rev().fold(0, |all, word| all << 32 | u128::from(word))
}

/// The codes of half a block, a byte each.
#[inline(always)]
unsafe fn half_block<const BITS: usize>(block: *const u8, high: bool) -> [u8; 16] {
    // SAFETY: the caller promises a block's bytes.
    let word = |index: usize| u32::from_le(unsafe { block.cast::<u32>().add(index).read_unaligned() });
    let (mut codes, mut first, mut shift) = (0, 0, 0);
    if BITS & 4 != 0 {
        let nibbles = words([word(0), word(1), word(2), word(3)]) >> (4 * u32::from(high));
        (codes, first, shift) = (nibbles & in_all(15), 4, 4);
    }
    if BITS & 2 != 0 {
        let (a, b) = (word(first), word(first + 1));
        let pairs = words([a, a >> 4, b, b >> 4]) >> (2 * u32::from(high));
        codes |= (pairs & in_all(3)) << shift;
        (first, shift) = (first + 2, shift + 2);
    }
    if BITS & 1 != 0 {
        let a = word(first);
        let singles = words([a, a >> 2, a >> 4, a >> 6]) >> u32::from(high);
        codes |= (singles & in_all(1)) << shift;
    }
    codes.to_le_bytes()
}

/// Codes `part * LANES ..` of a block.
#[inline(always)]
pub(crate) unsafe fn codes<S: Simd, const BITS: usize>(from: *const u8, block: usize, part: usize) -> S::V {
    let (codes, column) = (from.wrapping_add(block * BITS * BLOCK / 8), part * S::LANES);
    // SAFETY: the caller's promise.
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

/// What [`signed_codes`] lack.
pub(crate) const fn lacking<const BITS: usize>() -> i32 {
    if BITS == 8 { 128 } else { 0 }
}

/// The codes of a block; of 8 bits, less 128.
#[inline(always)]
pub(crate) unsafe fn signed_codes<const BITS: usize>(from: *const u8, block: usize) -> [i8; BLOCK] {
    let codes = from.wrapping_add(block * BITS * BLOCK / 8);
    // SAFETY: the caller's promise.
    unsafe {
        if BITS == 8 {
            return codes.cast::<[u8; BLOCK]>().read().map(|code| (code ^ 128).cast_signed());
        }
        let halves = [half_block::<BITS>(codes, false), half_block::<BITS>(codes, true)];
        std::array::from_fn(|column| halves[column / 16][column % 16].cast_signed())
    }
}

/// Where the scales of a strip's outputs begin for a block's group of so many columns; their offsets follow.
#[inline(always)]
unsafe fn strip_group<const GROUP: usize, T>(scales: *const T, block: usize) -> *const T {
    // SAFETY: the caller's promise.
    unsafe { scales.add(block / (GROUP / BLOCK) * 2 * OUTPUTS) }
}

impl<const BITS: usize, const GROUP: usize, T: Scale + Pod> Matrix for AffineOf<BITS, GROUP, T> {
    const SCALING: Scaling = Scaling::Offset;
    const GROUP: usize = GROUP / BLOCK;
    const LACKING: Option<i32> = Some(lacking::<BITS>());
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
        // SAFETY: the caller's promise.
        unsafe { codes::<S, BITS>(self.codes, block, part) }
    }

    #[inline(always)]
    unsafe fn codes(self, block: usize) -> [i8; BLOCK] {
        // SAFETY: the caller's promise.
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
        // SAFETY: the caller's promise.
        unsafe {
            let scale = strip_group::<GROUP, T>(self.scales, block).add(output);
            [scale.read().widened(), scale.add(OUTPUTS).read().widened()]
        }
    }

    #[inline(always)]
    unsafe fn strip_scales<S: Simd>(self, block: usize, part: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { T::load::<S>(strip_group::<GROUP, T>(self.scales, block).add(part * S::LANES)) }
    }

    #[inline(always)]
    unsafe fn strip_offsets<S: Simd>(self, block: usize, part: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { T::load::<S>(strip_group::<GROUP, T>(self.scales, block).add(OUTPUTS + part * S::LANES)) }
    }

    #[inline(always)]
    unsafe fn prefetch<S: Simd>(self, block: usize) {
        // SAFETY: the caller's promise.
        unsafe { S::prefetch(self.codes.wrapping_add(block * BITS * BLOCK / 8)) }
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, _half: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { T::splat::<S>(self.scales.add(block / <Self as Matrix>::GROUP * 2)) }
    }

    #[inline(always)]
    unsafe fn offset<S: Simd>(self, block: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { T::splat::<S>(self.scales.add(block / <Self as Matrix>::GROUP * 2 + 1)) }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, group: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        // SAFETY: the caller's promise.
        unsafe { widen_scales::<S, T, { 2 * AT_ONCE }>(self.scales.add(2 * group), 2 * count, to) }
    }
}
