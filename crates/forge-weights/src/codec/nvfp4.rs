//! Encodes and decodes nvfp4: floats of 4 bits, with an E4M3 scale for every 16 columns and an f32 factor for
//! every 128. [`forge_ir::Format::Nvfp4`] defines the values.
//!
//! Encoding chooses the factor such that the largest scale of a group is 448, as ModelOpt does for a whole
//! matrix. A scale is the E4M3 nearest to a sixth of the largest magnitude of its 16 columns. Scaled values are
//! rounded to the nearest float, ties to even, and clamped to 6.

use crate::codec::codes::{pack, unpack};
use crate::codec::range_error::RangeError;
use crate::codec::{fp8, mxfp4};
use forge_ir::{BLOCK, Bits, Element, Format, from_e4m3};

/// Columns that share a scale.
pub(crate) const SIXTEEN: usize = 16;

/// Bytes of a factor.
const FACTOR: usize = 4;

/// Largest float and largest scale.
const LARGEST: f32 = 6.0 * 448.0;

/// The byte of the scale 480, and its value. E4M3 has NaN there.
const ABOVE: (u8, f32) = (127, 480.0);

/// The value of a scale.
fn scale(byte: u8) -> f32 {
    if byte == ABOVE.0 { ABOVE.1 } else { from_e4m3(byte) }
}

/// Decodes the first `out.len()` values of a row, as far as there are floats and scales.
pub(crate) fn decode(codes: &[u8], scales: &[u8], out: &mut [f32]) {
    let group = Format::Nvfp4.group();
    let groups = out.chunks_mut(group).zip(scales.chunks_exact(Format::Nvfp4.planes()[1].per_group));
    for ((out, scales), codes) in groups.zip(codes.chunks_exact(group / 2)) {
        let (factor, scales) = scales.split_at(FACTOR);
        let factor = f32::from_le_bytes([factor[0], factor[1], factor[2], factor[3]]);
        let blocks = out.chunks_mut(BLOCK).zip(scales.chunks_exact(2)).zip(codes.chunks_exact(BLOCK / 2));
        for ((out, scales), codes) in blocks {
            let codes = unpack(Bits::Four, codes);
            let half_blocks = out.chunks_mut(SIXTEEN).zip(codes.chunks_exact(SIXTEEN)).zip(scales);
            for ((out, codes), byte) in half_blocks {
                let scale = scale(*byte) * factor;
                out.iter_mut().zip(codes).for_each(|(out, code)| *out = Element::E2m1.value(*code) * scale);
            }
        }
    }
}

/// Fills the planes of a row with a float per column, a scale per 16 columns and one factor. Columns are whole
/// sixteens; padding is 0.
pub(crate) fn store(floats: &[u8], of_row: &[u8], factor: f32, [codes, scales]: [&mut [u8]; 2]) {
    codes.fill(0);
    for (floats, codes) in floats.chunks(BLOCK).zip(codes.chunks_exact_mut(BLOCK / 2)) {
        let mut block = [0; BLOCK];
        block[..floats.len()].copy_from_slice(floats);
        pack(Bits::Four, &block, codes);
    }
    let per_group = Format::Nvfp4.group() / SIXTEEN;
    let groups = of_row.chunks(per_group).zip(scales.chunks_exact_mut(FACTOR + per_group));
    for (of_group, stored) in groups {
        let (stored_factor, stored) = stored.split_at_mut(FACTOR);
        stored_factor.copy_from_slice(&factor.to_le_bytes());
        stored.fill(0);
        stored[..of_group.len()].copy_from_slice(of_group);
    }
}

/// Encodes a row of finite values. Padding columns are 0.
pub(crate) fn encode(row: &[f32], codes: &mut [u8], scales: &mut [u8]) -> Result<(), RangeError> {
    RangeError::check_f16(row)?;
    let (group, largest) = (Format::Nvfp4.group(), |values: &[f32]| {
        values.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()))
    });
    let planes = codes.chunks_exact_mut(group / 2).zip(scales.chunks_exact_mut(FACTOR + group / SIXTEEN));
    for (values, (codes, scales)) in row.chunks(group).zip(planes) {
        let factor = largest(values) / LARGEST;
        let (mut floats, mut of_group) = (Vec::with_capacity(group), Vec::new());
        for values in values.chunks(SIXTEEN) {
            // In f64 quotients of small numbers are as precise as others.
            let exact = f64::from(largest(values)) / 6.0 / f64::from(factor);
            let byte = if factor > 0.0 { fp8::nearest(exact) } else { 0 };
            let scale = f64::from(scale(byte) * factor);
            let float = |x: &f32| if scale > 0.0 { mxfp4::nearest(f64::from(*x) / scale) } else { 0 };
            floats.extend(values.iter().map(float));
            of_group.push(byte);
        }
        store(&floats, &of_group, factor, [codes, scales]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The decoded values of an encoded row.
    fn through(row: &[f32]) -> Vec<f32> {
        let [codes, scales] = Format::Nvfp4.plane_bytes(row.len());
        let (mut codes, mut scales) = (vec![9; codes], vec![9; scales]);
        encode(row, &mut codes, &mut scales).unwrap();
        let mut out = vec![9.0; row.len()];
        decode(&codes, &scales, &mut out);
        out
    }

    #[test]
    fn nvfp4_layout_matches_the_definition() {
        // Column 0 has the float 6 (code 7), column 16 the float -0.5 (code 9); scales are 2 and 0.75.
        let (mut codes, mut scales) = ([0; 64], [0; 12]);
        codes[0] = 7 | 9 << 4;
        scales[..4].copy_from_slice(&0.5_f32.to_le_bytes());
        (scales[4], scales[5]) = (0x40, 0x34);
        let mut out = [9.0; 40];
        decode(&codes, &scales, &mut out);
        let mut expected = [0.0; 40];
        (expected[0], expected[16]) = (6.0 * 2.0 * 0.5, -0.5 * 0.75 * 0.5);
        assert_eq!(out, expected);
        scales[4] = 127;
        decode(&codes, &scales, &mut out);
        assert_eq!(out[0], 6.0 * 480.0 * 0.5);
        let too_large = encode(&[65536.0], &mut [0; 64], &mut [0; 12]);
        assert_eq!(too_large, Err(RangeError::TooLarge { value: 65536.0 }));
        assert_eq!(through(&[0.0; 130]), [0.0; 130]);
    }

    proptest! {
        #[test]
        fn representable_values_round_trip(
            codes in prop::collection::vec(0_u8..16, 256),
            exponents in prop::collection::vec(1_u8..16, 16),
        ) {
            // Every sixteen has the float 6, and every group the largest scale.
            let (mut codes, mut scales): (Vec<u8>, Vec<u8>) =
                (codes, exponents.iter().map(|exponent| exponent << 3).collect());
            codes.iter_mut().step_by(16).for_each(|code| *code = 7);
            scales.iter_mut().step_by(8).for_each(|scale| *scale = 0x7e);
            let [of_codes, of_scales] = Format::Nvfp4.plane_bytes(256);
            let (mut stored, mut stored_scales, mut values) = (vec![0; of_codes], vec![0; of_scales], vec![0.0; 256]);
            store(&codes, &scales, 0.25, [&mut stored, &mut stored_scales]);
            decode(&stored, &stored_scales, &mut values);
            prop_assert_eq!(through(&values), values);
        }
    }
}
