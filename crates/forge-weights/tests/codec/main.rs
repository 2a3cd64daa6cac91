//! Quantization error of a row, for every format.

mod bounds;

use bounds::{bound, levels, rounded};
use forge_ir::{Affine, Format, Scales};
use forge_weights::{RangeError, decode_row, encode_row};
use half::{bf16, f16};
use proptest::prelude::*;

/// A row's planes.
fn encode(format: Format, row: &[f32]) -> Result<[Vec<u8>; 2], RangeError> {
    let mut planes = format.plane_bytes(row.len()).map(|bytes| vec![0xa5; bytes]);
    let [values, scales] = &mut planes;
    encode_row(format, row, [values, scales])?;
    Ok(planes)
}

fn decode(format: Format, [values, scales]: &[Vec<u8>; 2], columns: usize) -> Vec<f32> {
    let mut row = vec![f32::NAN; columns];
    decode_row(format, [values, scales], &mut row);
    row
}

fn is_affine(format: Format) -> bool {
    matches!(format, Format::Affine(_))
}

const SUPERBLOCKS: [Format; 6] =
    [Format::Iq4Xs, Format::Q2K, Format::Q3K, Format::Q4K, Format::Q5K, Format::Q6K];

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

fn affine_formats() -> impl Iterator<Item = (Format, Affine)> {
    Format::ALL.into_iter().filter_map(|format| match format {
        Format::Affine(affine) => Some((format, affine)),
        _ => None,
    })
}

proptest! {
    #[test]
    fn quantization_error_is_bounded(row in rows()) {
        for format in Format::ALL {
            let planes = encode(format, &row).unwrap();
            let stored = decode(format, &planes, row.len());
            for (group, stored) in row.chunks(format.group()).zip(stored.chunks(format.group())) {
                for (x, y) in group.iter().zip(stored) {
                    let error = (f64::from(*x) - f64::from(*y)).abs();
                    prop_assert!(error <= bound(format, *x, group), "{}: {} became {}", format, x, y);
                }
            }
        }
    }

    #[test]
    fn requantizing_decoded_values_is_lossless(row in rows()) {
        // Affine groups may have values that do not determine the scale: see below for those that do.
        // Superblocks use a search. iq4_nl uses one too. In nvfp4 the largest of 16 decoded values may be less than
        // 6 scales.
        let is_told = |format: &Format| {
            !is_affine(*format) && !SUPERBLOCKS.contains(format) && !matches!(format, Format::Nvfp4 | Format::Iq4Nl)
        };
        for format in Format::ALL.into_iter().filter(is_told) {
            let stored = decode(format, &encode(format, &row).unwrap(), row.len());
            let again = decode(format, &encode(format, &stored).unwrap(), row.len());
            prop_assert_eq!(&stored, &again, "{}", format);
        }
    }

    #[test]
    fn padding_does_not_change_the_values(row in rows()) {
        // Rows in superblock formats are whole superblocks, or rejected, so there is no padding.
        for format in Format::ALL.into_iter().filter(|format| !SUPERBLOCKS.contains(format)) {
            let padded = row.len().next_multiple_of(format.group());
            let whole = decode(format, &encode(format, &row).unwrap(), padded);
            let (row, padding) = whole.split_at(row.len());
            // Padding of an affine format decodes to the offset of the row's last group, which is at most its
            // smallest value.
            let group = &row[row.len().next_multiple_of(format.group()) - format.group()..];
            // iq4_nl has no 0.
            let is_harmless = |x: &f32| *x == 0.0 || format == Format::Iq4Nl || is_affine(format) && group.iter().all(|y| x <= y);
            prop_assert!(padding.iter().all(is_harmless), "{}: {:?}", format, whole);
        }
    }

    #[test]
    fn affine_levels_are_stored_exactly(
        scale in 2.0_f32.powi(-14)..1.0,
        places in prop::collection::vec(0..=255_u8, 2..300),
        offset in -1000.0_f32..1000.0,
    ) {
        for (format, affine) in affine_formats() {
            let (scale, offset) = (rounded(affine, scale), rounded(affine, offset * scale));
            let levels = levels(affine);
            let number = |place: &u8| f32::from(*place.min(&levels)) * scale + offset;
            let mut row: Vec<f32> = places.iter().map(number).collect();
            for group in row.chunks_mut(format.group()) {
                // A group of one value has only a minimum, which is the offset.
                *group.last_mut().unwrap() = number(&levels);
                group[0] = offset;
            }
            let stored = decode(format, &encode(format, &row).unwrap(), row.len());
            prop_assert_eq!(&row, &stored, "{}", format);
        }
    }

    #[test]
    fn constant_f16_groups_are_stored_exactly(number in any::<u16>(), columns in 1_usize..300) {
        let number = f16::from_bits(number).to_f32();
        prop_assume!(number.is_finite());
        for (format, affine) in affine_formats() {
            let number = rounded(affine, number);
            let row = vec![number; columns];
            prop_assert_eq!(&decode(format, &encode(format, &row).unwrap(), columns), &row, "{}", format);
        }
    }

    #[test]
    fn groups_are_quantized_independently(row in rows(), other in -9.0_f32..9.0) {
        for (format, _) in affine_formats() {
            let group = format.group();
            let mut changed = row.clone();
            changed.iter_mut().skip(group).for_each(|x| *x = other);
            let [a, b] = [&row, &changed].map(|row| decode(format, &encode(format, row).unwrap(), row.len()));
            let first = group.min(row.len());
            prop_assert_eq!(&a[..first], &b[..first], "{}", format);
        }
    }

    #[test]
    fn float_formats_round_to_nearest(row in rows()) {
        let [values, _] = encode(Format::F16, &row).unwrap();
        for (x, bytes) in row.iter().zip(values.as_chunks::<2>().0) {
            prop_assert_eq!(f16::from_le_bytes(*bytes).to_bits(), f16::from_f32(*x).to_bits());
        }
        let [values, _] = encode(Format::Bf16, &row).unwrap();
        for (x, bytes) in row.iter().zip(values.as_chunks::<2>().0) {
            prop_assert_eq!(u16::from_le_bytes(*bytes), bf16::from_f32(*x).to_bits());
        }
    }

    #[test]
    fn decodes_any_bytes(values in prop::collection::vec(any::<u8>(), 0..80), scales in prop::collection::vec(any::<u8>(), 0..12)) {
        for format in Format::ALL {
            decode_row(format, [&values, &scales], &mut [0.0; 70]);
        }
    }
}

