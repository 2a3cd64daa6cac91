//! FP8: 8-bit floats (e4m3) with an f32 scale per 128 columns, value = float * scale.

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::format::matrix::{AT_ONCE, BLOCK, Matrix, Scaling};
use crate::cpu::simd::vectors::Simd;

/// Blocks of a group.
const BLOCKS: usize = 4;
/// Factor of scales: loaded floats are divided by it.
const FACTOR: f32 = 256.0;

/// An FP8 matrix.
#[derive(Clone, Copy)]
pub struct Fp8 {
    codes: *const u8,
    scales: *const f32,
}

impl Matrix for Fp8 {
    const SCALING: Scaling = Scaling::Scale;
    const GROUP: usize = BLOCKS;

    fn find(call: &KernelArgs<'_>, weight: &str, rows: usize, blocks: usize) -> Self {
        Fp8 {
            codes: call.input::<u8>(&format!("{weight}_codes"), rows * blocks * BLOCK).as_ptr(),
            scales: call.input::<f32>(&format!("{weight}_scales"), rows * blocks / BLOCKS).as_ptr(),
        }
    }

    fn after(self, bytes: usize) -> Self {
        let (codes, scales) = (self.codes.wrapping_byte_add(bytes), self.scales.wrapping_byte_add(bytes));
        Fp8 { codes, scales }
    }

    #[inline(always)]
    unsafe fn vector<S: Simd>(self, block: usize, part: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::load_floats8(self.codes.add(block * BLOCK + part * S::LANES)) }
    }

    #[inline(always)]
    unsafe fn prefetch<S: Simd>(self, block: usize) {
        // SAFETY: the caller's contract.
        unsafe { S::prefetch(self.codes.wrapping_add(block * BLOCK)) }
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, _half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::splat(self.scales.add(block / BLOCKS).read() * FACTOR) }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, group: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        for (i, to) in to.iter_mut().enumerate().take(count) {
            // SAFETY: the caller ensures that there are `count` scales.
            *to = unsafe { self.scales.add(group + i).read() } * FACTOR;
        }
    }
}
