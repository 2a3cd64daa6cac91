//! Formats of 4-bit floats (e2m1): MXFP4 and NVFP4. Their codebook is doubled, and their scales are halved.

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::format::matrix::{AT_ONCE, Scaling};
use crate::cpu::format::quant_plane::Entries;
use crate::cpu::format::repacked::OUTPUTS;
use crate::cpu::format::scale_plane::ScalePlane;
use crate::cpu::simd::vectors::Simd;
use half::f16;

/// The 4-bit floats (a sign, then 0, 0.5, 1, 1.5, 2, 3, 4 or 6) times two.
#[derive(Clone, Copy)]
pub struct DoubledFloats;

impl Entries for DoubledFloats {
    const ENTRIES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
}

/// Scales of MXFP4: 2^(exponent - 127), with a one-byte exponent per block.
#[derive(Clone, Copy)]
pub struct Mxfp4Scales(*const u8);

/// 2^(exponent - 128). The compiler rejects 255, which is NaN.
#[inline(always)]
fn half_power(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        // Subnormal: the second highest and the highest fraction bit.
        0 | 1 => 1_u32 << (21 + exponent),
        _ => (u32::from(exponent) - 1) << 23,
    })
}

impl ScalePlane for Mxfp4Scales {
    const SCALING: Scaling = Scaling::Scale;
    const BF16_TERMS: usize = 1;

    fn find(call: &KernelArgs<'_>, weight: &str, blocks: usize) -> Self {
        Mxfp4Scales(call.input::<u8>(&format!("{weight}_scales"), blocks).as_ptr())
    }

    fn after(self, bytes: usize) -> Self {
        Mxfp4Scales(self.0.wrapping_byte_add(bytes))
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, _half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::splat(half_power(self.0.add(block).read())) }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, block: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        for (i, to) in to.iter_mut().enumerate().take(count) {
            // SAFETY: the caller ensures that there are `count` scales.
            *to = half_power(unsafe { self.0.add(block + i).read() });
        }
    }

    /// Repacked rows have an even number of blocks.
    #[inline(always)]
    unsafe fn strip_scales<S: Simd>(self, block: usize, part: usize) -> [S::V; 2] {
        let mut scales = [0.0; OUTPUTS];
        // SAFETY: the caller's contract.
        unsafe {
            let first = self.0.add(block / 2 * 2 * OUTPUTS + 2 * part * S::LANES + block % 2);
            for (lane, scale) in scales.iter_mut().enumerate().take(S::LANES) {
                *scale = half_power(first.add(2 * lane).read());
            }
            [S::load(scales.as_ptr()); 2]
        }
    }
}

/// Scales of NVFP4: factor * s, with an f32 factor per 128 columns and an 8-bit float s (e4m3) per 16. They are not
/// negative; the byte 127 is 480.
#[derive(Clone, Copy)]
pub struct Nvfp4Scales(*const u8);

impl Nvfp4Scales {
    /// Blocks of a group.
    const BLOCKS: usize = 4;
    /// Scales of a group.
    const SCALES: usize = 2 * Self::BLOCKS;
    /// Bytes of a group's factor and scales.
    const BYTES: usize = 4 + Self::SCALES;
    /// Factor of loaded scales, which are divided by 256, for doubled entries.
    const FACTOR: f32 = 256.0 / 2.0;

    /// The factor of a block's group for loaded scales, and the address of the block's scales.
    #[inline(always)]
    unsafe fn parts(self, block: usize) -> (f32, *const u8) {
        // SAFETY: the caller's contract.
        unsafe {
            let group = self.0.add(block / Self::BLOCKS * Self::BYTES);
            let factor = group.cast::<f32>().read_unaligned() * Self::FACTOR;
            (factor, group.add(4 + block % Self::BLOCKS * 2))
        }
    }
}

impl ScalePlane for Nvfp4Scales {
    const SCALING: Scaling = Scaling::HalfBlockScale;
    const WHOLE: usize = Self::BLOCKS;

    fn find(call: &KernelArgs<'_>, weight: &str, blocks: usize) -> Self {
        let bytes = blocks / Self::BLOCKS * Self::BYTES;
        Nvfp4Scales(call.input::<u8>(&format!("{weight}_scales"), bytes).as_ptr())
    }

    fn after(self, bytes: usize) -> Self {
        Nvfp4Scales(self.0.wrapping_byte_add(bytes))
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
    unsafe fn scales<S: Simd>(self, block: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        const SCALES: usize = Nvfp4Scales::SCALES;
        let (mut factors, mut bytes) = ([0.0; 2 * AT_ONCE], [0; 2 * AT_ONCE]);
        let groups = factors.chunks_exact_mut(SCALES).zip(bytes.as_chunks_mut::<SCALES>().0);
        // SAFETY: the caller's contract; rows and requested ranges are whole groups.
        unsafe {
            for (index, (factors, bytes)) in groups.enumerate().take(count / Self::BLOCKS) {
                let (factor, scales) = self.parts(block + index * Self::BLOCKS);
                factors.fill(factor);
                *bytes = scales.cast::<[u8; SCALES]>().read();
            }
            for i in (0..2 * AT_ONCE).step_by(S::LANES) {
                let scales = S::mul(S::load_floats8(&bytes[i]), S::load(&factors[i]));
                S::store(&mut to[i], scales);
            }
        }
    }

    #[inline(always)]
    unsafe fn strip_scales<S: Simd>(self, block: usize, part: usize) -> [S::V; 2] {
        let (mut factors, mut bytes) = ([0.0; OUTPUTS], [[0; OUTPUTS]; 2]);
        // SAFETY: the caller's contract.
        unsafe {
            let group = self.0.add(block / Self::BLOCKS * Self::BYTES * OUTPUTS);
            // The lower 16 bits of all factors, then the upper ones.
            let factor = group.cast::<u16>().add(part * S::LANES);
            let pairs = group.add((4 + block % Self::BLOCKS * 2) * OUTPUTS + 2 * part * S::LANES);
            for lane in 0..S::LANES {
                let [low, high] =
                    [factor.add(lane), factor.add(OUTPUTS + lane)].map(|half| u32::from(half.read()));
                factors[lane] = f32::from_bits(high << 16 | low) * Self::FACTOR;
                (bytes[0][lane], bytes[1][lane]) =
                    (pairs.add(2 * lane).read(), pairs.add(2 * lane + 1).read());
            }
            let factors = S::load(factors.as_ptr());
            [
                S::mul(S::load_floats8(bytes[0].as_ptr()), factors),
                S::mul(S::load_floats8(bytes[1].as_ptr()), factors),
            ]
        }
    }
}
