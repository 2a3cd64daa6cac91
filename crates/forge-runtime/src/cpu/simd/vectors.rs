//! What kernels ask of vectors of f32.
//!
//! SAFETY: functions are `unsafe` because a level's instructions may only run where they exist ([`crate::cpu::simd::isa`] sees to
//! that) and because loads and stores take bare pointers, at any alignment, to as many elements as they name.

use half::{bf16, f16};

/// Twice the floats of 4 bits, in the order of their codes.
pub(crate) const TWICE4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// A vector of `LANES` f32. `LANES` divides 16.
pub(crate) trait Simd: Copy + 'static {
    /// The vector.
    type V: Copy;
    /// As many i32: sums of products of codes.
    type Sums: Copy;
    /// Four codes of a weight for each of them.
    type Codes: Copy;
    /// Its elements.
    const LANES: usize;
    /// By how much the bytes that `add_products` takes of a weight are larger than its codes: 128 where they are unsigned.
    const RAISED: i32;
    /// Rows of x that meet three vectors of outputs at once, 8, 4 or 2: so many sums that registers hold them.
    const TILE: usize;

    /// All lanes `x`.
    unsafe fn splat(x: f32) -> Self::V;
    /// `LANES` singles.
    unsafe fn load(from: *const f32) -> Self::V;
    /// A square of `LANES` rows of as many words, of each of which it is said where it is: its columns become rows that lie so far apart.
    #[inline(always)]
    unsafe fn turn(rows: [*const f32; 16], to: *mut f32, columns_apart: usize) {
        for (row, from) in rows.iter().enumerate().take(Self::LANES) {
            for column in 0..Self::LANES {
                // SAFETY: the caller's promise.
                unsafe { *to.add(column * columns_apart + row) = from.add(column).read_unaligned() };
            }
        }
    }
    /// `2 * LANES` halves of words: the lower ones, then the upper ones.
    #[inline(always)]
    unsafe fn store_halves(to: *mut u16, words: Self::V) {
        let mut numbers = [0.0_f32; 16];
        // SAFETY: no level has more lanes, and the caller's promise.
        unsafe {
            Self::store(numbers.as_mut_ptr(), words);
            for (lane, number) in numbers.iter().enumerate().take(Self::LANES) {
                to.add(lane).write(number.to_bits() as u16);
                to.add(Self::LANES + lane).write((number.to_bits() >> 16) as u16);
            }
        }
    }
    /// Those of `2 * LANES` singles that are even in number, and those that are odd.
    unsafe fn load_pairs(from: *const f32) -> [Self::V; 2];
    /// `LANES` singles.
    unsafe fn store(to: *mut f32, v: Self::V);
    /// a + b
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    /// a - b
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    /// a * b
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// a / b
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// a * b + c, rounded once where the machine can.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger, lane by lane.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// The smaller, lane by lane.
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// The nearest whole number n, and 2^n; n is at least -126 and at most 127.
    unsafe fn round_and_power(v: Self::V) -> (Self::V, Self::V);
    /// The sum of all lanes.
    unsafe fn sum(v: Self::V) -> f32;
    /// The sum of all lanes of each, to the bit what `sum` gives.
    #[inline(always)]
    unsafe fn sums(v: [Self::V; 4]) -> [f32; 4] {
        // SAFETY: the caller's promise.
        unsafe { [Self::sum(v[0]), Self::sum(v[1]), Self::sum(v[2]), Self::sum(v[3])] }
    }
    /// The largest lane.
    unsafe fn largest(v: Self::V) -> f32;
    /// `LANES` whole numbers of a byte with a sign, as such; anything for what is no number.
    unsafe fn store_codes(to: *mut i8, v: Self::V);
    /// `LANES` halves, widened.
    unsafe fn load_f16(from: *const f16) -> Self::V;
    /// `LANES` bfloats, widened.
    unsafe fn load_bf16(from: *const bf16) -> Self::V;
    /// `LANES` signed bytes, widened.
    unsafe fn load_i8(from: *const i8) -> Self::V;
    /// `LANES` unsigned bytes, widened.
    unsafe fn load_u8(from: *const u8) -> Self::V;
    /// The low (or high) nibbles of `LANES` bytes, widened.
    unsafe fn load_u4(from: *const u8, high: bool) -> Self::V;
    /// The low (or high) nibbles of `LANES` bytes, less 8, widened.
    unsafe fn load_nibbles(from: *const u8, high: bool) -> Self::V;
    /// The floats of 4 bits in the low (or high) nibbles of `LANES` bytes, widened.
    unsafe fn load_floats4(from: *const u8, high: bool) -> Self::V;
    /// One half, widened, in all lanes.
    unsafe fn splat_f16(from: *const f16) -> Self::V;

    /// All lanes `x`.
    unsafe fn splat_sums(x: i32) -> Self::Sums;
    /// To each lane, four products: those of its four bytes of `weights` with the four codes of `x`, which all lanes share.
    /// Exact: codes of x are at least -127.
    unsafe fn add_products(sums: Self::Sums, weights: *const i8, x: *const i8) -> Self::Sums;
    /// `4 * LANES` signed bytes, larger by `RAISED`.
    unsafe fn load_codes(from: *const i8) -> Self::Codes;
    /// `4 * LANES` nibbles: of each block the low ones of its 16 bytes, then the high ones. They are not raised.
    unsafe fn load_nibble_codes(from: *const u8) -> Self::Codes;
    /// The low nibbles of `4 * LANES` bytes, and the high ones. They are not raised.
    unsafe fn load_nibble_pairs(from: *const u8) -> [Self::Codes; 2];
    /// To each lane, the products of its four codes with four codes of `x`, which all lanes share.
    unsafe fn add_shared(sums: Self::Sums, codes: Self::Codes, x: *const i8) -> Self::Sums;
    /// To each lane, the products of its four codes with four codes of `x`, each lane its own.
    unsafe fn add_codes(sums: Self::Sums, codes: Self::Codes, x: *const i8) -> Self::Sums;
    /// Whether small codes, those from 0 to 15, are added up by `add_small`: each lane has two sums of 16 bits then, which have room for a
    /// block of them.
    const SMALL: bool = false;
    /// What `add_shared` does, to two sums a lane, which begin as zeros.
    #[inline(always)]
    unsafe fn add_small(sums: Self::Sums, codes: Self::Codes, x: *const i8) -> Self::Sums {
        // SAFETY: the caller's promise.
        unsafe { Self::add_shared(sums, codes, x) }
    }
    /// The two sums of each lane, and what is to be added to them.
    #[inline(always)]
    unsafe fn of_small(sums: Self::Sums, _more: i32) -> Self::Sums {
        sums
    }
    /// Whether products of two rows of x are made together, by `add_pair`.
    const PAIRS: bool = false;
    /// To the sums of two rows, which begin as zeros, eight products a lane: those of its eight bytes of `weights` with the eight codes of
    /// each row, which all lanes share. Which sum is where is the level's business, until [`Simd::of_pair`] says it.
    #[inline(always)]
    unsafe fn add_pair(sums: [Self::Sums; 2], _weights: *const i8, _x: [*const i8; 2]) -> [Self::Sums; 2] {
        sums
    }
    /// The sums of the first row, and those of the second, each with its own to be added.
    #[inline(always)]
    unsafe fn of_pair(sums: [Self::Sums; 2], _more: [i32; 2]) -> [Self::Sums; 2] {
        sums
    }
    /// Each sum as a single: exact below 2^24.
    unsafe fn sums_to_singles(sums: Self::Sums) -> Self::V;
    /// The sum of each eight lanes of `128 / LANES` vectors.
    #[inline(always)]
    unsafe fn sums_of_eights(v: *const Self::V) -> [f32; 16] {
        let mut sums = [0.0; 16];
        for (i, to) in sums.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *to = unsafe { Self::sums(v.cast::<[Self::V; 4]>().add(i).read()) };
        }
        sums
    }

    /// Asks for the cache line of `address`, which may be any, to be brought near.
    #[inline(always)]
    unsafe fn prefetch<T>(_address: *const T) {}

    /// The same, where it is read once and then not for long: no other cache keeps it.
    #[inline(always)]
    unsafe fn prefetch_once<T>(_address: *const T) {}

    /// The same, but no nearer than the second cache: for what is far ahead, and more than the first has room for.
    #[inline(always)]
    unsafe fn prefetch_far<T>(_address: *const T) {}

    /// The same, brought near to be written: no other core keeps it.
    #[inline(always)]
    unsafe fn prefetch_to_write<T>(_address: *const T) {}

    /// Writes `v` to memory without asking for its cache line, which other cores have and lose: see [`crate::cpu::simd::streaming_store`]. The address is a
    /// multiple of the vector's size.
    #[inline(always)]
    unsafe fn store_past(to: *mut f32, v: Self::V) {
        // SAFETY: the caller's promise.
        unsafe { Self::store(to, v) }
    }

    /// The exponential, to about 1 unit in the last place; arguments are clamped to where it is a normal number.
    #[inline(always)]
    unsafe fn exp(v: Self::V) -> Self::V {
        // x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 in two parts, so that r is exact to the last place.
        // SAFETY: the caller's promise.
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

    /// The hyperbolic tangent, to about 3 units in the last place: a quotient of polynomials, in which nothing overflows
    /// and where x is small no digits cancel. From 7.9 on it is 1.
    #[inline(always)]
    unsafe fn tanh(v: Self::V) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe {
            // What is not a number passes: the bounds come first.
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
