//! [`Simd`]: the vector operations of kernels.
//!
//! SAFETY: functions are `unsafe` for two reasons. Instructions may only run where they exist, which
//! [`crate::cpu::simd::isa`] ensures. Loads and stores take raw pointers, at any alignment, to as many
//! elements as the function names.

use half::{bf16, f16};

/// An instruction set with vectors of `LANES` f32. `LANES` divides 16.
pub(crate) trait Simd: Copy + 'static {
    /// A vector of f32.
    type V: Copy;
    /// A vector of `LANES` i32: accumulators of int8 dot products.
    type Sums: Copy;
    /// A vector of `4 * LANES` int8 quants, four per lane.
    type Codes: Copy;
    /// Number of lanes.
    const LANES: usize;
    /// Whether there are int8 products: see [`Isa::has_int8`](crate::cpu::simd::isa::Isa::has_int8). Kernels test it so that
    /// their int8 code is not compiled without them.
    const HAS_INT8: bool = true;
    /// Bias of the weight bytes that `add_products` takes: 128 if they are unsigned, else 0.
    const RAISED: i32 = 0;
    /// Rows of x per register tile with three vectors of outputs: 8, 4 or 2.
    const TILE: usize;
    /// Whether kernels are compiled for several numbers of rows, and of streams. Portable code is not: it is rarely used,
    /// and each version takes longer to compile than with intrinsics.
    const HAS_VARIANTS: bool = true;

    /// A vector with `x` in all lanes.
    unsafe fn splat(x: f32) -> Self::V;
    /// Loads `LANES` f32.
    unsafe fn load(from: *const f32) -> Self::V;
    /// Transposes a `LANES`×`LANES` tile of 32-bit words with the given row pointers. Output rows have a
    /// stride of `columns_apart`.
    #[inline(always)]
    unsafe fn transpose(rows: [*const f32; 16], to: *mut f32, columns_apart: usize) {
        for (row, from) in rows.iter().enumerate().take(Self::LANES) {
            for column in 0..Self::LANES {
                // SAFETY: the caller's contract.
                unsafe { *to.add(column * columns_apart + row) = from.add(column).read_unaligned() };
            }
        }
    }
    /// Stores `2 * LANES` 16-bit halves of words: all lower halves, then all upper ones.
    #[inline(always)]
    unsafe fn store_halves(to: *mut u16, words: Self::V) {
        let mut numbers = [0.0_f32; 16];
        // SAFETY: no instruction set has more than 16 lanes; the rest is the caller's contract.
        unsafe {
            Self::store(numbers.as_mut_ptr(), words);
            for (lane, number) in numbers.iter().enumerate().take(Self::LANES) {
                to.add(lane).write(number.to_bits() as u16);
                to.add(Self::LANES + lane).write((number.to_bits() >> 16) as u16);
            }
        }
    }
    /// Loads `2 * LANES` f32 and deinterleaves them: even elements, then odd ones.
    unsafe fn load_pairs(from: *const f32) -> [Self::V; 2];
    /// Stores `LANES` f32.
    unsafe fn store(to: *mut f32, v: Self::V);
    /// a + b
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    /// a - b
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    /// a * b
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// a / b
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// a * b + c, with one rounding if the CPU has FMA.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Lane-wise maximum.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// Lane-wise minimum.
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// The nearest integer n and 2^n, for n from -126 to 127.
    unsafe fn round_and_power(v: Self::V) -> (Self::V, Self::V);
    /// Horizontal sum.
    unsafe fn sum(v: Self::V) -> f32;
    /// Horizontal sums of four vectors, bitwise identical to `sum`.
    #[inline(always)]
    unsafe fn sums(v: [Self::V; 4]) -> [f32; 4] {
        // SAFETY: the caller's contract.
        unsafe { [Self::sum(v[0]), Self::sum(v[1]), Self::sum(v[2]), Self::sum(v[3])] }
    }
    /// Horizontal maximum.
    unsafe fn largest(v: Self::V) -> f32;
    /// Stores `LANES` integers in the range of i8; NaN gives an unspecified value.
    unsafe fn store_codes(to: *mut i8, v: Self::V);
    /// Loads `LANES` f16 as f32.
    unsafe fn load_f16(from: *const f16) -> Self::V;
    /// Loads `LANES` bf16 as f32.
    unsafe fn load_bf16(from: *const bf16) -> Self::V;
    /// Loads `LANES` i8 as f32.
    unsafe fn load_i8(from: *const i8) -> Self::V;
    /// Loads `LANES` u8 as f32.
    unsafe fn load_u8(from: *const u8) -> Self::V;
    /// Loads the low (or high) nibbles of `LANES` bytes as f32.
    unsafe fn load_u4(from: *const u8, high: bool) -> Self::V;
    /// Loads the entries of a table for the low (or high) nibbles of `LANES` bytes as f32.
    unsafe fn load_entries(from: *const u8, high: bool, table: &[i8; 16]) -> Self::V;
    /// Loads `LANES` 16-bit words, and extracts `bits` bits of each from bit `first` on, as f32. The field is signed if
    /// `is_signed`.
    unsafe fn load_fields(from: *const u16, first: u32, bits: u32, is_signed: bool) -> Self::V;
    /// Loads `LANES` 8-bit floats (e4m3, no NaN) as f32, divided by 256.
    unsafe fn load_floats8(from: *const u8) -> Self::V;
    /// Loads one f16 as f32 into all lanes.
    unsafe fn splat_f16(from: *const f16) -> Self::V;

    // int8 products. Instruction sets with `HAS_INT8` have all of these.

    /// An i32 vector with `x` in all lanes.
    unsafe fn splat_sums(_x: i32) -> Self::Sums {
        no_int8()
    }
    /// Adds to each lane the dot product of its four bytes of `weights` and the four quants of `x`, which all
    /// lanes share. Exact, because quants of x are at least -127.
    unsafe fn add_products(_sums: Self::Sums, _weights: *const i8, _x: *const i8) -> Self::Sums {
        no_int8()
    }
    /// Loads `4 * LANES` i8, biased by `RAISED`.
    unsafe fn load_codes(_from: *const i8) -> Self::Codes {
        no_int8()
    }
    /// Loads `4 * LANES` nibbles without bias: for each block of 16 bytes the low nibbles, then the high
    /// ones.
    unsafe fn load_nibble_codes(_from: *const u8) -> Self::Codes {
        no_int8()
    }
    /// The entries of a table for quants from 0 to 15, biased by `RAISED`.
    unsafe fn lookup_codes(_codes: Self::Codes, _table: &[i8; 16]) -> Self::Codes {
        no_int8()
    }
    /// Loads `4 * LANES` u8 minus 128, biased by `RAISED`.
    unsafe fn load_unsigned_codes(_from: *const u8) -> Self::Codes {
        no_int8()
    }
    /// Loads `4 * LANES` bytes.
    unsafe fn load_bytes(_from: *const u8) -> Self::Codes {
        no_int8()
    }
    /// Stores `4 * LANES` bytes.
    unsafe fn store_bytes(_to: *mut u8, _codes: Self::Codes) {
        no_int8()
    }
    /// Zeros.
    unsafe fn zero_bytes() -> Self::Codes {
        no_int8()
    }
    /// A field of each byte: `(byte >> shift) & mask`. `mask` has at most `8 - shift` bits.
    unsafe fn field(_codes: Self::Codes, _shift: u32, _mask: u8) -> Self::Codes {
        no_int8()
    }
    /// `low | high << shift` for each byte. No bits of `high` are shifted out of a byte.
    unsafe fn join(_low: Self::Codes, _high: Self::Codes, _shift: u32) -> Self::Codes {
        no_int8()
    }
    /// Adds to each lane the dot product of its four quants and four quants of `x`, which all lanes share.
    unsafe fn add_shared(_sums: Self::Sums, _codes: Self::Codes, _x: *const i8) -> Self::Sums {
        no_int8()
    }
    /// Adds to each lane the dot product of its four quants and its own four quants of `x`.
    unsafe fn add_codes(_sums: Self::Sums, _codes: Self::Codes, _x: *const i8) -> Self::Sums {
        no_int8()
    }
    /// Whether quants from 0 to 15 are accumulated by `add_small`, in two 16-bit sums per lane. The sums do
    /// not overflow within a block.
    const SMALL: bool = false;
    /// Like `add_shared`, into two 16-bit sums per lane that start at zero.
    #[inline(always)]
    unsafe fn add_small(sums: Self::Sums, codes: Self::Codes, x: *const i8) -> Self::Sums {
        // SAFETY: the caller's contract.
        unsafe { Self::add_shared(sums, codes, x) }
    }
    /// Adds the two 16-bit sums of each lane, and `more`.
    #[inline(always)]
    unsafe fn of_small(sums: Self::Sums, _more: i32) -> Self::Sums {
        sums
    }
    /// Whether `add_pair` computes two rows of x together.
    const PAIRS: bool = false;
    /// Adds products of two rows of x: per lane, the dot products of its eight bytes of `weights` and eight
    /// shared quants of each row. Sums start at zero. Their order is internal until [`Simd::of_pair`].
    #[inline(always)]
    unsafe fn add_pair(sums: [Self::Sums; 2], _weights: *const i8, _x: [*const i8; 2]) -> [Self::Sums; 2] {
        sums
    }
    /// Separates the sums of the two rows and adds `more` to each.
    #[inline(always)]
    unsafe fn of_pair(sums: [Self::Sums; 2], _more: [i32; 2]) -> [Self::Sums; 2] {
        sums
    }
    /// Converts i32 to f32; exact below 2^24.
    unsafe fn sums_to_f32(_sums: Self::Sums) -> Self::V {
        no_int8()
    }
    /// Sums of each group of eight lanes, for `128 / LANES` vectors.
    #[inline(always)]
    unsafe fn sums_of_eights(v: *const Self::V) -> [f32; 16] {
        let mut sums = [0.0; 16];
        for (i, to) in sums.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            // SAFETY: the caller's contract.
            *to = unsafe { Self::sums(v.cast::<[Self::V; 4]>().add(i).read()) };
        }
        sums
    }

    /// Prefetches the cache line of any address to L1 (`prefetcht0`).
    #[inline(always)]
    unsafe fn prefetch<T>(_address: *const T) {}

    /// Non-temporal prefetch, for data that is read once (`prefetchnta`).
    #[inline(always)]
    unsafe fn prefetch_once<T>(_address: *const T) {}

    /// Prefetches to L2 (`prefetcht1`), for long distances that exceed L1.
    #[inline(always)]
    unsafe fn prefetch_far<T>(_address: *const T) {}

    /// Prefetches with write intent: other cores lose the line.
    #[inline(always)]
    unsafe fn prefetch_to_write<T>(_address: *const T) {}

    /// Non-temporal store: writes `v` without fetching its cache line; see
    /// [`crate::cpu::simd::streaming_store`]. The address is aligned to the vector size.
    #[inline(always)]
    unsafe fn store_past(to: *mut f32, v: Self::V) {
        // SAFETY: the caller's contract.
        unsafe { Self::store(to, v) }
    }

    /// Exponential function, to about 1 ulp. Arguments are clamped to the range of normal results.
    #[inline(always)]
    unsafe fn exp(v: Self::V) -> Self::V {
        // x = n ln 2 + r with |r| <= ln 2 / 2. ln 2 is split in two, so that r has full precision.
        // SAFETY: the caller's contract.
        unsafe {
            let x = Self::min(Self::max(v, Self::splat(-87.336)), Self::splat(88.376));
            let (n, power) = Self::round_and_power(Self::mul(x, Self::splat(std::f32::consts::LOG2_E)));
            let r = Self::fma(n, Self::splat(-0.693_359_4), x);
            let r = Self::fma(n, Self::splat(2.121_944_4e-4), r);
            let mut p = Self::splat(1.987_569_1e-4);
            for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
                p = Self::fma(p, r, Self::splat(coefficient));
            }
            let one_and_r = Self::add(r, Self::splat(1.0));
            Self::mul(Self::fma(Self::mul(r, r), p, one_and_r), power)
        }
    }

    /// Hyperbolic tangent, to about 3 ulp. It is a rational function without overflow, or cancellation at
    /// small x. From 7.9 on it is 1.
    #[inline(always)]
    unsafe fn tanh(v: Self::V) -> Self::V {
        // SAFETY: the caller's contract.
        unsafe {
            // The argument order makes NaN pass through.
            let x = Self::min(Self::splat(7.905_311), Self::max(Self::splat(-7.905_311), v));
            let s = Self::mul(x, x);
            let mut over = Self::splat(-2.760_768_5e-16);
            for coefficient in
                [2.000_188e-13, -8.604_672e-11, 5.122_297e-8, 1.485_722_4e-5, 6.372_619_4e-4, 4.893_524_6e-3]
            {
                over = Self::fma(over, s, Self::splat(coefficient));
            }
            let mut under = Self::splat(1.198_258_4e-6);
            for coefficient in [1.185_347e-4, 2.268_434_7e-3, 4.893_525_3e-3] {
                under = Self::fma(under, s, Self::splat(coefficient));
            }
            Self::div(Self::mul(x, over), under)
        }
    }
}

/// What int8 operations do without [`Simd::HAS_INT8`].
#[cold]
pub(crate) fn no_int8() -> ! {
    unreachable!("activations are f32 without int8 products");
}
