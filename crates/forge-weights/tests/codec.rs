//! What storing a row changes, for every format.

use forge_ir::{BLOCK, Format};
use forge_weights::{Unfit, decode_row, encode_row, plane_bytes};
use half::f16;
use proptest::prelude::*;

/// A row's planes.
fn encode(format: Format, row: &[f32]) -> Result<[Vec<u8>; 2], Unfit> {
    let mut planes = plane_bytes(format, row.len()).map(|bytes| vec![0xa5; bytes]);
    let [values, scales] = &mut planes;
    encode_row(format, row, [values, scales])?;
    Ok(planes)
}

fn decode(format: Format, [values, scales]: &[Vec<u8>; 2], columns: usize) -> Vec<f32> {
    let mut row = vec![f32::NAN; columns];
    decode_row(format, [values, scales], &mut row);
    row
}

/// The largest error that storing `x` in a block may make.
fn bound(format: Format, x: f32, block: &[f32]) -> f64 {
    let x = f64::from(x.abs());
    let largest = f64::from(block.iter().fold(0.0_f32, |top, x| top.max(x.abs())));
    // A scale is off by 2^-11 of itself, or by half of the smallest half.
    let scale =
        |levels: f64| (largest / levels, levels * (largest / levels * 2_f64.powi(-11)).max(2_f64.powi(-25)));
    match format {
        Format::F32 => 0.0,
        Format::F16 => (x * 2_f64.powi(-11)).max(2_f64.powi(-25)),
        Format::Bf16 => (x * 2_f64.powi(-8)).max(2_f64.powi(-134)),
        Format::Q8_0 => {
            let (step, off) = scale(127.0);
            0.5001 * step + off
        }
        // The number opposite to the largest has no code of its own: it is a whole step off.
        Format::Q4_0 => {
            let (step, off) = scale(8.0);
            1.0001 * step + off
        }
    }
}

fn rows() -> impl Strategy<Value = Vec<f32>> {
    let number = prop_oneof![
        4 => -1.0_f32..1.0,
        1 => -60000.0_f32..60000.0,
        1 => -1e-6_f32..1e-6,
        1 => -1e-38_f32..1e-38,
        1 => Just(0.0_f32),
        1 => Just(-0.0_f32),
    ];
    (prop::collection::vec(number, 1..100), -20_i32..=0)
        .prop_map(|(row, power)| row.into_iter().map(|x| x * 2_f32.powi(power)).collect())
}

proptest! {
    #[test]
    fn errors_are_bounded(row in rows()) {
        for format in Format::ALL {
            let planes = encode(format, &row).unwrap();
            let stored = decode(format, &planes, row.len());
            for (block, stored) in row.chunks(BLOCK).zip(stored.chunks(BLOCK)) {
                for (x, y) in block.iter().zip(stored) {
                    let error = (f64::from(*x) - f64::from(*y)).abs();
                    prop_assert!(error <= bound(format, *x, block), "{}: {} became {}", format, x, y);
                }
            }
        }
    }

    #[test]
    fn what_was_stored_is_stored_exactly(row in rows()) {
        for format in Format::ALL {
            let stored = decode(format, &encode(format, &row).unwrap(), row.len());
            let again = decode(format, &encode(format, &stored).unwrap(), row.len());
            prop_assert_eq!(&stored, &again, "{}", format);
        }
    }

    #[test]
    fn padding_is_zero(row in rows()) {
        for format in Format::ALL {
            let padded = row.len().next_multiple_of(BLOCK);
            let whole = decode(format, &encode(format, &row).unwrap(), padded);
            prop_assert!(whole[row.len()..].iter().all(|x| *x == 0.0), "{}: {:?}", format, whole);
        }
    }

    #[test]
    fn plain_formats_round_to_the_nearest(row in rows()) {
        let [values, _] = encode(Format::F16, &row).unwrap();
        for (x, bytes) in row.iter().zip(values.as_chunks::<2>().0) {
            prop_assert_eq!(f16::from_le_bytes(*bytes).to_bits(), f16::from_f32(*x).to_bits());
        }
        let [values, _] = encode(Format::Bf16, &row).unwrap();
        for (x, bytes) in row.iter().zip(values.as_chunks::<2>().0) {
            prop_assert_eq!(u16::from_le_bytes(*bytes), half::bf16::from_f32(*x).to_bits());
        }
    }

    #[test]
    fn any_bytes_decode(values in prop::collection::vec(any::<u8>(), 0..80), scales in prop::collection::vec(any::<u8>(), 0..8)) {
        for format in Format::ALL {
            decode_row(format, [&values, &scales], &mut [0.0; 70]);
        }
    }
}

#[test]
fn quantised_blocks_are_those_of_the_formats_authors() {
    // 127 levels to either side; the scale 1/127 is no half and is rounded to the nearest.
    let mut row = [0.0; BLOCK];
    row[..4].copy_from_slice(&[1.0, -0.5, 0.25, -1.0]);
    let [codes, scales] = encode(Format::Q8_0, &row).unwrap();
    assert_eq!(codes[..4].iter().map(|code| code.cast_signed()).collect::<Vec<_>>(), [127, -64, 32, -127]);
    assert_eq!(scales, f16::from_f32(1.0 / 127.0).to_le_bytes());

    // The largest number's sign makes the scale's: 1.0 is code 0, -1.0 has no code and takes 15.
    let [codes, scales] = encode(Format::Q4_0, &row).unwrap();
    let nibble = |element: usize| if element < 16 { codes[element] & 15 } else { codes[element - 16] >> 4 };
    assert_eq!((0..5).map(nibble).collect::<Vec<_>>(), [0, 12, 6, 15, 8]);
    assert_eq!(nibble(31), 8);
    assert_eq!(scales, f16::from_f32(-0.125).to_le_bytes());
}

#[test]
fn scales_are_rounded_and_not_truncated() {
    // 127 * (1 + 2^-11 + 2^-12): three quarters of the way from one half to the next.
    let row = [127.0 * (1.0 + 2_f32.powi(-11) + 2_f32.powi(-12)); BLOCK];
    let [_, scales] = encode(Format::Q8_0, &row).unwrap();
    assert_eq!(f16::from_le_bytes([scales[0], scales[1]]).to_f32(), 1.0 + 2_f32.powi(-10));
}

#[test]
fn numbers_that_do_not_fit_are_refused() {
    let cases: [(f32, &[Format]); 5] = [
        (f32::NAN, &Format::ALL),
        (f32::NEG_INFINITY, &Format::ALL),
        (65520.0, &[Format::F16]),
        (-1e7, &[Format::F16, Format::Q8_0, Format::Q4_0]),
        (f32::MAX, &[Format::F16, Format::Bf16, Format::Q8_0, Format::Q4_0]),
    ];
    for (x, refused) in cases {
        let mut row = [0.5; 40];
        row[35] = x;
        for format in Format::ALL {
            let expected = match (refused.contains(&format), x.is_finite()) {
                (false, _) => None,
                (true, false) => Some(Unfit::NotFinite { column: 35 }),
                (true, true) => Some(Unfit::TooLarge { value: x }),
            };
            assert_eq!(encode(format, &row).err(), expected, "{x} in {format}");
        }
    }
}
