//! MXFP4: 4-bit floats with a one-byte exponent per 32 columns, value = float * 2^(exponent - 127).
//!
//! The highest bit of a float is its sign. The other three select 0, 0.5, 1, 1.5, 2, 3, 4 or 6. Byte j of a
//! block's 16 bytes holds columns j (low nibble) and j + 16 (high nibble).

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::format::matrix::{AT_ONCE, BLOCK, Matrix, Scaling};
use crate::cpu::simd::vectors::Simd;

/// An MXFP4 matrix.
#[derive(Clone, Copy)]
pub struct Mxfp4 {
    codes: *const u8,
    scales: *const u8,
}

/// The scale for an exponent. The compiler rejects 255, which is NaN.
#[inline(always)]
fn power(exponent: u8) -> f32 {
    // 2^-127 is subnormal: the highest fraction bit.
    f32::from_bits(if exponent == 0 { 1 << 22 } else { u32::from(exponent) << 23 })
}

impl Matrix for Mxfp4 {
    const SCALING: Scaling = Scaling::Scale;
    const BF16_TERMS: usize = 1;

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
        // SAFETY: the caller's contract.
        unsafe { S::load_floats4(self.codes.add(block * (BLOCK / 2) + column % 16), column >= 16) }
    }

    #[inline(always)]
    unsafe fn prefetch<S: Simd>(self, block: usize) {
        // SAFETY: the caller's contract.
        unsafe { S::prefetch(self.codes.wrapping_add(block * (BLOCK / 2))) }
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, _half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::splat(power(self.scales.add(block).read())) }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, group: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        for (i, to) in to.iter_mut().enumerate().take(count) {
            // SAFETY: the caller ensures that there are `count` scales.
            *to = power(unsafe { self.scales.add(group + i).read() });
        }
    }
}
