//! Floats of 4 bits, 32 to an exponent of one byte: value = float * 2^(exponent - 127).
//!
//! A float has its sign in the highest bit; the others, from 0 to 7, are 0, 0.5, 1, 1.5, 2, 3, 4 and 6. Byte j of a block's 16 holds
//! columns j (low) and j + 16 (high).

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::format::matrix::{AT_ONCE, BLOCK, Matrix, Scaling};
use crate::cpu::simd::vectors::Simd;

/// Floats and exponents.
#[derive(Clone, Copy)]
pub struct Mxfp4 {
    codes: *const u8,
    scales: *const u8,
}

/// The scale of an exponent. The compiler refuses 255, which is no number.
#[inline(always)]
fn power(exponent: u8) -> f32 {
    // Below the normal numbers there is no exponent: 2^-127 is the highest bit of the fraction.
    f32::from_bits(if exponent == 0 { 1 << 22 } else { u32::from(exponent) << 23 })
}

impl Matrix for Mxfp4 {
    const SCALING: Scaling = Scaling::Scale;
    const PARTS: usize = 1;

    fn find(call: &KernelArgs<'_>, weight: &str, rows: usize, blocks: usize) -> Self {
        Mxfp4 {
            codes: call.input::<u8>(&format!("{weight}_codes"), rows * blocks * (BLOCK / 2)).as_ptr(),
            scales: call.input::<u8>(&format!("{weight}_scales"), rows * blocks).as_ptr(),
        }
    }

    fn after(self, bytes: usize) -> Self {
        let (codes, scales) = (self.codes.wrapping_byte_add(bytes), self.scales.wrapping_byte_add(bytes));
        Mxfp4 { codes, scales }
    }

    #[inline(always)]
    unsafe fn vector<S: Simd>(self, block: usize, part: usize) -> S::V {
        let column = part * S::LANES;
        // SAFETY: the caller's promise.
        unsafe { S::load_floats4(self.codes.add(block * (BLOCK / 2) + column % 16), column >= 16) }
    }

    #[inline(always)]
    unsafe fn prefetch<S: Simd>(self, block: usize) {
        // SAFETY: the caller's promise.
        unsafe { S::prefetch(self.codes.wrapping_add(block * (BLOCK / 2))) }
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, _half: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::splat(power(self.scales.add(block).read())) }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, group: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        for (i, to) in to.iter_mut().enumerate().take(count) {
            // SAFETY: the caller promises `count` scales.
            *to = power(unsafe { self.scales.add(group + i).read() });
        }
    }
}
