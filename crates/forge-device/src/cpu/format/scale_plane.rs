//! [`ScalePlane`]: the plane of a matrix that holds the scales of its groups of columns, and their offsets.
//!
//! In a repacked matrix ([`crate::cpu::format::repacked`]), 16-bit words of 16 rows are adjacent.

use crate::cpu::device::kernel_args::{KernelArgs, Pod};
use crate::cpu::format::matrix::{AT_ONCE, BLOCK, Scaling};
use crate::cpu::format::repacked::OUTPUTS;
use crate::cpu::simd::vectors::Simd;
use half::{bf16, f16};

/// Scales, and offsets where [`Scaling`] has them.
pub(crate) trait ScalePlane: Copy {
    /// How they apply to quants.
    const SCALING: Scaling;
    /// Blocks per group.
    const GROUP: usize = 1;
    /// The number of blocks in a row is a multiple of this.
    const WHOLE: usize = Self::GROUP;
    /// Maximum number of groups of one call of [`scales`](ScalePlane::scales).
    const SCALES_AT_ONCE: usize = AT_ONCE;
    /// Number of bf16 terms that represent each value exactly.
    const BF16_TERMS: usize = 3;

    /// Looks up the plane `<weight>_scales` of a matrix of `blocks` blocks.
    fn find(call: &KernelArgs<'_>, weight: &str, blocks: usize) -> Self;

    /// The plane `bytes` bytes after this one.
    fn after(self, bytes: usize) -> Self;

    /// The scale of a block's group, or of one half of the block, in all lanes.
    unsafe fn scale<S: Simd>(self, block: usize, half: usize) -> S::V;

    /// The offset of a block's group, or of one half of the block, in all lanes.
    #[inline(always)]
    unsafe fn offset<S: Simd>(self, _block: usize, _half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::splat(0.0) }
    }

    /// The scales of `count <= SCALES_AT_ONCE` groups: see
    /// [`Matrix::scales`](crate::cpu::format::matrix::Matrix::scales).
    unsafe fn scales<S: Simd>(self, group: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]);

    /// Scales of `LANES` outputs of a strip, from output `part * LANES` on: of the block's group, or of each half of the
    /// block.
    unsafe fn strip_scales<S: Simd>(self, block: usize, part: usize) -> [S::V; 2];

    /// Offsets in the same order.
    #[inline(always)]
    unsafe fn strip_offsets<S: Simd>(self, _block: usize, _part: usize) -> [S::V; 2] {
        // SAFETY: the caller's contract.
        unsafe { [S::splat(0.0); 2] }
    }
}

/// An f16 scale per block.
#[derive(Clone, Copy)]
pub struct F16Scales(*const f16);

impl ScalePlane for F16Scales {
    const SCALING: Scaling = Scaling::Scale;

    fn find(call: &KernelArgs<'_>, weight: &str, blocks: usize) -> Self {
        F16Scales(call.input::<f16>(&format!("{weight}_scales"), blocks).as_ptr())
    }

    fn after(self, bytes: usize) -> Self {
        F16Scales(self.0.wrapping_byte_add(bytes))
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, _half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::splat_f16(self.0.add(block)) }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, group: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        // SAFETY: the caller's contract.
        unsafe { widen_scales::<S, f16, AT_ONCE>(self.0.add(group), count, to) }
    }

    #[inline(always)]
    unsafe fn strip_scales<S: Simd>(self, block: usize, part: usize) -> [S::V; 2] {
        // SAFETY: the caller's contract.
        unsafe { [S::load_f16(self.0.add(block * OUTPUTS + part * S::LANES)); 2] }
    }
}

/// A scale and an offset of type `T` per `GROUP` columns, adjacent.
#[derive(Clone, Copy)]
pub struct AffineScales<const GROUP: usize, T>(*const T);

impl<const GROUP: usize, T> AffineScales<GROUP, T> {
    /// Address of the scales of a strip's outputs for the group of `block`; the offsets follow.
    #[inline(always)]
    unsafe fn strip(self, block: usize) -> *const T {
        // SAFETY: the caller's contract.
        unsafe { self.0.add(block / (GROUP / BLOCK) * 2 * OUTPUTS) }
    }
}

impl<const GROUP: usize, T: Scale + Pod> ScalePlane for AffineScales<GROUP, T> {
    const SCALING: Scaling = Scaling::Offset;
    const GROUP: usize = GROUP / BLOCK;

    fn find(call: &KernelArgs<'_>, weight: &str, blocks: usize) -> Self {
        AffineScales(call.input::<T>(&format!("{weight}_scales"), 2 * (blocks / (GROUP / BLOCK))).as_ptr())
    }

    fn after(self, bytes: usize) -> Self {
        AffineScales(self.0.wrapping_byte_add(bytes))
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, _half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { T::splat::<S>(self.0.add(block / (GROUP / BLOCK) * 2)) }
    }

    #[inline(always)]
    unsafe fn offset<S: Simd>(self, block: usize, _half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { T::splat::<S>(self.0.add(block / (GROUP / BLOCK) * 2 + 1)) }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, group: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        // SAFETY: the caller's contract.
        unsafe { widen_scales::<S, T, { 2 * AT_ONCE }>(self.0.add(2 * group), 2 * count, to) }
    }

    #[inline(always)]
    unsafe fn strip_scales<S: Simd>(self, block: usize, part: usize) -> [S::V; 2] {
        // SAFETY: the caller's contract.
        unsafe { [T::load::<S>(self.strip(block).add(part * S::LANES)); 2] }
    }

    #[inline(always)]
    unsafe fn strip_offsets<S: Simd>(self, block: usize, part: usize) -> [S::V; 2] {
        // SAFETY: the caller's contract.
        unsafe { [T::load::<S>(self.strip(block).add(OUTPUTS + part * S::LANES)); 2] }
    }
}

/// A storage type of scales.
pub(crate) trait Scale: Copy {
    /// Zero.
    const ZERO: Self;

    /// Loads `LANES` scales as f32.
    unsafe fn load<S: Simd>(from: *const Self) -> S::V;

    /// Loads one scale as f32 into all lanes.
    unsafe fn splat<S: Simd>(from: *const Self) -> S::V;
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
