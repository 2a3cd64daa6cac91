//! Keys and values as a cache keeps them, where that changes what a model computes more than the order of sums does.

use crate::rows::Values;
use forge_ir::{BLOCK, Format};
use half::f16;
use std::borrow::Cow;

/// What is read back of keys or values. Halves are taken as they are: the tolerance for logits has room for their
/// rounding. Codes of eight bits are not.
pub(crate) fn cached(x: &Values, cache: Format) -> Cow<'_, Values> {
    if cache != Format::Q8_0 {
        return Cow::Borrowed(x);
    }
    let mut kept = x.clone();
    kept.numbers.chunks_exact_mut(BLOCK).for_each(codes);
    Cow::Owned(kept)
}

/// Numbers that share a scale, which gives the largest the code 127, each as its code stands for it.
fn codes(block: &mut [f32]) {
    let largest = block.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
    let step = f16::from_f32(largest / 127.0).to_f32();
    for x in block {
        *x = step * (*x / step.max(f32::MIN_POSITIVE)).round_ties_even().clamp(-127.0, 127.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_whole_steps_and_no_more_than_half_a_step_off() {
        let numbers: Vec<f32> =
            (0..96).map(|i| ((i * i * 37 % 101) as f32 - 50.0) * 10_f32.powi(i / 32 - 2)).collect();
        let x = Values { width: 96, numbers };
        assert_eq!(cached(&x, Format::F16).numbers, x.numbers);
        let kept = cached(&x, Format::Q8_0);
        for (before, after) in x.numbers.chunks(BLOCK).zip(kept.numbers.chunks(BLOCK)) {
            let largest = before.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
            let step = f16::from_f32(largest / 127.0).to_f32();
            for (before, after) in before.iter().zip(after) {
                assert_eq!((after / step).round() * step, *after);
                assert!((before - after).abs() <= 0.501 * step, "{before} became {after}");
            }
        }
        let zeros = Values { width: 32, numbers: vec![0.0; 32] };
        assert_eq!(cached(&zeros, Format::Q8_0).numbers, zeros.numbers);
    }
}
