//! Encodes and decodes mxfp4: blocks of 32 floats of 4 bits with an exponent byte.
//! [`forge_ir::Format::Mxfp4`] defines the values.
//!
//! Encoding follows the OCP microscaling specification (1.0, section 6.3). The exponent is that of the
//! largest magnitude minus that of the largest float, 2. Scaled values are rounded to the nearest float, ties
//! to even, and clamped to 6, so a block's largest value can be off by a quarter, as in the specification.
//! Values below the smallest scale use the smallest scale.
//!
//! Checkpoints store the same bits with two adjacent columns per byte; only the order changes. An exponent of
//! 255 is NaN and is reported when decoded; 0 is the scale 2^-127.

use crate::codec::codes::{pack, unpack};
use crate::codec::range_error::RangeError;
use forge_ir::{BLOCK, Bits, Format};
use std::io;
use std::ops::Range;

/// Magnitudes of the floats, by their bits.
const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Sign bit of a float.
const SIGN: u8 = 8;

/// Exponent of the largest float.
const LARGEST: i32 = 2;

/// Bias of the exponent byte.
const BIAS: i32 = 127;

/// The scale of an exponent byte.
fn scale(byte: u8) -> f32 {
    match byte {
        255 => f32::NAN,
        // 2^-127 is subnormal: the highest bit of the fraction.
        0 => f32::from_bits(1 << 22),
        _ => f32::from_bits(u32::from(byte) << 23),
    }
}

/// Decodes the first `out.len()` values of a row, as far as there are floats and scales.
pub(crate) fn decode(codes: &[u8], scales: &[u8], out: &mut [f32]) {
    let blocks = out.chunks_mut(BLOCK).zip(scales).zip(codes.chunks_exact(BLOCK / 2));
    for ((out, byte), codes) in blocks {
        let scale = scale(*byte);
        for (out, code) in out.iter_mut().zip(unpack(Bits::Four, codes)) {
            let magnitude = MAGNITUDES[usize::from(code % SIGN)];
            *out = scale * if code < SIGN { magnitude } else { -magnitude };
        }
    }
}

/// Encodes a row of finite values. Padding columns are 0.
pub(crate) fn encode(row: &[f32], codes: &mut [u8], scales: &mut [u8]) -> Result<(), RangeError> {
    RangeError::check_f16(row)?;
    for (values, (codes, byte)) in row.chunks(BLOCK).zip(codes.chunks_exact_mut(BLOCK / 2).zip(scales)) {
        let largest = values.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        *byte = (exponent(largest) - LARGEST + BIAS).max(0) as u8;
        // In f64 the division is exact for every scale.
        let scale = f64::from(scale(*byte));
        let mut block = [0; BLOCK];
        block.iter_mut().zip(values).for_each(|(code, x)| *code = nearest(f64::from(*x) / scale));
        pack(Bits::Four, &block, codes);
    }
    Ok(())
}

/// The exponent of the largest power of two not above a magnitude; the minimum for 0.
fn exponent(magnitude: f32) -> i32 {
    match magnitude.to_bits() >> 23 {
        // Subnormal values have no scale of their own.
        0 => -BIAS,
        bits => bits as i32 - BIAS,
    }
}

