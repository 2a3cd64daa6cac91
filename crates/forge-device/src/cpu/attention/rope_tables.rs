//! RoPE parameters and QK norm: cosine and sine tables, and the preparation of heads for attention.

// Indices address the two channels of a pair in different parts of a head.
#![allow(clippy::needless_range_loop)]

use crate::cpu::simd::vectors::Simd;
use forge_ops::{HeadNorm, LongContext, Pairing, RopeParameters};

/// RoPE on the CPU.
pub(crate) trait RopeTables {
    /// Elements that [`RopeTables::cos_sin`] writes.
    fn table_len(&self) -> usize;

    /// Writes the cosines, then the sines, of all pairs at `position`. The angle is an f32 product, as in the
    /// reference implementations: at long contexts its rounding affects the result.
    fn cos_sin(&self, position: usize, context: usize, table: &mut [f32]);

    /// Rotates a head in place.
    ///
    /// # Safety
    ///
    /// The instruction set of `S` is available.
    unsafe fn rotate<S: Simd>(&self, head: &mut [f32], table: &[f32]);
}

impl RopeTables for RopeParameters {
    fn table_len(&self) -> usize {
        2 * self.frequencies.len()
    }

    fn cos_sin(&self, position: usize, context: usize, cos_sin: &mut [f32]) {
        let (frequencies, slope) = match &self.long {
            Some(LongContext::LongRope { original_context, frequencies }) if context > *original_context => {
                (frequencies, None)
            }
            Some(LongContext::DynamicNtk { original_context, factor }) if context > *original_context => {
                let stretch = factor * (context as f32 / *original_context as f32) - (factor - 1.0);
                (&self.frequencies, Some(-stretch.ln() / (self.frequencies.len() - 1) as f32))
            }
            _ => (&self.frequencies, None),
        };
        let (cosines, sines) = cos_sin.split_at_mut(frequencies.len());
        for (k, ((frequency, cosine), sine)) in frequencies.iter().zip(cosines).zip(sines).enumerate() {
            let frequency = slope.map_or(*frequency, |slope| frequency * (slope * k as f32).exp());
            let (s, c) = (position as f32 * frequency).sin_cos();
            (*cosine, *sine) = (c * self.magnitude, s * self.magnitude);
        }
    }

    #[inline(always)]
    unsafe fn rotate<S: Simd>(&self, head: &mut [f32], cos_sin: &[f32]) {
        let pairs = self.frequencies.len();
        let (cosines, sines) = cos_sin.split_at(pairs);
        let whole = match self.pairing {
            Pairing::Half => pairs / S::LANES * S::LANES,
            Pairing::Interleaved => 0,
        };
        assert!(2 * pairs <= head.len());
        for k in (0..whole).step_by(S::LANES) {
            // SAFETY: these pairs exist, by the assertion above.
            unsafe {
                let (one, other) = (head.as_mut_ptr().add(k), head.as_mut_ptr().add(k + pairs));
                let (a, b) = (S::load(one), S::load(other));
                let (cosine, sine) = (S::load(cosines.as_ptr().add(k)), S::load(sines.as_ptr().add(k)));
                S::store(one, S::sub(S::mul(a, cosine), S::mul(b, sine)));
                S::store(other, S::fma(b, cosine, S::mul(a, sine)));
            }
        }
        for k in whole..pairs {
            let (one, other) = match self.pairing {
                Pairing::Half => (k, k + pairs),
                Pairing::Interleaved => (2 * k, 2 * k + 1),
            };
            let (a, b) = (head[one], head[other]);
            head[one] = a * cosines[k] - b * sines[k];
            head[other] = b * cosines[k] + a * sines[k];
        }
    }
}

/// 1 / sqrt(mean(x²) + epsilon)
#[inline(always)]
pub(crate) unsafe fn inverse_rms<S: Simd>(x: &[f32], epsilon: f32) -> f32 {
    let whole = x.len() / S::LANES * S::LANES;
    // SAFETY: vectors up to `whole` are in bounds.
    unsafe {
        let mut squares = S::splat(0.0);
        for i in (0..whole).step_by(S::LANES) {
            let v = S::load(x.as_ptr().add(i));
            squares = S::fma(v, v, squares);
        }
        let mut total = S::sum(squares);
        for &v in &x[whole..] {
            total += v * v;
        }
        1.0 / (total / x.len() as f32 + epsilon).sqrt()
    }
}

/// `to = x / sqrt(mean(x²) + epsilon)`, times the gain if given.
#[inline(always)]
pub(crate) unsafe fn norm<S: Simd>(x: &[f32], gain: Option<&[f32]>, epsilon: f32, to: &mut [f32]) {
    let width = x.len();
    let whole = width / S::LANES * S::LANES;
    assert!(to.len() == width && gain.is_none_or(|gain| gain.len() == width));
    // SAFETY: vectors up to `whole` are in bounds of all three, by the assertion above.
    unsafe {
        let factor = inverse_rms::<S>(x, epsilon);
        let factors = S::splat(factor);
        for i in (0..whole).step_by(S::LANES) {
            let v = S::mul(S::load(x.as_ptr().add(i)), factors);
            let v = match gain {
                Some(gain) => S::mul(v, S::load(gain.as_ptr().add(i))),
                None => v,
            };
            S::store(to.as_mut_ptr().add(i), v);
        }
        for i in whole..width {
            to[i] = x[i] * factor * gain.map_or(1.0, |gain| gain[i]);
        }
    }
}

/// RMSNorm in place, with gain.
#[inline(always)]
unsafe fn norm_in_place<S: Simd>(x: &mut [f32], gain: &[f32], epsilon: f32) {
    let width = x.len();
    // SAFETY: the caller has checked the instruction set; the gain does not overlap x.
    unsafe {
        let factor = inverse_rms::<S>(x, epsilon);
        assert_eq!(gain.len(), width);
        x.iter_mut().zip(gain).for_each(|(x, gain)| *x *= factor * gain);
    }
}

/// A value head for attention: `from` itself, or its norm, written to `scratch`, if values are normed.
#[inline(always)]
pub(crate) unsafe fn prepare_value<'a, S: Simd>(
    from: &'a [f32],
    norm_of_head: Option<HeadNorm>,
    scratch: &'a mut [f32],
) -> &'a [f32] {
    match norm_of_head {
        Some(HeadNorm { epsilon, values: true, .. }) => {
            // SAFETY: the caller has checked the instruction set.
            unsafe { norm::<S>(from, None, epsilon, scratch) };
            scratch
        }
        _ => from,
    }
}

/// Prepares a query or key head for attention: rotates `from`, and applies the norm, if any, before or after.
#[inline(always)]
pub(crate) unsafe fn prepare<S: Simd>(
    from: &[f32],
    norm_of_head: Option<(HeadNorm, &[f32])>,
    rope: &RopeParameters,
    cos_sin: &[f32],
    to: &mut [f32],
) {
    // SAFETY: the caller has checked the instruction set.
    unsafe {
        match norm_of_head {
            Some((HeadNorm { epsilon, after_rope: false, .. }, gain)) => {
                norm::<S>(from, Some(gain), epsilon, to)
            }
            _ => to.copy_from_slice(from),
        }
        rope.rotate::<S>(to, cos_sin);
        if let Some((HeadNorm { epsilon, after_rope: true, .. }, gain)) = norm_of_head {
            norm_in_place::<S>(to, gain, epsilon);
        }
    }
}
