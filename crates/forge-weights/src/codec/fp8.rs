//! Encodes and decodes fp8: floats of 8 bits (E4M3) with an f32 scale for every 128 columns.
//! [`forge_ir::Format::Fp8`] defines the values.
//!
//! Encoding maps the largest magnitude of a group to the largest float, 448. Scaled values are rounded to the
//! nearest float, ties to even. A float that is NaN is reported when decoded.

use crate::codec::range_error::RangeError;
use forge_ir::{Format, from_e4m3};
use std::sync::LazyLock;

/// Largest float, and its code.
const LARGEST: f32 = 448.0;
const LARGEST_CODE: u8 = 0x7e;

/// Sign bit of a float.
const SIGN: u8 = 0x80;

/// Exponent of the smallest normal float.
const LEAST_EXPONENT: i32 = -6;

/// Bits of the fraction.
const FRACTION: i32 = 3;

/// The floats by their codes.
static FLOATS: LazyLock<[f32; 256]> = LazyLock::new(|| std::array::from_fn(|code| from_e4m3(code as u8)));

/// Decodes the first `out.len()` values of a row, as far as there are floats and scales.
pub(crate) fn decode(codes: &[u8], scales: &[u8], out: &mut [f32]) {
    let group = Format::Fp8.group();
    let floats = &*FLOATS;
    let groups = out.chunks_mut(group).zip(scales.as_chunks::<4>().0).zip(codes.chunks(group));
    for ((out, scale), codes) in groups {
        let scale = f32::from_le_bytes(*scale);
        out.iter_mut().zip(codes).for_each(|(out, code)| *out = floats[usize::from(*code)] * scale);
    }
}

/// Encodes a row of finite values. Padding columns are 0.
pub(crate) fn encode(row: &[f32], codes: &mut [u8], scales: &mut [u8]) -> Result<(), RangeError> {
    RangeError::check_f16(row)?;
    let group = Format::Fp8.group();
    codes.fill(0);
    scales.fill(0);
    let stored = codes.chunks_exact_mut(group).zip(scales.as_chunks_mut::<4>().0);
    for (values, (codes, bytes)) in row.chunks(group).zip(stored) {
        let largest = values.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        if largest > 0.0 {
            // A subnormal scale has few digits, and is 0 on some GPUs.
            let scale = (largest / LARGEST).max(f32::MIN_POSITIVE);
            *bytes = scale.to_le_bytes();
            let scale = f64::from(scale);
            codes.iter_mut().zip(values).for_each(|(code, x)| *code = nearest(f64::from(*x) / scale));
        }
    }
    Ok(())
}

/// The code of the nearest float, ties to even; of the largest for values beyond it.
pub(crate) fn nearest(x: f64) -> u8 {
    let magnitude = x.abs();
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(LEAST_EXPONENT);
    // 2^(FRACTION - exponent): the number of steps between floats of this size in 1.
    let steps = f64::from_bits(((FRACTION - exponent + 1023) as u64) << 52);
    let code = f64::from((exponent - LEAST_EXPONENT) << FRACTION) + (magnitude * steps).round_ties_even();
    let code = code.min(f64::from(LARGEST_CODE)) as u8;
    if x < 0.0 && code > 0 { code | SIGN } else { code }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The decoded values of an encoded row, and its scales.
    fn through(row: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let [codes, scales] = Format::Fp8.plane_bytes(row.len());
        let (mut codes, mut scales) = (vec![1; codes], vec![1; scales]);
        encode(row, &mut codes, &mut scales).unwrap();
        assert!(codes[row.len()..].iter().all(|code| *code == 0), "padding is 0");
        let mut out = vec![9.0; row.len()];
        decode(&codes, &scales, &mut out);
        (out, scales.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    #[test]
    fn scales_of_small_values_are_normal() {
        let row = [-2.239e-42, 1e-40, 3e-39];
        let (stored, scales) = through(&row);
        assert_eq!(scales, [f32::MIN_POSITIVE]);
        assert_eq!(through(&stored), (stored, scales));
    }

    #[test]
    fn fp8_layout_matches_the_specification() {
        // 448 is the largest float, so the scale is 1. Floats of 256 or more are 32 apart; the smallest are
        // 2^-9 apart.
        let least = 2.0_f32.powi(-9);
        let row =
            [448.0, 1.0625, -1.1875, 270.0, -272.0, 1.5 * least, 0.5 * least, -0.4 * least, 7.5 * least];
        let expected = [448.0, 1.0, -1.25, 256.0, -256.0, 2.0 * least, 0.0, 0.0, 8.0 * least];
        assert_eq!(through(&row), (expected.to_vec(), vec![1.0]));
        let mut two = [0.0; 129];
        (two[1], two[128]) = (-896.0, 0.25 * 448.0);
        assert_eq!(through(&two), (two.to_vec(), vec![2.0, 0.25]));
        assert_eq!(through(&[0.0; 3]), (vec![0.0; 3], vec![0.0]));
        let too_large = encode(&[65536.0], &mut [0; 128], &mut [0; 4]);
        assert_eq!(too_large, Err(RangeError::TooLarge { value: 65536.0 }));
    }

    #[test]
    fn the_nearest_float_of_every_float_is_itself() {
        for code in (0..=u8::MAX).filter(|code| code & 0x7f != 0x7f && *code != SIGN) {
            assert_eq!(nearest(from_e4m3(code).into()), code);
        }
        assert_eq!([nearest(1e9), nearest(-1e9), nearest(-0.0)], [LARGEST_CODE, LARGEST_CODE | SIGN, 0]);
        let mut out = [0.0; 2];
        decode(&[0x7f, 0xff], &1.0_f32.to_le_bytes(), &mut out);
        assert!(out.iter().all(|x| x.is_nan()));
    }

    proptest! {
        #[test]
        fn nearest_returns_the_nearest_float(x in prop_oneof![-450.0_f64..450.0, -0.1_f64..0.1]) {
            let distance = |code: u8| (f64::from(from_e4m3(code)) - x).abs();
            let codes = (0..=u8::MAX).filter(|code| code & 0x7f != 0x7f);
            let least = codes.map(distance).fold(f64::MAX, f64::min);
            prop_assert_eq!(distance(nearest(x)), least);
        }
    }
}
