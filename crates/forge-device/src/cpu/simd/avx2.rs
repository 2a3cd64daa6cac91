//! AVX2 vectors (with FMA and F16C).
//!
//! SAFETY, for every block here: the instruction set was detected on this machine, and pointers are valid for
//! the elements that the trait names.

use crate::cpu::simd::vectors::Simd;
use half::{bf16, f16};
use std::arch::asm;
use std::arch::x86_64::*;

/// The horizontal sum of each vector.
#[inline(always)]
pub(crate) unsafe fn sums_of_eight([a, b, c, d]: [__m256; 4]) -> [f32; 4] {
    unsafe {
        let quarters = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
        let sums = _mm_add_ps(_mm256_castps256_ps128(quarters), _mm256_extractf128_ps::<1>(quarters));
        let mut to = [0.0; 4];
        _mm_storeu_ps(to.as_mut_ptr(), sums);
        to
    }
}

/// The horizontal sum, with the same addition order as `sums_of_eight`.
#[inline(always)]
pub(crate) unsafe fn sum_of_eight(v: __m256) -> f32 {
    unsafe {
        let pairs = _mm256_add_ps(v, _mm256_movehdup_ps(v));
        let fours = _mm256_add_ps(pairs, _mm256_permute_ps::<0b01_00_11_10>(pairs));
        _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(fours), _mm256_extractf128_ps::<1>(fours)))
    }
}

/// AVX2: eight f32 lanes.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

