//! Quantized matrices: a plane of quants and a plane of scales. A number format is a pair of both.

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::format::float4::{DoubledFloats, Mxfp4Scales, Nvfp4Scales};
use crate::cpu::format::k_quants::{
    BlockScalesAndMins, HalfBlockScales, HalfBlockScalesAndMins, SignedBlockScales,
};
use crate::cpu::format::matrix::{AT_ONCE, BLOCK, Matrix, Scaling};
use crate::cpu::format::quant_plane::{Bits, Bytes, Entries, Indices, QuantPlane};
use crate::cpu::format::scale_plane::{AffineScales, F16Scales, ScalePlane};
use crate::cpu::simd::vectors::Simd;
use forge_ops::IQ4_ENTRIES;
use half::{bf16, f16};

/// A matrix of quants `Q` with scales `T`.
#[derive(Clone, Copy)]
pub struct Quantized<Q, T> {
    codes: Q,
    scales: T,
}

/// ggml's Q8_0: signed bytes.
pub type Q8_0 = Quantized<Bytes, F16Scales>;
/// ggml's Q5_0.
pub type Q5_0 = Quantized<Bits<5, -16>, F16Scales>;
/// ggml's Q4_0.
pub type Q4_0 = Quantized<Bits<4, -8>, F16Scales>;
/// 6-bit K-quant.
pub type Q6K = Quantized<Bits<6, -32>, HalfBlockScales>;
/// 5-bit K-quant.
pub type Q5K = Quantized<Bits<5, 0>, BlockScalesAndMins>;
/// 4-bit K-quant.
pub type Q4K = Quantized<Bits<4, 0>, BlockScalesAndMins>;
/// 3-bit K-quant.
pub type Q3K = Quantized<Bits<3, -4>, HalfBlockScales>;
/// 2-bit K-quant.
pub type Q2K = Quantized<Bits<2, 0>, HalfBlockScalesAndMins>;
/// ggml's IQ4_NL.
pub type Iq4Nl = Quantized<Indices<Iq4>, F16Scales>;
/// ggml's IQ4_XS.
pub type Iq4Xs = Quantized<Indices<Iq4>, SignedBlockScales>;
/// MXFP4.
pub type Mxfp4 = Quantized<Indices<DoubledFloats>, Mxfp4Scales>;
/// NVFP4.
pub type Nvfp4 = Quantized<Indices<DoubledFloats>, Nvfp4Scales>;
/// Affine format with f16 scales and offsets.
pub type Affine<const BITS: usize, const GROUP: usize> = Quantized<Bits<BITS, 0>, AffineScales<GROUP, f16>>;
/// Affine format with bf16 scales and offsets.
pub type AffineBf16<const BITS: usize, const GROUP: usize> =
    Quantized<Bits<BITS, 0>, AffineScales<GROUP, bf16>>;

/// The codebook of ggml's IQ4 formats.
#[derive(Clone, Copy)]
pub struct Iq4;

impl Entries for Iq4 {
    const ENTRIES: [i8; 16] = IQ4_ENTRIES;
}

impl<Q: QuantPlane, T: ScalePlane> Matrix for Quantized<Q, T> {
    const SCALING: Scaling = T::SCALING;
    const GROUP: usize = T::GROUP;
    const WHOLE: usize = T::WHOLE;
    const SCALES_AT_ONCE: usize = T::SCALES_AT_ONCE;
    const BF16_TERMS: usize = T::BF16_TERMS;
    const BITS: usize = Q::BITS;
    const QUANT_OFFSET: i32 = Q::OFFSET;
    const SMALL: bool = Q::SMALL;

    fn find(call: &KernelArgs<'_>, weight: &str, rows: usize, blocks: usize) -> Self {
        let codes = call.input::<u8>(&format!("{weight}_codes"), rows * blocks * Q::BITS * BLOCK / 8);
        Quantized { codes: Q::at(codes.as_ptr()), scales: T::find(call, weight, rows * blocks) }
    }

    fn after(self, bytes: usize) -> Self {
        let codes = Q::at(self.codes.start().wrapping_add(bytes));
        Quantized { codes, scales: self.scales.after(bytes) }
    }

    #[inline(always)]
    unsafe fn vector<S: Simd>(self, block: usize, part: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { self.codes.vector::<S>(block, part) }
    }

    #[inline(always)]
    unsafe fn prefetch<S: Simd>(self, block: usize) {
        // SAFETY: the caller's contract.
        unsafe { S::prefetch(self.codes.block(block)) }
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { self.scales.scale::<S>(block, half) }
    }

    #[inline(always)]
    unsafe fn offset<S: Simd>(self, block: usize, half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { self.scales.offset::<S>(block, half) }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, group: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        // SAFETY: the caller's contract.
        unsafe { self.scales.scales::<S>(group, count, to) }
    }

    #[inline(always)]
    unsafe fn codes(self, block: usize) -> [i8; BLOCK] {
        // SAFETY: the caller's contract.
        unsafe { self.codes.codes(block) }
    }

    #[inline(always)]
    fn raised<S: Simd>() -> i32 {
        Q::raised::<S>()
    }

    #[inline(always)]
    unsafe fn row_codes<S: Simd>(self, block: usize) -> S::Codes {
        // SAFETY: the caller's contract.
        unsafe { self.codes.row_codes::<S>(block) }
    }

    #[inline(always)]
    fn codes_at(self, block: usize) -> *const u8 {
        self.codes.block(block)
    }

    #[inline(always)]
    unsafe fn strip_codes<S: Simd>(self, block: usize, pair: usize, part: usize) -> [S::Codes; 2] {
        // SAFETY: the caller's contract.
        unsafe { self.codes.strip_codes::<S>(block, pair, part) }
    }

    #[inline(always)]
    unsafe fn strip_scales<S: Simd>(self, block: usize, part: usize) -> [S::V; 2] {
        // SAFETY: the caller's contract.
        unsafe { self.scales.strip_scales::<S>(block, part) }
    }

    #[inline(always)]
    unsafe fn strip_offsets<S: Simd>(self, block: usize, part: usize) -> [S::V; 2] {
        // SAFETY: the caller's contract.
        unsafe { self.scales.strip_offsets::<S>(block, part) }
    }
}
