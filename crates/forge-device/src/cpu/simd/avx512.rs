//! AVX-512 vectors. Horizontal sums have the same addition order as AVX2.
//!
//! SAFETY, for every block here: the instruction set was detected on this machine, and pointers are valid for
//! the elements that the trait names.

use crate::cpu::simd::avx2::{Avx2, sum_of_eight, sums_of_eight};
use crate::cpu::simd::vectors::Simd;
use half::{bf16, f16};
use std::arch::x86_64::*;

/// Each quarter of the result holds the sums of that quarter of the four vectors.
#[inline(always)]
unsafe fn sums_of_quarters([a, b, c, d]: [__m512; 4]) -> __m512 {
    unsafe {
        let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
        let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
        let low = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
        _mm512_add_ps(low, _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)))
    }
}

/// Adds the upper eight lanes to the lower eight.
#[inline(always)]
unsafe fn halved(v: __m512) -> __m256 {
    unsafe { _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)) }
}

/// Indices of the lower halves of 16 words, then of the upper halves.
const HALVES: [u16; 32] = {
    let mut places = [0; 32];
    let mut i = 0;
    while i < 32 {
        places[i] = (i % 16 * 2 + i / 16) as u16;
        i += 1;
    }
    places
};

/// AVX-512: sixteen f32 lanes.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

