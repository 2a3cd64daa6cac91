//! Group scales in their stored type.

use crate::cpu::format::matrix::AT_ONCE;
use crate::cpu::simd::vectors::Simd;
use half::{bf16, f16};

/// A storage type of scales.
pub(crate) trait Scale: Copy {
    /// Zero.
    const ZERO: Self;

    /// Loads `LANES` scales as f32.
    unsafe fn load<S: Simd>(from: *const Self) -> S::V;

    /// Loads one scale as f32 into all lanes.
    unsafe fn splat<S: Simd>(from: *const Self) -> S::V;

    /// The scale as f32.
    fn as_f32(self) -> f32;
}

impl Scale for f16 {
    const ZERO: f16 = f16::ZERO;

    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const f16) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::load_f16(from) }
    }

    #[inline(always)]
    unsafe fn splat<S: Simd>(from: *const f16) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::splat_f16(from) }
    }

    #[inline(always)]
    fn as_f32(self) -> f32 {
        self.to_f32()
    }
}

impl Scale for bf16 {
    const ZERO: bf16 = bf16::ZERO;

    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const bf16) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::load_bf16(from) }
    }

    #[inline(always)]
    unsafe fn splat<S: Simd>(from: *const bf16) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::splat(from.read_unaligned().to_f32()) }
    }

    #[inline(always)]
    fn as_f32(self) -> f32 {
        self.to_f32()
    }
}

/// Converts `count <= N` scales to f32; `N` is a multiple of 16.
#[inline(always)]
pub(crate) unsafe fn widen_scales<S: Simd, T: Scale, const N: usize>(
    from: *const T,
    count: usize,
    to: &mut [f32; 2 * AT_ONCE],
) {
    // SAFETY: the caller passes `count` scales, and both arrays hold whole vectors.
    unsafe {
        let mut some = [T::ZERO; N];
        let from = if count == N {
            from
        } else {
            std::ptr::copy_nonoverlapping(from, some.as_mut_ptr(), count.min(N));
            some.as_ptr()
        };
        for i in (0..N).step_by(S::LANES) {
            S::store(to.as_mut_ptr().add(i), T::load::<S>(from.add(i)));
        }
    }
}
