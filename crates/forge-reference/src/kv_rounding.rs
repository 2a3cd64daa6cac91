//! KV cache quantization, for formats that change results by more than the order of sums does.

use crate::rows::Values;
use forge_ir::{BLOCK, Format};
use half::f16;
use std::borrow::Cow;

/// Keys or values as read from the cache. f16 is not rounded here, because the tolerance covers it; q8_0 is
/// quantized.
pub(crate) fn round_to_cache_format(x: &Values, cache: Format) -> Cow<'_, Values> {
    if cache != Format::Q8_0 {
        return Cow::Borrowed(x);
    }
    let mut rounded = x.clone();
    rounded.data.chunks_exact_mut(BLOCK).for_each(round_block);
    Cow::Owned(rounded)
}

/// Rounds a block to 8-bit quants, with the largest magnitude at 127.
fn round_block(block: &mut [f32]) {
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
    fn q8_0_rounding_error_is_at_most_half_a_step() {
        let data: Vec<f32> =
            (0..96).map(|i| ((i * i * 37 % 101) as f32 - 50.0) * 10_f32.powi(i / 32 - 2)).collect();
        let x = Values { width: 96, data };
        assert_eq!(round_to_cache_format(&x, Format::F16).data, x.data);
        let rounded = round_to_cache_format(&x, Format::Q8_0);
        for (before, after) in x.data.chunks(BLOCK).zip(rounded.data.chunks(BLOCK)) {
            let largest = before.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
            let step = f16::from_f32(largest / 127.0).to_f32();
            for (before, after) in before.iter().zip(after) {
                assert_eq!((after / step).round() * step, *after);
                assert!((before - after).abs() <= 0.501 * step, "{before} became {after}");
            }
        }
        let zeros = Values { width: 32, data: vec![0.0; 32] };
        assert_eq!(round_to_cache_format(&zeros, Format::Q8_0).data, zeros.data);
    }
}
