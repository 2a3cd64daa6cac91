//! Element formats of the KV cache: the elements of one head at one position.

use crate::cpu::format::matrix::BLOCK;
use crate::cpu::simd::vectors::Simd;
use half::f16;
use half::slice::HalfFloatSliceExt;

/// An element type of the KV cache. A head at one position is a run of such elements.
pub(crate) trait KvElement: crate::cpu::device::kernel_args::Pod {
    /// Elements of a head at one position, for a head dimension of `width`.
    fn stride(width: usize) -> usize {
        width
    }

    /// Loads `LANES` channels of a head as f32; `channel` is a multiple of `LANES`.
    unsafe fn load<S: Simd>(head: *const Self, width: usize, channel: usize) -> S::V;

    /// Loads the last, partial vector of a head, padded with zeros.
    unsafe fn load_last<S: Simd>(head: *const Self, width: usize, channel: usize) -> S::V;

    /// Stores a head, rounding to nearest.
    fn store(head: &mut [Self], from: &[f32]);
}

/// Copies `count < LANES` elements and pads with zeros.
#[inline(always)]
unsafe fn load_padded<T: Copy>(from: *const T, count: usize, zero: T) -> [T; 16] {
    let mut some = [zero; 16];
    // SAFETY: the caller ensures `count` elements, and the array holds any vector.
    unsafe { std::ptr::copy_nonoverlapping(from, some.as_mut_ptr(), count.min(16)) };
    some
}

impl KvElement for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(head: *const f32, _width: usize, channel: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::load(head.add(channel)) }
    }

    #[inline(always)]
    unsafe fn load_last<S: Simd>(head: *const f32, width: usize, channel: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::load(load_padded(head.add(channel), width - channel, 0.0).as_ptr()) }
    }

    fn store(head: &mut [f32], from: &[f32]) {
        head.copy_from_slice(from);
    }
}

impl KvElement for f16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(head: *const f16, _width: usize, channel: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::load_f16(head.add(channel)) }
    }

    #[inline(always)]
    unsafe fn load_last<S: Simd>(head: *const f16, width: usize, channel: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::load_f16(load_padded(head.add(channel), width - channel, f16::ZERO).as_ptr()) }
    }

    fn store(head: &mut [f16], from: &[f32]) {
        head.convert_from_f32_slice(from);
    }
}

/// [`Format::Q8_0`](forge_ops::Format::Q8_0): int8 quants, followed by an f16 scale per 32.
/// Head dimensions are multiples of 32.
impl KvElement for u8 {
    fn stride(width: usize) -> usize {
        width + width / BLOCK * size_of::<f16>()
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(head: *const u8, width: usize, channel: usize) -> S::V {
        // SAFETY: the caller's contract; `LANES` divides 16, so all lanes have one scale, and loads allow any
        // alignment.
        unsafe {
            let scale = S::splat_f16(head.add(width + channel / BLOCK * size_of::<f16>()).cast());
            S::mul(scale, S::load_i8(head.add(channel).cast()))
        }
    }

    #[inline(always)]
    unsafe fn load_last<S: Simd>(head: *const u8, width: usize, channel: usize) -> S::V {
        // SAFETY: the caller's contract; records are whole blocks, so a vector is never partial.
        unsafe { Self::load::<S>(head, width, channel) }
    }

    fn store(head: &mut [u8], from: &[f32]) {
        let (codes, scales) = head.split_at_mut(from.len());
        let blocks = from.chunks_exact(BLOCK).zip(codes.chunks_exact_mut(BLOCK));
        for ((from, codes), to) in blocks.zip(scales.chunks_exact_mut(size_of::<f16>())) {
            let largest = from.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
            let scale = f16::from_f32(largest / 127.0);
            let step = scale.to_f32();
            to.copy_from_slice(&scale.to_ne_bytes());
            for (code, x) in codes.iter_mut().zip(from) {
                // All-zero blocks have the scale 0; any nonzero divisor keeps them zero.
                let rounded = (x / step.max(f32::MIN_POSITIVE)).round_ties_even().clamp(-127.0, 127.0);
                *code = (rounded as i8).cast_unsigned();
            }
        }
    }
}
