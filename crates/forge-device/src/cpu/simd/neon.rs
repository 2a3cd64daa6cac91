//! NEON vectors: eight lanes in two registers of four.
//!
//! Longer than 400 lines because it implements all operations of [`Simd`].
//!
//! SAFETY, for every block here: every 64-bit ARM CPU has these instructions, and pointers are valid for the
//! elements that the trait names.

use crate::cpu::simd::vectors::Simd;
use half::{bf16, f16};
use std::arch::aarch64::*;
use std::arch::asm;

/// NEON with eight lanes. `DOT` enables `sdot` (four int8 products per lane). `MATRIX` also enables `smmla`
/// (2×8 by 8×2 int8 products).
#[derive(Clone, Copy)]
pub(crate) struct Neon<const DOT: bool, const MATRIX: bool>;

type Pair = (float32x4_t, float32x4_t);

/// Converts four f16 to f32. The f16 vector type is unstable in Rust, so this is inline assembly.
#[inline(always)]
unsafe fn widen(halves: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    unsafe {
        asm!("fcvtl {wide:v}.4s, {halves:v}.4h", wide = lateout(vreg) wide, halves = in(vreg) halves,
             options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

/// Transposes a 4×4 tile.
#[inline(always)]
unsafe fn transpose_four([a, b, c, d]: [float32x4_t; 4]) -> [float32x4_t; 4] {
    unsafe {
        // For each two rows: pairs of the even and of the odd columns.
        let of_two = |a, b| [vtrn1q_f32(a, b), vtrn2q_f32(a, b)].map(|pairs| vreinterpretq_f64_f32(pairs));
        let ([even, odd], [even_below, odd_below]) = (of_two(a, b), of_two(c, d));
        [
            vtrn1q_f64(even, even_below),
            vtrn1q_f64(odd, odd_below),
            vtrn2q_f64(even, even_below),
            vtrn2q_f64(odd, odd_below),
        ]
        .map(|column| vreinterpretq_f32_f64(column))
    }
}

#[inline(always)]
unsafe fn widen_bytes(bytes: int8x8_t) -> Pair {
    unsafe {
        let wide = vmovl_s8(bytes);
        (vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_high_s16(wide)))
    }
}

#[inline(always)]
unsafe fn widen_codes(codes: uint8x8_t) -> Pair {
    unsafe {
        let wide = vmovl_u8(codes);
        (vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))), vcvtq_f32_u32(vmovl_high_u16(wide)))
    }
}

/// Adds four int8 products to each of four lanes.
#[inline(always)]
unsafe fn add_four<const DOT: bool>(mut sums: int32x4_t, weights: int8x16_t, x: int8x16_t) -> int32x4_t {
    unsafe {
        if DOT {
            // The intrinsic is unstable, so this is inline assembly.
            asm!("sdot {sums:v}.4s, {weights:v}.16b, {x:v}.16b", sums = inlateout(vreg) sums,
                 weights = in(vreg) weights, x = in(vreg) x, options(pure, nomem, nostack, preserves_flags));
            return sums;
        }
        let low = vpaddlq_s16(vmull_s8(vget_low_s8(weights), vget_low_s8(x)));
        let high = vpaddlq_s16(vmull_high_s8(weights, x));
        vaddq_s32(sums, vpaddq_s32(low, high))
    }
}

/// Adds products of eight bytes each to `[a x, a y, b x, b y]`, for `weights` = `[a, b]` and `x` = `[x, y]`.
#[inline(always)]
unsafe fn add_eight<const MATRIX: bool>(mut sums: int32x4_t, weights: int8x16_t, x: int8x16_t) -> int32x4_t {
    // The check is inside the function, because unoptimized builds also instantiate it without the
    // instruction. It is not called then.
    if MATRIX {
        // The intrinsic is unstable, so this is inline assembly.
        unsafe {
            asm!("smmla {sums:v}.4s, {weights:v}.16b, {x:v}.16b", sums = inlateout(vreg) sums,
                 weights = in(vreg) weights, x = in(vreg) x, options(pure, nomem, nostack, preserves_flags));
        }
    }
    sums
}

