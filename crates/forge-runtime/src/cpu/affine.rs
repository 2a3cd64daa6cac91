//! Formats of unsigned codes whose groups have a scale and an offset: value = code * scale + offset.
//!
//! A group's scale and offset lie side by side. `GROUP` is its columns: 32, 64 or 128.

use super::call::Call;
use super::formats::{AT_ONCE, BLOCK, Matrix, widen_scales};
use super::simd::Simd;
use half::f16;

/// Codes of 8 bits.
#[derive(Clone, Copy)]
pub struct Affine8<const GROUP: usize> {
    codes: *const u8,
    scales: *const f16,
}

/// Codes of 4 bits. Byte j of a block's 16 holds columns j (low) and j + 16 (high).
#[derive(Clone, Copy)]
pub struct Affine4<const GROUP: usize> {
    codes: *const u8,
    scales: *const f16,
}

macro_rules! affine {
    ($name:ident, $bytes:expr, |$codes:ident, $column:ident| $load:expr) => {
        impl<const GROUP: usize> Matrix for $name<GROUP> {
            const SCALED: bool = true;
            const OFFSET: bool = true;
            const GROUP: usize = GROUP / BLOCK;

            fn find(call: &Call<'_>, weight: &str, rows: usize, blocks: usize) -> Self {
                let groups = rows * blocks / <Self as Matrix>::GROUP;
                $name {
                    codes: call.input::<u8>(&format!("{weight}_codes"), rows * blocks * $bytes).as_ptr(),
                    scales: call.input::<f16>(&format!("{weight}_scales"), 2 * groups).as_ptr(),
                }
            }

            #[inline(always)]
            unsafe fn vector<S: Simd>(self, block: usize, part: usize) -> S::V {
                let ($codes, $column) = (self.codes.wrapping_add(block * $bytes), part * S::LANES);
                // SAFETY: the caller's promise.
                unsafe { $load }
            }

            #[inline(always)]
            unsafe fn prefetch<S: Simd>(self, block: usize) {
                // SAFETY: the caller's promise.
                unsafe { S::prefetch(self.codes.wrapping_add(block * $bytes)) }
            }

            #[inline(always)]
            unsafe fn scale<S: Simd>(self, block: usize) -> S::V {
                // SAFETY: the caller's promise.
                unsafe { S::splat_f16(self.scales.add(block / <Self as Matrix>::GROUP * 2)) }
            }

            #[inline(always)]
            unsafe fn offset<S: Simd>(self, block: usize) -> S::V {
                // SAFETY: the caller's promise.
                unsafe { S::splat_f16(self.scales.add(block / <Self as Matrix>::GROUP * 2 + 1)) }
            }

            #[inline(always)]
            unsafe fn scales<S: Simd>(self, group: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
                // SAFETY: the caller's promise.
                unsafe { widen_scales::<S, { 2 * AT_ONCE }>(self.scales.add(2 * group), 2 * count, to) }
            }
        }
    };
}

affine!(Affine8, BLOCK, |codes, column| S::load_u8(codes.add(column)));
affine!(Affine4, BLOCK / 2, |codes, column| S::load_u4(codes.add(column % 16), column >= 16));
