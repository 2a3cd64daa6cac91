//! NVFP4: 4-bit floats (e2m1) with an 8-bit scale (e4m3) per 16 columns, value = float * (factor * scale).
//!
//! Floats are ordered as in MXFP4. A group of 128 columns has an f32 factor, then its 8 scales, which are not
//! negative. Scales are loaded divided by 256, and the byte 127 as 480.

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::format::matrix::{AT_ONCE, BLOCK, Matrix, Scaling};
use crate::cpu::simd::vectors::Simd;
use half::f16;

/// Blocks of a group.
const BLOCKS: usize = 4;
/// Scales of a group.
const SCALES: usize = 2 * BLOCKS;
/// Bytes of a group's factor and scales.
const BYTES: usize = 4 + SCALES;
/// Factor of scales: loaded ones are divided by it.
const FACTOR: f32 = 256.0;

/// An NVFP4 matrix.
#[derive(Clone, Copy)]
pub struct Nvfp4 {
    codes: *const u8,
    scales: *const u8,
}

impl Nvfp4 {
    /// The factor of a block's group times 256, and the address of the block's scales.
    #[inline(always)]
    unsafe fn parts(self, block: usize) -> (f32, *const u8) {
        // SAFETY: the caller's contract.
        unsafe {
            let group = self.scales.add(block / BLOCKS * BYTES);
            (group.cast::<f32>().read_unaligned() * FACTOR, group.add(4 + block % BLOCKS * 2))
        }
    }
}

impl Matrix for Nvfp4 {
    const SCALING: Scaling = Scaling::HalfBlockScale;
    const WHOLE: usize = BLOCKS;

    fn find(call: &KernelArgs<'_>, weight: &str, rows: usize, blocks: usize) -> Self {
        let groups = rows * blocks / BLOCKS;
        Nvfp4 {
            codes: call.input::<u8>(&format!("{weight}_codes"), rows * blocks * (BLOCK / 2)).as_ptr(),
            scales: call.input::<u8>(&format!("{weight}_scales"), groups * BYTES).as_ptr(),
        }
    }

    fn after(self, bytes: usize) -> Self {
        let (codes, scales) = (self.codes.wrapping_byte_add(bytes), self.scales.wrapping_byte_add(bytes));
        Nvfp4 { codes, scales }
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
    unsafe fn scale<S: Simd>(self, block: usize, half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe {
            let (factor, scales) = self.parts(block);
            S::splat(factor * f16::from_bits(u16::from(scales.add(half).read()) << 7).to_f32())
        }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, group: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        let (mut factors, mut bytes) = ([0.0; 2 * AT_ONCE], [0; 2 * AT_ONCE]);
        let groups = factors.chunks_exact_mut(SCALES).zip(bytes.as_chunks_mut::<SCALES>().0);
        // SAFETY: the caller's contract; rows and requested ranges are whole groups.
        unsafe {
            for (index, (factors, bytes)) in groups.enumerate().take(count / BLOCKS) {
                let (factor, scales) = self.parts(group + index * BLOCKS);
                factors.fill(factor);
                *bytes = scales.cast::<[u8; SCALES]>().read();
            }
            for i in (0..2 * AT_ONCE).step_by(S::LANES) {
                let scales = S::mul(S::load_floats8(&bytes[i]), S::load(&factors[i]));
                S::store(&mut to[i], scales);
            }
        }
    }
}