impl<const DOT: bool, const MATRIX: bool> Simd for Neon<DOT, MATRIX> {
    type V = Pair;
    type Sums = (int32x4_t, int32x4_t);
    type Codes = (int8x16_t, int8x16_t);
    const LANES: usize = 8;
    const RAISED: i32 = 0;
    const TILE: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Pair {
        unsafe { (vdupq_n_f32(x), vdupq_n_f32(x)) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Pair {
        unsafe { (vld1q_f32(from), vld1q_f32(from.add(4))) }
    }

    #[inline(always)]
    unsafe fn transpose(from: [*const f32; 16], to: *mut f32, columns_apart: usize) {
        unsafe {
            for first in [0, 4] {
                let [a, b, c, d] = [0, 1, 2, 3].map(|i| Self::load(from[first + i]));
                let near = transpose_four([a.0, b.0, c.0, d.0]);
                let far = transpose_four([a.1, b.1, c.1, d.1]);
                for (column, numbers) in near.into_iter().chain(far).enumerate() {
                    vst1q_f32(to.add(column * columns_apart + first), numbers);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store_halves(to: *mut u16, words: Pair) {
        unsafe {
            let (near, far) = (vreinterpretq_u16_f32(words.0), vreinterpretq_u16_f32(words.1));
            vst1q_u16(to, vuzp1q_u16(near, far));
            vst1q_u16(to.add(8), vuzp2q_u16(near, far));
        }
    }

    #[inline(always)]
    unsafe fn load_pairs(from: *const f32) -> [Pair; 2] {
        unsafe {
            let (a, b) = (vld2q_f32(from), vld2q_f32(from.add(8)));
            [(a.0, b.0), (a.1, b.1)]
        }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, v: Pair) {
        unsafe {
            vst1q_f32(to, v.0);
            vst1q_f32(to.add(4), v.1);
        }
    }

    #[inline(always)]
    unsafe fn add(a: Pair, b: Pair) -> Pair {
        unsafe { (vaddq_f32(a.0, b.0), vaddq_f32(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn sub(a: Pair, b: Pair) -> Pair {
        unsafe { (vsubq_f32(a.0, b.0), vsubq_f32(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn mul(a: Pair, b: Pair) -> Pair {
        unsafe { (vmulq_f32(a.0, b.0), vmulq_f32(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn div(a: Pair, b: Pair) -> Pair {
        unsafe { (vdivq_f32(a.0, b.0), vdivq_f32(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn fma(a: Pair, b: Pair, c: Pair) -> Pair {
        unsafe { (vfmaq_f32(c.0, a.0, b.0), vfmaq_f32(c.1, a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn max(a: Pair, b: Pair) -> Pair {
        unsafe { (vmaxq_f32(a.0, b.0), vmaxq_f32(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn min(a: Pair, b: Pair) -> Pair {
        unsafe { (vminq_f32(a.0, b.0), vminq_f32(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn round_and_power(v: Pair) -> (Pair, Pair) {
        unsafe {
            let (a, b) = (vcvtnq_s32_f32(v.0), vcvtnq_s32_f32(v.1));
            let bias = vdupq_n_s32(127);
            let power = |n| vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(n, bias)));
            ((vcvtq_f32_s32(a), vcvtq_f32_s32(b)), (power(a), power(b)))
        }
    }

    #[inline(always)]
    unsafe fn sum(v: Pair) -> f32 {
        unsafe { vaddvq_f32(vaddq_f32(v.0, v.1)) }
    }

    #[inline(always)]
    unsafe fn sums([a, b, c, d]: [Pair; 4]) -> [f32; 4] {
        unsafe {
            let ab = vpaddq_f32(vaddq_f32(a.0, a.1), vaddq_f32(b.0, b.1));
            let cd = vpaddq_f32(vaddq_f32(c.0, c.1), vaddq_f32(d.0, d.1));
            let mut to = [0.0; 4];
            vst1q_f32(to.as_mut_ptr(), vpaddq_f32(ab, cd));
            to
        }
    }

    #[inline(always)]
    unsafe fn largest(v: Pair) -> f32 {
        unsafe { vmaxvq_f32(vmaxq_f32(v.0, v.1)) }
    }

    #[inline(always)]
    unsafe fn store_codes(to: *mut i8, v: Pair) {
        unsafe {
            let halves = [v.0, v.1].map(|four| vmovn_s32(vcvtq_s32_f32(four)));
            vst1_s8(to, vmovn_s16(vcombine_s16(halves[0], halves[1])));
        }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Pair {
        unsafe {
            let eight = vld1q_u16(from.cast());
            (widen(vget_low_u16(eight)), widen(vget_high_u16(eight)))
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Pair {
        unsafe {
            let eight = vld1q_u16(from.cast());
            let low = vshll_n_u16::<16>(vget_low_u16(eight));
            let high = vshll_n_u16::<16>(vget_high_u16(eight));
            (vreinterpretq_f32_u32(low), vreinterpretq_f32_u32(high))
        }
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Pair {
        unsafe { widen_bytes(vld1_s8(from)) }
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Pair {
        unsafe { widen_codes(vld1_u8(from)) }
    }

    #[inline(always)]
    unsafe fn load_u4(from: *const u8, high: bool) -> Pair {
        unsafe {
            let bytes = vld1_u8(from);
            widen_codes(if high { vshr_n_u8::<4>(bytes) } else { vand_u8(bytes, vdup_n_u8(15)) })
        }
    }

    #[inline(always)]
    unsafe fn load_entries(from: *const u8, high: bool, table: &[i8; 16]) -> Pair {
        unsafe {
            let bytes = vld1_u8(from);
            let codes = if high { vshr_n_u8::<4>(bytes) } else { vand_u8(bytes, vdup_n_u8(15)) };
            widen_bytes(vqtbl1_s8(vld1q_s8(table.as_ptr()), codes))
        }
    }

    #[inline(always)]
    unsafe fn load_fields(from: *const u16, first: u32, bits: u32, is_signed: bool) -> Pair {
        unsafe {
            let words = vld1q_u16(from);
            let left = vdupq_n_s32((32 - first - bits) as i32);
            let low = vshlq_u32(vmovl_u16(vget_low_u16(words)), left);
            let high = vshlq_u32(vmovl_u16(vget_high_u16(words)), left);
            let right = vdupq_n_s32(bits as i32 - 32);
            if is_signed {
                let (low, high) = (vreinterpretq_s32_u32(low), vreinterpretq_s32_u32(high));
                (vcvtq_f32_s32(vshlq_s32(low, right)), vcvtq_f32_s32(vshlq_s32(high, right)))
            } else {
                (vcvtq_f32_u32(vshlq_u32(low, right)), vcvtq_f32_u32(vshlq_u32(high, right)))
            }
        }
    }

    #[inline(always)]
    unsafe fn load_floats8(from: *const u8) -> Pair {
        unsafe {
            // As f16, whose exponent bias is larger by 8. The sign is extended to two bits, of which the
            // lower one is cleared.
            let bytes = vreinterpretq_u16_s16(vmovl_s8(vld1_s8(from.cast())));
            let f16s = vandq_u16(vshlq_n_u16::<7>(bytes), vdupq_n_u16(!0x4000));
            (widen(vget_low_u16(f16s)), widen(vget_high_u16(f16s)))
        }
    }

    #[inline(always)]
    unsafe fn splat_f16(from: *const f16) -> Pair {
        unsafe {
            let wide = widen(vdup_n_u16(from.cast::<u16>().read_unaligned()));
            (wide, wide)
        }
    }

    #[inline(always)]
    unsafe fn splat_sums(x: i32) -> (int32x4_t, int32x4_t) {
        unsafe { (vdupq_n_s32(x), vdupq_n_s32(x)) }
    }

    #[inline(always)]
    unsafe fn add_products(
        sums: (int32x4_t, int32x4_t),
        weights: *const i8,
        x: *const i8,
    ) -> (int32x4_t, int32x4_t) {
        unsafe { Self::add_shared(sums, Self::load_codes(weights), x) }
    }

    #[inline(always)]
    unsafe fn load_codes(from: *const i8) -> (int8x16_t, int8x16_t) {
        unsafe { (vld1q_s8(from), vld1q_s8(from.add(16))) }
    }

    #[inline(always)]
    unsafe fn load_nibble_codes(from: *const u8) -> (int8x16_t, int8x16_t) {
        unsafe {
            let bytes = vld1q_u8(from);
            let low = vandq_u8(bytes, vdupq_n_u8(15));
            (vreinterpretq_s8_u8(low), vreinterpretq_s8_u8(vshrq_n_u8::<4>(bytes)))
        }
    }

    #[inline(always)]
    unsafe fn lookup_codes(codes: (int8x16_t, int8x16_t), table: &[i8; 16]) -> (int8x16_t, int8x16_t) {
        unsafe {
            let entries = vld1q_s8(table.as_ptr());
            let lookup = |codes| vqtbl1q_s8(entries, vreinterpretq_u8_s8(codes));
            (lookup(codes.0), lookup(codes.1))
        }
    }

    #[inline(always)]
    unsafe fn load_unsigned_codes(from: *const u8) -> (int8x16_t, int8x16_t) {
        unsafe {
            let (codes, sign) = (Self::load_bytes(from), vdupq_n_s8(-128));
            (veorq_s8(codes.0, sign), veorq_s8(codes.1, sign))
        }
    }

    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> (int8x16_t, int8x16_t) {
        unsafe { Self::load_codes(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store_bytes(to: *mut u8, codes: (int8x16_t, int8x16_t)) {
        unsafe {
            vst1q_s8(to.cast(), codes.0);
            vst1q_s8(to.add(16).cast(), codes.1);
        }
    }

    #[inline(always)]
    unsafe fn zero_bytes() -> (int8x16_t, int8x16_t) {
        unsafe { (vdupq_n_s8(0), vdupq_n_s8(0)) }
    }

    #[inline(always)]
    unsafe fn field(codes: (int8x16_t, int8x16_t), shift: u32, mask: u8) -> (int8x16_t, int8x16_t) {
        unsafe {
            let (right, mask) = (vdupq_n_s8(-(shift as i8)), vdupq_n_u8(mask));
            let low = vandq_u8(vshlq_u8(vreinterpretq_u8_s8(codes.0), right), mask);
            let high = vandq_u8(vshlq_u8(vreinterpretq_u8_s8(codes.1), right), mask);
            (vreinterpretq_s8_u8(low), vreinterpretq_s8_u8(high))
        }
    }

    #[inline(always)]
    unsafe fn join(
        low: (int8x16_t, int8x16_t),
        high: (int8x16_t, int8x16_t),
        shift: u32,
    ) -> (int8x16_t, int8x16_t) {
        unsafe {
            let left = vdupq_n_s8(shift as i8);
            (vorrq_s8(low.0, vshlq_s8(high.0, left)), vorrq_s8(low.1, vshlq_s8(high.1, left)))
        }
    }

    #[inline(always)]
    unsafe fn add_shared(
        sums: (int32x4_t, int32x4_t),
        codes: (int8x16_t, int8x16_t),
        x: *const i8,
    ) -> (int32x4_t, int32x4_t) {
        unsafe {
            let x = vreinterpretq_s8_s32(vdupq_n_s32(x.cast::<i32>().read_unaligned()));
            (add_four::<DOT>(sums.0, codes.0, x), add_four::<DOT>(sums.1, codes.1, x))
        }
    }

    #[inline(always)]
    unsafe fn add_codes(
        sums: (int32x4_t, int32x4_t),
        codes: (int8x16_t, int8x16_t),
        x: *const i8,
    ) -> (int32x4_t, int32x4_t) {
        unsafe {
            let low = add_four::<DOT>(sums.0, codes.0, vld1q_s8(x));
            (low, add_four::<DOT>(sums.1, codes.1, vld1q_s8(x.add(16))))
        }
    }

    const PAIRS: bool = MATRIX;

    /// Each register holds two lanes by two rows, as `add_eight` produces them.
    #[inline(always)]
    unsafe fn add_pair([a, b]: [Self::Sums; 2], weights: *const i8, x: [*const i8; 2]) -> [Self::Sums; 2] {
        unsafe {
            let x = vcombine_s8(vld1_s8(x[0]), vld1_s8(x[1]));
            let words = |at| vld1q_s8(weights.add(at));
            // Not a closure: unoptimized builds would compile it as a function without these target features.
            let a = (add_eight::<MATRIX>(a.0, words(0), x), add_eight::<MATRIX>(a.1, words(16), x));
            let b = (add_eight::<MATRIX>(b.0, words(32), x), add_eight::<MATRIX>(b.1, words(48), x));
            [a, b]
        }
    }

    #[inline(always)]
    unsafe fn of_pair([a, b]: [Self::Sums; 2], more: [i32; 2]) -> [Self::Sums; 2] {
        unsafe {
            let [x, y] = more.map(|more| vdupq_n_s32(more));
            let first = (vuzp1q_s32(a.0, a.1), vuzp1q_s32(b.0, b.1));
            let second = (vuzp2q_s32(a.0, a.1), vuzp2q_s32(b.0, b.1));
            [(vaddq_s32(first.0, x), vaddq_s32(first.1, x)), (vaddq_s32(second.0, y), vaddq_s32(second.1, y))]
        }
    }

    #[inline(always)]
    unsafe fn sums_to_f32(sums: (int32x4_t, int32x4_t)) -> Pair {
        unsafe { (vcvtq_f32_s32(sums.0), vcvtq_f32_s32(sums.1)) }
    }
}
