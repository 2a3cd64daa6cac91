//! Vectors in plain Rust. They run on any CPU. Operations of many instructions are functions of their own, because inlined
//! in all kernels they would be most of the build.

use crate::cpu::simd::vectors::Simd;
use half::{bf16, f16};

/// Plain Rust with eight lanes.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

const LANES: usize = 8;

type Lanes = [f32; LANES];

#[inline(always)]
fn lanes(f: impl Fn(usize) -> f32) -> Lanes {
    // `array::from_fn` is a loop, which the compiler would have to unroll in thousands of places.
    [f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7)]
}

impl Simd for Portable {
    type V = Lanes;
    type Sums = ();
    type Codes = ();
    const LANES: usize = LANES;
    const HAS_INT8: bool = false;
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

    #[inline(never)]
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

    #[inline(never)]
    unsafe fn load_entries(from: *const u8, high: bool, table: &[i8; 16]) -> Lanes {
        let shift = if high { 4 } else { 0 };
        lanes(|i| f32::from(table[usize::from((unsafe { from.add(i).read() } >> shift) & 15)]))
    }

    #[inline(never)]
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

    #[inline(never)]
    unsafe fn load_floats8(from: *const u8) -> Lanes {
        lanes(|i| {
            let byte = u16::from(unsafe { from.add(i).read() });
            f16::from_bits((byte & 0x7f) << 7 | (byte & 0x80) << 8).to_f32()
        })
    }

    #[inline(never)]
    unsafe fn splat_f16(from: *const f16) -> Lanes {
        [unsafe { from.read_unaligned() }.to_f32(); LANES]
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
