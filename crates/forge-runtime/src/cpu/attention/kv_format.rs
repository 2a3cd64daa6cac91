//! Records of a cache: the numbers of a head at a position, as they are stored.

use crate::cpu::format::matrix::BLOCK;
use crate::cpu::simd::vectors::Simd;
use half::f16;
use half::slice::HalfFloatSliceExt;

/// How a cache keeps the numbers of a head: as a record of these elements for each position.
pub(crate) trait KvElement: crate::cpu::device::kernel_args::Pod {
    /// Elements of a record of a head of so many channels.
    fn record(width: usize) -> usize {
        width
    }

    /// `LANES` numbers of a record, from `channel`, which is a multiple of `LANES`.
    unsafe fn load<S: Simd>(record: *const Self, width: usize, channel: usize) -> S::V;

    /// The same of a record that ends before: zeros past the width.
    unsafe fn load_last<S: Simd>(record: *const Self, width: usize, channel: usize) -> S::V;

    /// Makes a record of a head's numbers, each rounded to the nearest.
    fn store(record: &mut [Self], from: &[f32]);
}

/// `count < LANES` numbers as they are stored, and zeros.
#[inline(always)]
unsafe fn some<T: Copy>(from: *const T, count: usize, zero: T) -> [T; 16] {
    let mut some = [zero; 16];
    // SAFETY: the caller promises `count` numbers, and `some` has room for any vector.
    unsafe { std::ptr::copy_nonoverlapping(from, some.as_mut_ptr(), count.min(16)) };
    some
}

impl KvElement for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(record: *const f32, _width: usize, channel: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::load(record.add(channel)) }
    }

    #[inline(always)]
    unsafe fn load_last<S: Simd>(record: *const f32, width: usize, channel: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::load(some(record.add(channel), width - channel, 0.0).as_ptr()) }
    }

    fn store(record: &mut [f32], from: &[f32]) {
        record.copy_from_slice(from);
    }
}

impl KvElement for f16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(record: *const f16, _width: usize, channel: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::load_f16(record.add(channel)) }
    }

    #[inline(always)]
    unsafe fn load_last<S: Simd>(record: *const f16, width: usize, channel: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::load_f16(some(record.add(channel), width - channel, f16::ZERO).as_ptr()) }
    }

    fn store(record: &mut [f16], from: &[f32]) {
        record.convert_from_f32_slice(from);
    }
}

/// [`Format::Q8_0`](crate::cpu::format::matrix::Format::Q8_0): a code of a byte for each number, and after them a half for each 32: their scale. Widths are
/// multiples of 32.
impl KvElement for u8 {
    fn record(width: usize) -> usize {
        width + width / BLOCK * size_of::<f16>()
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(record: *const u8, width: usize, channel: usize) -> S::V {
        // SAFETY: the caller's promise; `LANES` divides 16, so they have one scale, and loads take any alignment.
        unsafe {
            let scale = S::splat_f16(record.add(width + channel / BLOCK * size_of::<f16>()).cast());
            S::mul(scale, S::load_i8(record.add(channel).cast()))
        }
    }

    #[inline(always)]
    unsafe fn load_last<S: Simd>(record: *const u8, width: usize, channel: usize) -> S::V {
        // No record of whole blocks ends within a vector.
        // SAFETY: the caller's promise.
        unsafe { Self::load::<S>(record, width, channel) }
    }

    fn store(record: &mut [u8], from: &[f32]) {
        let (codes, scales) = record.split_at_mut(from.len());
        let blocks = from.chunks_exact(BLOCK).zip(codes.chunks_exact_mut(BLOCK));
        for ((from, codes), to) in blocks.zip(scales.chunks_exact_mut(size_of::<f16>())) {
            let largest = from.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
            let scale = f16::from_f32(largest / 127.0);
            let step = scale.to_f32();
            to.copy_from_slice(&scale.to_ne_bytes());
            for (code, x) in codes.iter_mut().zip(from) {
                // Zeros have a scale of 0, and whatever they are divided by they stay zeros.
                let rounded = (x / step.max(f32::MIN_POSITIVE)).round_ties_even().clamp(-127.0, 127.0);
                *code = (rounded as i8).cast_unsigned();
            }
        }
    }
}
