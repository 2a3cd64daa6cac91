//! Activation functions and other functions of one value.

use crate::cpu::simd::vectors::Simd;
use forge_ops::{Activation, UnaryOp};

/// A function of one value, applied to vectors.
pub(crate) trait Vectorized: Copy {
    /// Applies it to a vector.
    ///
    /// # Safety
    ///
    /// The instruction set of `S` is available.
    unsafe fn of<S: Simd>(self, x: S::V) -> S::V;

    /// Applies it to all values in place.
    ///
    /// # Safety
    ///
    /// The instruction set of `S` is available.
    #[inline(always)]
    unsafe fn apply<S: Simd>(self, values: &mut [f32]) {
        let mut some = [0.0_f32; 16];
        for values in values.chunks_mut(S::LANES) {
            some[..values.len()].copy_from_slice(values);
            // SAFETY: a vector has at most 16 lanes.
            unsafe { S::store(some.as_mut_ptr(), self.of::<S>(S::load(some.as_ptr()))) };
            values.copy_from_slice(&some[..values.len()]);
        }
    }
}

impl Vectorized for Activation {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, x: S::V) -> S::V {
        // SAFETY: the caller's contract.
        unsafe {
            let (whole, exponent) = match self {
                Activation::Gelu => return gelu::<S>(x),
                Activation::Relu => return S::max(x, S::splat(0.0)),
                Activation::ReluSquared => {
                    let positive = S::max(x, S::splat(0.0));
                    return S::mul(positive, positive);
                }
                Activation::Silu => (x, x),
                Activation::Sigmoid => (S::splat(1.0), x),
                // (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)).
                Activation::GeluTanh => {
                    let cubic = S::fma(S::mul(S::splat(0.044715), S::mul(x, x)), x, x);
                    (x, S::mul(S::splat(1.595_769), cubic))
                }
            };
            S::div(whole, S::add(S::splat(1.0), S::exp(S::sub(S::splat(0.0), exponent))))
        }
    }
}

/// Exact GELU: max(x, 0) - |x| q, where q is the normal upper tail at |x|. The tail is a polynomial times
/// exp(-x² / 2), accurate to 2e-7. Beyond 12 it is 0.
#[inline(always)]
unsafe fn gelu<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller's contract.
    unsafe {
        let (zero, one) = (S::splat(0.0), S::splat(1.0));
        let size = S::max(x, S::sub(zero, x));
        let far = S::min(size, S::splat(12.0));
        let t = S::div(one, S::fma(S::splat(0.231_641_89), far, one));
        let mut poly = S::splat(0.530_702_7);
        for factor in [-0.726_576, 0.710_706_9, -0.142_248_36, 0.127_414_8] {
            poly = S::fma(poly, t, S::splat(factor));
        }
        let tail = S::exp(S::mul(S::splat(-0.5), S::mul(far, far)));
        S::sub(S::max(x, zero), S::mul(size, S::mul(S::mul(poly, t), tail)))
    }
}

impl Vectorized for UnaryOp {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, x: S::V) -> S::V {
        // SAFETY: the caller's contract.
        unsafe {
            match self {
                UnaryOp::Activate(activation) => activation.of::<S>(x),
                UnaryOp::Softcap(cap) => S::mul(S::splat(cap), S::tanh(S::div(x, S::splat(cap)))),
                UnaryOp::Scale(factor) => S::mul(S::splat(factor), x),
            }
        }
    }
}