#[test]
fn quantizes_blocks_like_ggml() {
    // 127 levels on either side. The scale 1/127 is not an f16 value and is rounded to nearest.
    let mut row = [0.0; 32];
    row[..4].copy_from_slice(&[1.0, -0.5, 0.25, -1.0]);
    let [codes, scales] = encode(Format::Q8_0, &row).unwrap();
    assert_eq!(codes[..4].iter().map(|code| code.cast_signed()).collect::<Vec<_>>(), [127, -64, 32, -127]);
    assert_eq!(scales, f16::from_f32(1.0 / 127.0).to_le_bytes());

    // The scale has the opposite sign of the largest value: 1.0 is quant 0, and -1.0 has no quant and becomes
    // 15.
    let [codes, scales] = encode(Format::Q4_0, &row).unwrap();
    let nibble = |element: usize| if element < 16 { codes[element] & 15 } else { codes[element - 16] >> 4 };
    assert_eq!((0..5).map(nibble).collect::<Vec<_>>(), [0, 12, 6, 15, 8]);
    assert_eq!(nibble(31), 8);
    assert_eq!(scales, f16::from_f32(-0.125).to_le_bytes());
}

#[test]
fn quantizes_affine_groups_with_scale_and_offset() {
    // Quants 0, 1, 2, ... with an offset of -1 and a scale of 1/16, and again with a scale of 2.
    let row: Vec<f32> = (0..128).map(|x| (x % 16) as f32 * if x < 64 { 0.0625 } else { 2.0 } - 1.0).collect();
    let pair = |scale: f32| [f16::from_f32(scale), f16::from_f32(-1.0)].map(f16::to_le_bytes).concat();
    let format = Format::from_name("affine4").unwrap();
    let [codes, scales] = encode(format, &row).unwrap();
    // Byte j of 16 has column j in its low nibble and column j + 16 in its high one, for each 32 columns.
    let expected: Vec<u8> = (0..64).map(|byte| byte % 16 * 0x11).collect();
    assert_eq!((codes, scales), (expected, [pair(0.0625), pair(2.0)].concat()));

    // Bytes in the order of columns; one short of a group is padded with the offset.
    let row: Vec<f32> = (0..=255).map(|x| x as f32 / 8.0).collect();
    let [codes, scales] = encode(Format::from_name("affine8_128").unwrap(), &row[1..]).unwrap();
    assert_eq!((codes[0], codes[127], codes[128], codes[254], codes[255]), (0, 255, 0, 255, 0));
    let offset = |group: usize| f16::from_le_bytes([scales[4 * group + 2], scales[4 * group + 3]]).to_f32();
    assert_eq!((offset(0), offset(1)), (row[1], row[129]));
}

/// Approximately normal values: sums of four uniform ones, with standard deviation 1.
fn normal(count: usize) -> Vec<f32> {
    let mut state = 1_u64;
    let mut even = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..count).map(|_| (even() + even() + even() + even() - 2.0) * 3_f32.sqrt()).collect()
}