/// The bits of the nearest float, ties to even.
pub(crate) fn nearest(x: f64) -> u8 {
    // Midpoints between adjacent floats: above one the upper float is nearest, at one the even float.
    const MIDDLES: [f64; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
    let magnitude = x.abs();
    let is_beyond =
        |(lower, middle): (usize, &f64)| magnitude > *middle || magnitude == *middle && lower % 2 == 1;
    let code = MIDDLES.iter().enumerate().filter(|it| is_beyond(*it)).count() as u8;
    if x < 0.0 && code > 0 { code | SIGN } else { code }
}

/// Fills `out` with rows of a matrix, each floats first and then exponents. The checkpoint's tensors are
/// `X_blocks` and `X_scales`, or `X.weight` and `X.scales` with the same bytes. `read` fills its last
/// argument with bytes of a tensor from an offset on. Rows are whole blocks.
pub(crate) fn rows(
    read: impl Fn(&str, u64, &mut [u8]) -> io::Result<()>,
    tensor: &str,
    columns: usize,
    rows: Range<usize>,
    out: &mut [u8],
) -> io::Result<()> {
    let scales_name = match tensor.strip_suffix("_blocks") {
        Some(matrix) => format!("{matrix}_scales"),
        None => format!("{}.scales", tensor.strip_suffix(".weight").unwrap_or(tensor)),
    };
    let [of_codes, of_scales] = Format::Mxfp4.plane_bytes(columns);
    let part = |name: &str, of_row: usize| {
        let mut bytes = vec![0; rows.len() * of_row];
        read(name, (rows.start * of_row) as u64, &mut bytes).map(|()| bytes)
    };
    let (interleaved, exponents) = (part(tensor, of_codes)?, part(&scales_name, of_scales)?);
    let each = interleaved.chunks_exact(of_codes).zip(exponents.chunks_exact(of_scales));
    for ((interleaved, exponents), out) in each.zip(out.chunks_exact_mut(of_codes + of_scales)) {
        let (codes, scales) = out.split_at_mut(of_codes);
        scales.copy_from_slice(exponents);
        let blocks = interleaved.chunks_exact(BLOCK / 2).zip(codes.chunks_exact_mut(BLOCK / 2));
        for (interleaved, codes) in blocks {
            let code = |column: usize| interleaved[column / 2] >> (column % 2 * 4) & 15;
            pack(Bits::Four, &std::array::from_fn(code), codes);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The decoded values of an encoded row, and its exponents.
    fn through(row: &[f32]) -> (Vec<f32>, Vec<u8>) {
        let [codes, scales] = Format::Mxfp4.plane_bytes(row.len());
        let (mut codes, mut scales) = (vec![0; codes], vec![0; scales]);
        encode(row, &mut codes, &mut scales).unwrap();
        let mut out = vec![9.0; row.len()];
        decode(&codes, &scales, &mut out);
        (out, scales)
    }

    #[test]
    fn mxfp4_layout_matches_the_specification() {
        // The largest value determines the scale: 4 is 2², so the scale is 1.
        let row = [4.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 0.26, -0.25, -0.75, -2.6, 7.9];
        let (values, scales) = through(&row);
        assert_eq!(values, [4.0, 0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 0.5, 0.0, -1.0, -3.0, 6.0]);
        assert_eq!(scales, [127]);
        // 3.9 is below 4, so the scale is 0.5; 3.9 is 7.8 steps, clamped to 6.
        assert_eq!(through(&[3.9, 5e-9]), (vec![3.0, 0.0], vec![126]));
        assert_eq!(through(&[0.0; 40]), (vec![0.0; 40], vec![0, 0]));
        assert_eq!(through(&[65504.0]), (vec![49152.0], vec![140]), "beyond 6 is 6");
        let unrepresentable_value = encode(&[65536.0], &mut [0; 16], &mut [0]);
        assert_eq!(unrepresentable_value, Err(RangeError::TooLarge { value: 65536.0 }));
        // The smallest scale, and a value of half of it.
        let least = 2.0_f32.powi(-127);
        assert_eq!(through(&[-6.0 * least, 0.5 * least]), (vec![-6.0 * least, 0.5 * least], vec![0]));
    }

    #[test]
    fn exponents_are_powers_of_two_and_255_is_nan() {
        for byte in 0..255 {
            assert_eq!(f64::from(scale(byte)), 2.0_f64.powi(i32::from(byte) - BIAS), "{byte}");
        }
        let mut out = [0.0; 2];
        decode(&[0x21; 16], &[255], &mut out);
        assert!(out.iter().all(|x| x.is_nan()));
    }

    proptest! {
        #[test]
        fn representable_values_round_trip(codes in any::<[u8; 16]>(), byte in 3_u8..140) {
            let mut values = [0.0; BLOCK];
            decode(&codes, &[byte], &mut values);
            // The scale comes from the largest value, whose float may be smaller than the largest float.
            prop_assert_eq!(through(&values).0, values);
        }

        #[test]
        fn nearest_returns_the_nearest_fp4_value(x in -8.0_f64..8.0) {
            let code = nearest(x);
            let own = f64::from(MAGNITUDES[usize::from(code % SIGN)]);
            let least = MAGNITUDES.iter().map(|it| (f64::from(*it) - x.abs()).abs()).fold(f64::MAX, f64::min);
            prop_assert_eq!((own - x.abs()).abs(), least);
            prop_assert!(own == 0.0 || (code >= SIGN) == (x < 0.0));
        }

        #[test]
        fn repacked_mxfp4_rows_dequantize_to_the_same_values(bytes in prop::collection::vec(any::<u8>(), 3 * 34)) {
            const COLUMNS: usize = 64;
            let (codes, exponents) = bytes.split_at(3 * 32);
            let read = |name: &str, offset: u64, out: &mut [u8]| {
                let all = match name {
                    "a_blocks" | "a.weight" => codes,
                    "a_scales" | "a.scales" => exponents,
                    _ => return Err(io::ErrorKind::NotFound.into()),
                };
                out.copy_from_slice(&all[offset as usize..][..out.len()]);
                Ok(())
            };
            let [mut out, mut of_words] = [vec![0; 2 * 34], vec![0; 2 * 34]];
            rows(read, "a_blocks", COLUMNS, 1..3, &mut out).unwrap();
            rows(read, "a.weight", COLUMNS, 1..3, &mut of_words).unwrap();
            prop_assert_eq!(&out, &of_words);
            for (row, stored) in out.chunks(34).enumerate() {
                let mut values = [0.0; COLUMNS];
                decode(&stored[..32], &stored[32..], &mut values);
                for (column, x) in values.iter().enumerate() {
                    let place = (row + 1) * COLUMNS + column;
                    let code = codes[place / 2] >> (place % 2 * 4) & 15;
                    let sign = if code & SIGN == 0 { 1.0 } else { -1.0 };
                    let meant = sign * MAGNITUDES[usize::from(code & 7)] * scale(exponents[place / BLOCK]);
                    prop_assert!(x.to_bits() == meant.to_bits() || x.is_nan() && meant.is_nan());
                }
            }
        }
    }
}