impl Simd for Avx512 {
    type V = __m512;
    type Sums = __m512i;
    type Codes = __m512i;
    const LANES: usize = 16;
    const RAISED: i32 = 128;
    const TILE: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn transpose(from: [*const f32; 16], to: *mut f32, columns_apart: usize) {
        unsafe {
            let mut rows = [_mm512_setzero_ps(); 16];
            for (i, row) in rows.iter_mut().enumerate() {
                *row = Self::load(from[i]);
            }
            // For each group of four rows: each quarter of a vector holds four elements of a column.
            let mut fours = [_mm512_setzero_ps(); 16];
            for i in (0..16).step_by(4) {
                let [a, b, c, d] = [rows[i], rows[i + 1], rows[i + 2], rows[i + 3]];
                let (ab, cd) = (_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d));
                let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
                fours[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
                fours[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd));
                let (ab, cd) = (_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d));
                let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
                fours[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
                fours[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd));
            }
            // Combines the quarters of each column, even quarters first.
            for i in 0..4 {
                let even_of_first = _mm512_shuffle_f32x4::<0b10_00_10_00>(fours[i], fours[4 + i]);
                let even_of_last = _mm512_shuffle_f32x4::<0b10_00_10_00>(fours[8 + i], fours[12 + i]);
                let odd_of_first = _mm512_shuffle_f32x4::<0b11_01_11_01>(fours[i], fours[4 + i]);
                let odd_of_last = _mm512_shuffle_f32x4::<0b11_01_11_01>(fours[8 + i], fours[12 + i]);
                for (column, first, last) in
                    [(i, even_of_first, even_of_last), (4 + i, odd_of_first, odd_of_last)]
                {
                    let near = _mm512_shuffle_f32x4::<0b10_00_10_00>(first, last);
                    let far = _mm512_shuffle_f32x4::<0b11_01_11_01>(first, last);
                    Self::store(to.add(column * columns_apart), near);
                    Self::store(to.add((8 + column) * columns_apart), far);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store_halves(to: *mut u16, words: __m512) {
        unsafe {
            let places = _mm512_loadu_si512(HALVES.as_ptr().cast());
            _mm512_storeu_si512(to.cast(), _mm512_permutexvar_epi16(places, _mm512_castps_si512(words)));
        }
    }

    #[inline(always)]
    unsafe fn load_pairs(from: *const f32) -> [__m512; 2] {
        unsafe {
            let (a, b) = (Self::load(from), Self::load(from.add(16)));
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
            [_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b)]
        }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(to, v) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn round_and_power(v: __m512) -> (__m512, __m512) {
        unsafe {
            let n = _mm512_cvtps_epi32(v);
            let power = _mm512_slli_epi32::<23>(_mm512_add_epi32(n, _mm512_set1_epi32(127)));
            (_mm512_cvtepi32_ps(n), _mm512_castsi512_ps(power))
        }
    }

    #[inline(always)]
    unsafe fn sum(v: __m512) -> f32 {
        unsafe { sum_of_eight(halved(v)) }
    }

    #[inline(always)]
    unsafe fn sums(v: [__m512; 4]) -> [f32; 4] {
        unsafe { sums_of_eight([halved(v[0]), halved(v[1]), halved(v[2]), halved(v[3])]) }
    }

    #[inline(always)]
    unsafe fn largest(v: __m512) -> f32 {
        unsafe { _mm512_reduce_max_ps(v) }
    }

    #[inline(always)]
    unsafe fn store_codes(to: *mut i8, v: __m512) {
        unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v))) }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn load_u4(from: *const u8, high: bool) -> __m512 {
        unsafe {
            let numbers = _mm512_setr_ps(
                0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
            );
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()));
            let codes = if high { _mm512_srli_epi32::<4>(bytes) } else { bytes };
            _mm512_permutexvar_ps(codes, numbers)
        }
    }

    #[inline(always)]
    unsafe fn load_entries(from: *const u8, high: bool, table: &[i8; 16]) -> __m512 {
        unsafe {
            let numbers = Self::load_i8(table.as_ptr());
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()));
            let codes = if high { _mm512_srli_epi32::<4>(bytes) } else { bytes };
            _mm512_permutexvar_ps(codes, numbers)
        }
    }

    #[inline(always)]
    unsafe fn load_fields(from: *const u16, first: u32, bits: u32, is_signed: bool) -> __m512 {
        unsafe {
            let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            let left = _mm512_sll_epi32(words, _mm_cvtsi32_si128((32 - first - bits) as i32));
            let right = _mm_cvtsi32_si128((32 - bits) as i32);
            _mm512_cvtepi32_ps(match is_signed {
                true => _mm512_sra_epi32(left, right),
                false => _mm512_srl_epi32(left, right),
            })
        }
    }

    #[inline(always)]
    unsafe fn load_floats8(from: *const u8) -> __m512 {
        unsafe {
            // As f16, whose exponent bias is larger by 8. The sign is extended to two bits, of which the
            // lower one is cleared.
            let bytes = _mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast()));
            let f16s = _mm256_and_si256(_mm256_slli_epi16::<7>(bytes), _mm256_set1_epi16(!0x4000));
            _mm512_cvtph_ps(f16s)
        }
    }

    #[inline(always)]
    unsafe fn store_past(to: *mut f32, v: __m512) {
        unsafe { _mm512_stream_ps(to, v) }
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
        unsafe { Avx2::prefetch_to_write(address) }
    }

    #[inline(always)]
    unsafe fn splat_f16(from: *const f16) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_set1_epi16(from.cast::<i16>().read_unaligned())) }
    }

    #[inline(always)]
    unsafe fn splat_sums(x: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(x) }
    }

    #[inline(always)]
    unsafe fn add_products(sums: __m512i, weights: *const i8, x: *const i8) -> __m512i {
        unsafe {
            let x = _mm512_set1_epi32(x.cast::<i32>().read_unaligned());
            _mm512_dpbusd_epi32(sums, _mm512_loadu_si512(weights.cast()), x)
        }
    }

    #[inline(always)]
    unsafe fn load_codes(from: *const i8) -> __m512i {
        unsafe { _mm512_xor_si512(_mm512_loadu_si512(from.cast()), _mm512_set1_epi8(-128)) }
    }

    #[inline(always)]
    unsafe fn load_nibble_codes(from: *const u8) -> __m512i {
        unsafe {
            // Each block's 16 bytes twice; the second copy is shifted.
            let bytes = _mm512_castsi256_si512(_mm256_loadu_si256(from.cast()));
            let twice = _mm512_shuffle_i64x2::<0b01_01_00_00>(bytes, bytes);
            let shifts = _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4);
            _mm512_and_si512(_mm512_srlv_epi64(twice, shifts), _mm512_set1_epi8(15))
        }
    }

    #[inline(always)]
    unsafe fn lookup_codes(codes: __m512i, table: &[i8; 16]) -> __m512i {
        unsafe {
            let entries = _mm_xor_si128(_mm_loadu_si128(table.as_ptr().cast()), _mm_set1_epi8(-128));
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(entries), codes)
        }
    }

    #[inline(always)]
    unsafe fn load_unsigned_codes(from: *const u8) -> __m512i {
        unsafe { Self::load_bytes(from) }
    }

    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store_bytes(to: *mut u8, codes: __m512i) {
        unsafe { _mm512_storeu_si512(to.cast(), codes) }
    }

    #[inline(always)]
    unsafe fn zero_bytes() -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn field(codes: __m512i, shift: u32, mask: u8) -> __m512i {
        unsafe {
            let shifted = _mm512_srl_epi16(codes, _mm_cvtsi32_si128(shift as i32));
            _mm512_and_si512(shifted, _mm512_set1_epi8(mask.cast_signed()))
        }
    }

    #[inline(always)]
    unsafe fn join(low: __m512i, high: __m512i, shift: u32) -> __m512i {
        unsafe { _mm512_or_si512(low, _mm512_sll_epi16(high, _mm_cvtsi32_si128(shift as i32))) }
    }

    #[inline(always)]
    unsafe fn add_shared(sums: __m512i, codes: __m512i, x: *const i8) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(sums, codes, _mm512_set1_epi32(x.cast::<i32>().read_unaligned())) }
    }

    #[inline(always)]
    unsafe fn add_codes(sums: __m512i, codes: __m512i, x: *const i8) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(sums, codes, _mm512_loadu_si512(x.cast())) }
    }

    #[inline(always)]
    unsafe fn sums_of_eights(v: *const __m512) -> [f32; 16] {
        unsafe {
            let [first, second] = v.cast::<[[__m512; 4]; 2]>().read();
            // Each quarter holds the sums of that quarter of four vectors; the first half of a vector is one
            // group of eight.
            let (a, b) = (sums_of_quarters(first), sums_of_quarters(second));
            let first = _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
            let second = _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b);
            let places = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
            let mut sums = [0.0; 16];
            _mm512_storeu_ps(sums.as_mut_ptr(), _mm512_permutexvar_ps(places, _mm512_add_ps(first, second)));
            sums
        }
    }

    #[inline(always)]
    unsafe fn sums_to_f32(sums: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(sums) }
    }
}