#[test]
fn affine_search_has_a_lower_error_than_min_max() {
    let row = normal(1 << 14);
    for (format, affine) in affine_formats() {
        let stored = decode(format, &encode(format, &row).unwrap(), row.len());
        let (mut error, mut straight) = (0.0, 0.0);
        for (group, stored) in row.chunks(format.group()).zip(stored.chunks(format.group())) {
            let low = group.iter().copied().fold(f32::MAX, f32::min);
            let high = group.iter().copied().fold(f32::MIN, f32::max);
            let step = (high - low) / f32::from(levels(affine));
            for (x, stored) in group.iter().zip(stored) {
                error += f64::from(x - stored).powi(2);
                straight += f64::from(((x - low) / step).round() * step + low - x).powi(2);
            }
        }
        let relative = (error / straight).sqrt();
        println!(
            "{format}: {relative:.3} of the error between the ends, {:.1e}",
            (error / row.len() as f64).sqrt()
        );
        match levels(affine) {
            // Rounding the offset to bf16 widens the range by up to 1/128 of it.
            31.. if affine.scales == Scales::Bf16 => {
                assert!((relative - 1.0).abs() < 0.04, "{format}: {relative}")
            }
            31.. => assert!((relative - 1.0).abs() < 0.01, "{format}: {relative}"),
            _ => assert!(relative < 0.96, "{format}: {relative}"),
        }
    }
}

#[test]
fn mxfp4_error_is_above_q4_0_and_below_an_eighth() {
    let row = normal(1 << 14);
    let error = |format| {
        let stored = decode(format, &encode(format, &row).unwrap(), row.len());
        let squares: f64 = row.iter().zip(stored).map(|(x, stored)| f64::from(x - stored).powi(2)).sum();
        (squares / row.len() as f64).sqrt()
    };
    let (floats, nibbles) = (error(Format::Mxfp4), error(Format::Q4_0));
    println!("mxfp4: {floats:.3} of normal numbers, q4_0 {nibbles:.3}");
    assert!(floats < 0.125 && floats > nibbles, "{floats} {nibbles}");
}

#[test]
fn rounds_scales_to_nearest() {
    // 127 * (1 + 2^-11 + 2^-12): three quarters of the way between two f16 values.
    let row = [127.0 * (1.0 + 2_f32.powi(-11) + 2_f32.powi(-12)); 32];
    let [_, scales] = encode(Format::Q8_0, &row).unwrap();
    assert_eq!(f16::from_le_bytes([scales[0], scales[1]]).to_f32(), 1.0 + 2_f32.powi(-10));
}

#[test]
fn rejects_unrepresentable_values() {
    let of_halves = |affine: &Affine| affine.scales == Scales::F16;
    let affine: Vec<Format> =
        affine_formats().filter(|(_, affine)| of_halves(affine)).map(|(format, _)| format).collect();
    let cases: [(f32, &[Format]); 5] = [
        (f32::NAN, &Format::ALL),
        (f32::NEG_INFINITY, &Format::ALL),
        (
            65520.0,
            &[&[Format::F16, Format::Fp8, Format::Iq4Nl, Format::Mxfp4, Format::Nvfp4], &SUPERBLOCKS[..]]
                .concat(),
        ),
        (
            -1e7,
            &[
                &[
                    Format::F16,
                    Format::Fp8,
                    Format::Q8_0,
                    Format::Q5_0,
                    Format::Q4_0,
                    Format::Iq4Nl,
                    Format::Mxfp4,
                    Format::Nvfp4,
                ],
                &SUPERBLOCKS[..],
                &*affine,
            ]
            .concat(),
        ),
        (
            f32::MAX,
            &[
                &[
                    Format::F16,
                    Format::Bf16,
                    Format::Fp8,
                    Format::Q8_0,
                    Format::Q5_0,
                    Format::Q4_0,
                    Format::Iq4Nl,
                    Format::Mxfp4,
                    Format::Nvfp4,
                ],
                &SUPERBLOCKS[..],
                &*affine,
            ]
            .concat(),
        ),
    ];
    for (x, rejected) in cases {
        let mut row = [0.5; 40];
        row[35] = x;
        for format in Format::ALL {
            // Whether the largest f32 fits depends on the rounding of its bf16 scale.
            if x == f32::MAX && is_affine(format) && !affine.contains(&format) {
                continue;
            }
            let expected = match (rejected.contains(&format), x.is_finite()) {
                (false, _) => None,
                (true, false) => Some(RangeError::NotFinite { column: 35 }),
                (true, true) => Some(RangeError::TooLarge { value: x }),
            };
            assert_eq!(encode(format, &row).err(), expected, "{x} in {format}");
        }
    }
}