impl Simd for Avx2 {
    type V = __m256;
    type Sums = __m256i;
    type Codes = __m256i;
    const LANES: usize = 8;
    const RAISED: i32 = 0;
    const TILE: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn transpose(from: [*const f32; 16], to: *mut f32, columns_apart: usize) {
        unsafe {
            let mut rows = [_mm256_setzero_ps(); 8];
            for (i, row) in rows.iter_mut().enumerate() {
                *row = Self::load(from[i]);
            }
            // For each group of four rows: each half of a vector holds four elements of a column.
            let mut fours = [_mm256_setzero_ps(); 8];
            for i in [0, 4] {
                let [a, b, c, d] = [rows[i], rows[i + 1], rows[i + 2], rows[i + 3]];
                let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
                fours[i] = _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd);
                fours[i + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd);
                let (ab, cd) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
                fours[i + 2] = _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd);
                fours[i + 3] = _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd);
            }
            for i in 0..4 {
                let near = _mm256_permute2f128_ps::<0x20>(fours[i], fours[4 + i]);
                let far = _mm256_permute2f128_ps::<0x31>(fours[i], fours[4 + i]);
                Self::store(to.add(i * columns_apart), near);
                Self::store(to.add((4 + i) * columns_apart), far);
            }
        }
    }

    #[inline(always)]
    unsafe fn store_halves(to: *mut u16, words: __m256) {
        unsafe {
            // Shuffles within each half, then moves the quarters to their places.
            let lower = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
            let apart = _mm256_shuffle_epi8(_mm256_castps_si256(words), _mm256_broadcastsi128_si256(lower));
            _mm256_storeu_si256(to.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(apart));
        }
    }

    #[inline(always)]
    unsafe fn load_pairs(from: *const f32) -> [__m256; 2] {
        unsafe {
            // Shuffles within each half, then moves the quarters to their places.
            let (a, b) = (Self::load(from), Self::load(from.add(8)));
            let even = _mm256_castps_pd(_mm256_shuffle_ps::<0b10_00_10_00>(a, b));
            let odd = _mm256_castps_pd(_mm256_shuffle_ps::<0b11_01_11_01>(a, b));
            [
                _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(even)),
                _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(odd)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, v: __m256) {
        unsafe { _mm256_storeu_ps(to, v) }
    }

    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_sub_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn div(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_div_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn max(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_max_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn min(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_min_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn round_and_power(v: __m256) -> (__m256, __m256) {
        unsafe {
            let n = _mm256_cvtps_epi32(v);
            let power = _mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127)));
            (_mm256_cvtepi32_ps(n), _mm256_castsi256_ps(power))
        }
    }

    #[inline(always)]
    unsafe fn sum(v: __m256) -> f32 {
        unsafe { sum_of_eight(v) }
    }

    #[inline(always)]
    unsafe fn sums(v: [__m256; 4]) -> [f32; 4] {
        unsafe { sums_of_eight(v) }
    }

    #[inline(always)]
    unsafe fn largest(v: __m256) -> f32 {
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    unsafe fn store_codes(to: *mut i8, v: __m256) {
        unsafe {
            let words = _mm256_cvtps_epi32(v);
            let halves = _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storel_epi64(to.cast(), _mm_packs_epi16(halves, halves));
        }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> __m256 {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> __m256 {
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn load_u4(from: *const u8, high: bool) -> __m256 {
        unsafe {
            let bytes = _mm_loadl_epi64(from.cast());
            let shifted = if high { _mm_srli_epi16::<4>(bytes) } else { bytes };
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_and_si128(shifted, _mm_set1_epi8(15))))
        }
    }

    #[inline(always)]
    unsafe fn load_entries(from: *const u8, high: bool, table: &[i8; 16]) -> __m256 {
        unsafe {
            let bytes = _mm_loadl_epi64(from.cast());
            let shifted = if high { _mm_srli_epi16::<4>(bytes) } else { bytes };
            let entries = _mm_loadu_si128(table.as_ptr().cast());
            let codes = _mm_shuffle_epi8(entries, _mm_and_si128(shifted, _mm_set1_epi8(15)));
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes))
        }
    }

    #[inline(always)]
    unsafe fn load_fields(from: *const u16, first: u32, bits: u32, is_signed: bool) -> __m256 {
        unsafe {
            let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            let left = _mm256_sll_epi32(words, _mm_cvtsi32_si128((32 - first - bits) as i32));
            let right = _mm_cvtsi32_si128((32 - bits) as i32);
            _mm256_cvtepi32_ps(match is_signed {
                true => _mm256_sra_epi32(left, right),
                false => _mm256_srl_epi32(left, right),
            })
        }
    }

    #[inline(always)]
    unsafe fn load_floats8(from: *const u8) -> __m256 {
        unsafe {
            // As f16, whose exponent bias is larger by 8. The sign is extended to two bits, of which the
            // lower one is cleared.
            let bytes = _mm_cvtepi8_epi16(_mm_loadl_epi64(from.cast()));
            _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16::<7>(bytes), _mm_set1_epi16(!0x4000)))
        }
    }

    #[inline(always)]
    unsafe fn store_past(to: *mut f32, v: __m256) {
        unsafe { _mm256_stream_ps(to, v) }
    }

    #[inline(always)]
    unsafe fn prefetch<T>(address: *const T) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }

    #[inline(always)]
    unsafe fn prefetch_once<T>(address: *const T) {
        unsafe { _mm_prefetch::<_MM_HINT_NTA>(address.cast()) }
    }

    #[inline(always)]
    unsafe fn prefetch_far<T>(address: *const T) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }

    #[inline(always)]
    unsafe fn prefetch_to_write<T>(address: *const T) {
        // `_mm_prefetch` has no write hint here. AVX2 CPUs without `prefetchw` treat it as a no-op.
        unsafe { asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags)) }
    }

    #[inline(always)]
    unsafe fn splat_f16(from: *const f16) -> __m256 {
        unsafe { _mm256_cvtph_ps(_mm_set1_epi16(from.cast::<i16>().read_unaligned())) }
    }

    #[inline(always)]
    unsafe fn splat_sums(x: i32) -> __m256i {
        unsafe { _mm256_set1_epi32(x) }
    }

    #[inline(always)]
    unsafe fn add_products(sums: __m256i, weights: *const i8, x: *const i8) -> __m256i {
        unsafe { Self::add_shared(sums, _mm256_loadu_si256(weights.cast()), x) }
    }

    #[inline(always)]
    unsafe fn load_codes(from: *const i8) -> __m256i {
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_nibble_codes(from: *const u8) -> __m256i {
        unsafe {
            let bytes = _mm_loadu_si128(from.cast());
            let both =
                _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(bytes), _mm_srli_epi16::<4>(bytes));
            _mm256_and_si256(both, _mm256_set1_epi8(15))
        }
    }

    #[inline(always)]
    unsafe fn lookup_codes(codes: __m256i, table: &[i8; 16]) -> __m256i {
        unsafe {
            let entries = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            _mm256_shuffle_epi8(entries, codes)
        }
    }

    #[inline(always)]
    unsafe fn load_unsigned_codes(from: *const u8) -> __m256i {
        unsafe { _mm256_xor_si256(Self::load_bytes(from), _mm256_set1_epi8(-128)) }
    }

    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> __m256i {
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store_bytes(to: *mut u8, codes: __m256i) {
        unsafe { _mm256_storeu_si256(to.cast(), codes) }
    }

    #[inline(always)]
    unsafe fn zero_bytes() -> __m256i {
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    unsafe fn field(codes: __m256i, shift: u32, mask: u8) -> __m256i {
        unsafe {
            let shifted = _mm256_srl_epi16(codes, _mm_cvtsi32_si128(shift as i32));
            _mm256_and_si256(shifted, _mm256_set1_epi8(mask.cast_signed()))
        }
    }

    #[inline(always)]
    unsafe fn join(low: __m256i, high: __m256i, shift: u32) -> __m256i {
        unsafe { _mm256_or_si256(low, _mm256_sll_epi16(high, _mm_cvtsi32_si128(shift as i32))) }
    }

    #[inline(always)]
    unsafe fn add_shared(sums: __m256i, codes: __m256i, x: *const i8) -> __m256i {
        unsafe { add_four(sums, codes, _mm256_set1_epi32(x.cast::<i32>().read_unaligned())) }
    }

    #[inline(always)]
    unsafe fn add_codes(sums: __m256i, codes: __m256i, x: *const i8) -> __m256i {
        unsafe { add_four(sums, codes, _mm256_loadu_si256(x.cast())) }
    }

    // Two instructions for 32 products, instead of four in `add_four`: small quants are already unsigned. A
    // sum over eight words is at most 8 * 2 * 15 * 127, which fits in 16 bits.
    const SMALL: bool = true;

    #[inline(always)]
    unsafe fn add_small(sums: __m256i, codes: __m256i, x: *const i8) -> __m256i {
        unsafe {
            let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
            _mm256_add_epi16(sums, _mm256_maddubs_epi16(codes, x))
        }
    }

    #[inline(always)]
    unsafe fn of_small(sums: __m256i, more: i32) -> __m256i {
        unsafe {
            let both = _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
            _mm256_add_epi32(both, _mm256_set1_epi32(more))
        }
    }

    #[inline(always)]
    unsafe fn sums_to_f32(sums: __m256i) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(sums) }
    }
}

/// Adds four int8 products to each lane. `maddubs` needs one unsigned factor, so x takes the sign of the
/// weight. Two products are at most 2 * 128 * 127, which fits in 16 bits.
#[inline(always)]
unsafe fn add_four(sums: __m256i, codes: __m256i, x: __m256i) -> __m256i {
    // SAFETY: the caller's instruction set includes these instructions.
    unsafe {
        let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
        _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
    }
}
