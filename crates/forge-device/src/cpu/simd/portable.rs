//! Vectors in plain Rust. They run on any CPU and are the reference for the other instruction sets.

use crate::cpu::simd::vectors::Simd;
use half::{bf16, f16};

/// Plain Rust with eight lanes.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

const LANES: usize = 8;

type Lanes = [f32; LANES];

#[inline(always)]
fn lanes(f: impl Fn(usize) -> f32) -> Lanes {
    std::array::from_fn(f)
}

impl Simd for Portable {
    type V = Lanes;
    type Sums = [i32; LANES];
    type Codes = [[i8; 4]; LANES];
    const LANES: usize = LANES;
    const RAISED: i32 = 0;
    const TILE: usize = 2;
    const HAS_VARIANTS: bool = false;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Lanes {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Lanes {
        // SAFETY: the caller's contract, here and below.
        unsafe { from.cast::<Lanes>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_pairs(from: *const f32) -> [Lanes; 2] {
        let pairs = unsafe { from.cast::<[[f32; 2]; LANES]>().read_unaligned() };
        [lanes(|i| pairs[i][0]), lanes(|i| pairs[i][1])]
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, v: Lanes) {
        unsafe { to.cast::<Lanes>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn add(a: Lanes, b: Lanes) -> Lanes {
        lanes(|i| a[i] + b[i])
    }

    #[inline(always)]
    unsafe fn sub(a: Lanes, b: Lanes) -> Lanes {
        lanes(|i| a[i] - b[i])
    }

    #[inline(always)]
    unsafe fn mul(a: Lanes, b: Lanes) -> Lanes {
        lanes(|i| a[i] * b[i])
    }

    #[inline(always)]
    unsafe fn div(a: Lanes, b: Lanes) -> Lanes {
        lanes(|i| a[i] / b[i])
    }

    #[inline(always)]
    unsafe fn fma(a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        // Not `mul_add`: without a fused instruction it is a slow library call.
        lanes(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    unsafe fn max(a: Lanes, b: Lanes) -> Lanes {
        lanes(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    unsafe fn min(a: Lanes, b: Lanes) -> Lanes {
        lanes(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    unsafe fn round_and_power(v: Lanes) -> (Lanes, Lanes) {
        let n = v.map(f32::round_ties_even);
        (n, n.map(|n| f32::from_bits(((n as i32 + 127) as u32) << 23)))
    }

    #[inline(always)]
    unsafe fn sum(v: Lanes) -> f32 {
        ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
    }

    #[inline(always)]
    unsafe fn largest(v: Lanes) -> f32 {
        v.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    #[inline(always)]
    unsafe fn store_codes(to: *mut i8, v: Lanes) {
        unsafe { to.cast::<[i8; LANES]>().write(v.map(|x| x as i8)) }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Lanes {
        lanes(|i| unsafe { from.add(i).read_unaligned() }.to_f32())
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Lanes {
        lanes(|i| unsafe { from.add(i).read_unaligned() }.to_f32())
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Lanes {
        lanes(|i| f32::from(unsafe { from.add(i).read() }))
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Lanes {
        lanes(|i| f32::from(unsafe { from.add(i).read() }))
    }

    #[inline(always)]
    unsafe fn load_u4(from: *const u8, high: bool) -> Lanes {
        let shift = if high { 4 } else { 0 };
        lanes(|i| f32::from((unsafe { from.add(i).read() } >> shift) & 15))
    }

    #[inline(always)]
    unsafe fn load_entries(from: *const u8, high: bool, table: &[i8; 16]) -> Lanes {
        let shift = if high { 4 } else { 0 };
        lanes(|i| f32::from(table[usize::from((unsafe { from.add(i).read() } >> shift) & 15)]))
    }

    #[inline(always)]
    unsafe fn load_fields(from: *const u16, first: u32, bits: u32, is_signed: bool) -> Lanes {
        let words = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        lanes(|i| {
            let left = u32::from(words[i]) << (32 - first - bits);
            match is_signed {
                true => (left.cast_signed() >> (32 - bits)) as f32,
                false => (left >> (32 - bits)) as f32,
            }
        })
    }

    #[inline(always)]
    unsafe fn load_floats8(from: *const u8) -> Lanes {
        lanes(|i| {
            let byte = u16::from(unsafe { from.add(i).read() });
            f16::from_bits((byte & 0x7f) << 7 | (byte & 0x80) << 8).to_f32()
        })
    }

    #[inline(always)]
    unsafe fn splat_f16(from: *const f16) -> Lanes {
        [unsafe { from.read_unaligned() }.to_f32(); LANES]
    }

    #[inline(always)]
    unsafe fn splat_sums(x: i32) -> [i32; LANES] {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn add_products(sums: [i32; LANES], weights: *const i8, x: *const i8) -> [i32; LANES] {
        let (weights, x) = unsafe { (weights.cast::<[[i8; 4]; LANES]>().read(), x.cast::<[i8; 4]>().read()) };
        let product = |lane: usize, k: usize| i32::from(weights[lane][k]) * i32::from(x[k]);
        std::array::from_fn(|i| sums[i] + (product(i, 0) + product(i, 1)) + (product(i, 2) + product(i, 3)))
    }

    #[inline(always)]
    unsafe fn load_codes(from: *const i8) -> [[i8; 4]; LANES] {
        unsafe { from.cast::<[[i8; 4]; LANES]>().read() }
    }

    #[inline(always)]
    unsafe fn load_nibble_codes(from: *const u8) -> [[i8; 4]; LANES] {
        let bytes = unsafe { from.cast::<[[u8; 4]; 4]>().read() };
        std::array::from_fn(|i| bytes[i % 4].map(|byte| (byte >> (i / 4 * 4) & 15) as i8))
    }

    #[inline(always)]
    unsafe fn lookup_codes(codes: [[i8; 4]; LANES], table: &[i8; 16]) -> [[i8; 4]; LANES] {
        codes.map(|four| four.map(|code| table[usize::from(code.cast_unsigned() & 15)]))
    }

    #[inline(always)]
    unsafe fn load_unsigned_codes(from: *const u8) -> [[i8; 4]; LANES] {
        unsafe { from.cast::<[[u8; 4]; LANES]>().read() }
            .map(|four| four.map(|byte| (byte ^ 128).cast_signed()))
    }

    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> [[i8; 4]; LANES] {
        unsafe { from.cast::<[[i8; 4]; LANES]>().read() }
    }

    #[inline(always)]
    unsafe fn store_bytes(to: *mut u8, codes: [[i8; 4]; LANES]) {
        unsafe { to.cast::<[[i8; 4]; LANES]>().write(codes) }
    }

    #[inline(always)]
    unsafe fn zero_bytes() -> [[i8; 4]; LANES] {
        [[0; 4]; LANES]
    }

    #[inline(always)]
    unsafe fn field(codes: [[i8; 4]; LANES], shift: u32, mask: u8) -> [[i8; 4]; LANES] {
        codes.map(|four| four.map(|byte| (byte.cast_unsigned() >> shift & mask).cast_signed()))
    }

    #[inline(always)]
    unsafe fn join(low: [[i8; 4]; LANES], high: [[i8; 4]; LANES], shift: u32) -> [[i8; 4]; LANES] {
        std::array::from_fn(|lane| std::array::from_fn(|i| low[lane][i] | high[lane][i] << shift))
    }

    #[inline(always)]
    unsafe fn add_shared(sums: [i32; LANES], codes: [[i8; 4]; LANES], x: *const i8) -> [i32; LANES] {
        let x = unsafe { [x.cast::<[i8; 4]>().read(); LANES] };
        unsafe { Self::add_codes(sums, codes, x.as_ptr().cast()) }
    }

    #[inline(always)]
    unsafe fn add_codes(sums: [i32; LANES], codes: [[i8; 4]; LANES], x: *const i8) -> [i32; LANES] {
        let x = unsafe { x.cast::<[[i8; 4]; LANES]>().read() };
        let product = |lane: usize, k: usize| i32::from(codes[lane][k]) * i32::from(x[lane][k]);
        std::array::from_fn(|i| sums[i] + (product(i, 0) + product(i, 1)) + (product(i, 2) + product(i, 3)))
    }

    #[inline(always)]
    unsafe fn sums_to_f32(sums: [i32; LANES]) -> Lanes {
        lanes(|i| sums[i] as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tanh_is_within_its_tolerance() {
        let mut worst = 0.0_f64;
        for step in -100_000_i32..=100_000 {
            let exponent = f64::from(step).abs() / 100_000.0 * 30.0 - 25.0;
            let x = (exponent.exp2() * f64::from(step.signum())) as f32;
            // SAFETY: plain Rust runs on any CPU.
            let found = unsafe { Portable::tanh([x; LANES])[0] };
            let wanted = f64::from(x).tanh();
            worst = worst.max((f64::from(found) - wanted).abs() / wanted.abs().max(1e-30));
        }
        assert!(worst < 5e-7, "{worst:e}");
        // SAFETY: as above.
        assert!(unsafe { Portable::tanh([f32::NAN; LANES])[0] }.is_nan());
    }
}
