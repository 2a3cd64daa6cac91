//! Encodes a row of f32 values in a format, and decodes it.
//!
//! A stored row has one byte slice per plane of its format, padded to whole groups of columns. Values are
//! rounded to nearest, f16 and bf16 with ties to even. A value that the format cannot represent is an error;
//! it is never clipped.
//!
//! Simple formats are inlined, because callers may be compiled for wider vectors.

use crate::codec::codes::{block_bytes, pack, unpack};
use crate::codec::range_error::RangeError;
use crate::codec::rounding::{code_of, round, unsigned};
use crate::codec::weighted_fit::WeightedGroup;
use crate::codec::{affine, fp8, iq4, mxfp4, nvfp4, superblock, symmetric};
use forge_ir::{BLOCK, Bits, Format};
use half::f16;
use half::slice::HalfFloatSliceExt;

/// Decodes the first `out.len()` values of a stored row. Planes have the sizes of [`Format::plane_bytes`];
/// values beyond shorter planes are left unchanged in `out`.
#[inline(always)]
pub fn decode_row(format: Format, planes: [&[u8]; 2], out: &mut [f32]) {
    let [values, scales] = planes;
    let blocks = out.chunks_mut(BLOCK).zip(scales.chunks_exact(2));
    let scale_of = |bytes: &[u8]| f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
    match format {
        Format::F32 => {
            for (out, bytes) in out.iter_mut().zip(values.as_chunks::<4>().0) {
                *out = f32::from_le_bytes(*bytes);
            }
        }
        Format::Bf16 => {
            for (out, bytes) in out.iter_mut().zip(values.as_chunks::<2>().0) {
                *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
            }
        }
        Format::F16 => {
            let mut halves = [f16::ZERO; 256];
            for (out, bytes) in out.chunks_mut(halves.len()).zip(values.chunks(2 * halves.len())) {
                let halves = &mut halves[..out.len().min(bytes.len() / 2)];
                for (half, bytes) in halves.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *half = f16::from_le_bytes(*bytes);
                }
                halves.convert_to_f32_slice(&mut out[..halves.len()]);
            }
        }
        Format::Q8_0 => {
            for ((out, scale), codes) in blocks.zip(values.chunks_exact(BLOCK)) {
                let scale = scale_of(scale);
                for (out, code) in out.iter_mut().zip(codes) {
                    *out = f32::from(code.cast_signed()) * scale;
                }
            }
        }
        Format::Q4_0 => {
            for ((out, scale), codes) in blocks.zip(values.chunks_exact(BLOCK / 2)) {
                let scale = scale_of(scale);
                let (low, high) = out.split_at_mut(out.len().min(BLOCK / 2));
                for (out, code) in low.iter_mut().zip(codes) {
                    *out = (f32::from(code & 15) - 8.0) * scale;
                }
                for (out, code) in high.iter_mut().zip(codes) {
                    *out = (f32::from(code >> 4) - 8.0) * scale;
                }
            }
        }
        Format::Q5_0 => {
            for ((out, scale), codes) in blocks.zip(values.chunks_exact(block_bytes(Bits::Five))) {
                let scale = scale_of(scale);
                for (out, code) in out.iter_mut().zip(unpack(Bits::Five, codes)) {
                    *out = (f32::from(code) - 16.0) * scale;
                }
            }
        }
        Format::Q6K | Format::Q5K | Format::Q4K | Format::Q3K | Format::Q2K => {
            superblock::decode(format, values, scales, out);
        }
        Format::Iq4Nl | Format::Iq4Xs => iq4::decode(format, values, scales, out),
        Format::Mxfp4 => mxfp4::decode(values, scales, out),
        Format::Nvfp4 => nvfp4::decode(values, scales, out),
        Format::Fp8 => fp8::decode(values, scales, out),
        Format::Affine(format) => affine::decode(format, values, scales, out),
    }
}

/// Encodes a row into planes of the sizes of [`Format::plane_bytes`]. Padding columns are 0; with offsets any
/// value in their group's range, and in k-quants the value nearest to 0.
///
/// # Errors
/// If a value of the row cannot be stored in the format.
///
/// # Panics
/// If the planes have other sizes.
#[inline(always)]
pub fn encode_row(format: Format, row: &[f32], planes: [&mut [u8]; 2]) -> Result<(), RangeError> {
    assert_eq!(planes.each_ref().map(|plane| plane.len()), format.plane_bytes(row.len()));
    let [values, scales] = planes;
    expect_finite(row)?;
    match format {
        Format::F32 => {
            let (values, _) = values.as_chunks_mut::<4>();
            let (stored, padding) = values.split_at_mut(row.len());
            stored.iter_mut().zip(row).for_each(|(bytes, x)| *bytes = x.to_le_bytes());
            padding.fill([0; 4]);
            Ok(())
        }
        Format::F16 => halves(row, values, 0x7c00, |numbers, halves| {
            let mut converted = [f16::ZERO; HALVES];
            let converted = &mut converted[..numbers.len()];
            converted.convert_from_f32_slice(numbers);
            halves.iter_mut().zip(converted).for_each(|(half, converted)| *half = converted.to_bits());
        }),
        Format::Bf16 => halves(row, values, 0x7f80, |numbers, halves| {
            for (half, x) in halves.iter_mut().zip(numbers) {
                let bits = x.to_bits();
                *half = ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16;
            }
        }),
        Format::Q8_0 => quantize(
            row,
            values,
            scales,
            |largest| largest.abs() / 127.0,
            |x, codes| {
                codes.iter_mut().zip(x).for_each(|(code, x)| *code = code_of(round(*x)));
            },
        ),
        Format::Q4_0 => quantize(
            row,
            values,
            scales,
            |largest| largest / -8.0,
            |x, codes| {
                let (low, high) = x.split_at(BLOCK / 2);
                for ((code, low), high) in codes.iter_mut().zip(low).zip(high) {
                    *code = code_of(unsigned(*low, 8.0)) | code_of(unsigned(*high, 8.0)) << 4;
                }
            },
        ),
        Format::Q5_0 => quantize(
            row,
            values,
            scales,
            |largest| largest / -16.0,
            |x, codes| pack(Bits::Five, &x.map(|x| code_of(unsigned(x, 16.0))), codes),
        ),
        Format::Q6K | Format::Q5K | Format::Q4K | Format::Q3K | Format::Q2K => {
            superblock::encode(format, row, None, values, scales)
        }
        Format::Iq4Nl | Format::Iq4Xs => iq4::encode(format, row, None, values, scales),
        Format::Mxfp4 => mxfp4::encode(row, values, scales),
        Format::Nvfp4 => nvfp4::encode(row, values, scales),
        Format::Fp8 => fp8::encode(row, values, scales),
        Format::Affine(format) => affine::encode(format, row, None, values, scales),
    }
}

/// As [`encode_row`], where the squared error of each column has a weight that is not negative. Formats whose
/// codes are integers minimize the weighted error; others are encoded as without weights.
///
/// # Errors
/// As [`encode_row`].
///
/// # Panics
/// If the planes have other sizes, or there are not as many weights as columns.
pub fn encode_row_weighted(
    format: Format,
    row: &[f32],
    weights: &[f32],
    planes: [&mut [u8]; 2],
) -> Result<(), RangeError> {
    assert_eq!(row.len(), weights.len());
    assert_eq!(planes.each_ref().map(|plane| plane.len()), format.plane_bytes(row.len()));
    let group = WeightedGroup { values: row, weights };
    match (format, planes) {
        (Format::Q8_0 | Format::Q5_0 | Format::Q4_0, [codes, scales]) => {
            expect_finite(row)?;
            let (bits, numbers) = match format {
                Format::Q8_0 => (Bits::Eight, [127.0, 254.0, 127.0]),
                Format::Q5_0 => (Bits::Five, [16.0, 31.0, 0.0]),
                _ => (Bits::Four, [8.0, 15.0, 0.0]),
            };
            symmetric::encode(bits, numbers, group, codes, scales)
        }
        (Format::Q6K | Format::Q5K | Format::Q4K | Format::Q3K | Format::Q2K, [codes, scales]) => {
            expect_finite(row)?;
            superblock::encode(format, row, Some(weights), codes, scales)
        }
        (Format::Iq4Nl | Format::Iq4Xs, [codes, scales]) => {
            expect_finite(row)?;
            iq4::encode(format, row, Some(weights), codes, scales)
        }
        (Format::Affine(format), [codes, scales]) => {
            expect_finite(row)?;
            affine::encode(format, row, Some(weights), codes, scales)
        }
        (Format::F32 | Format::F16 | Format::Bf16 | Format::Fp8 | Format::Mxfp4 | Format::Nvfp4, planes) => {
            encode_row(format, row, planes)
        }
    }
}

/// A fast check over every row; the position is searched only on failure.
#[inline(always)]
fn expect_finite(row: &[f32]) -> Result<(), RangeError> {
    if row.iter().fold(false, |found, x| found | !x.is_finite()) {
        let column = row.iter().position(|x| !x.is_finite()).unwrap_or(0);
        return Err(RangeError::NotFinite { column });
    }
    Ok(())
}

/// Number of f16 or bf16 values converted at once.
const HALVES: usize = 256;

/// Converts values to f16 or bf16. A result equal to `infinity` was too large.
#[inline(always)]
fn halves(
    row: &[f32],
    values: &mut [u8],
    infinity: u16,
    convert: impl Fn(&[f32], &mut [u16]),
) -> Result<(), RangeError> {
    let (values, _) = values.as_chunks_mut::<2>();
    let (stored, padding) = values.split_at_mut(row.len());
    padding.fill([0; 2]);
    let mut halves = [0; HALVES];
    for (numbers, stored) in row.chunks(HALVES).zip(stored.chunks_mut(HALVES)) {
        let halves = &mut halves[..numbers.len()];
        convert(numbers, halves);
        let too_large = |half: &u16| half & 0x7fff == infinity;
        if halves.iter().fold(false, |found, half| found | too_large(half)) {
            let column = halves.iter().position(too_large).unwrap_or(0);
            return Err(RangeError::TooLarge { value: numbers[column] });
        }
        stored.iter_mut().zip(halves).for_each(|(bytes, half)| *bytes = half.to_le_bytes());
    }
    Ok(())
}

/// Quantizes block by block. The scale comes from the value of largest magnitude, the first one if several;
/// values are divided by the unrounded scale.
#[inline(always)]
fn quantize(
    row: &[f32],
    codes: &mut [u8],
    scales: &mut [u8],
    scale_of: impl Fn(f32) -> f32,
    encode: impl Fn(&[f32; BLOCK], &mut [u8]),
) -> Result<(), RangeError> {
    let per_block = codes.len() / row.len().div_ceil(BLOCK).max(1);
    let blocks = codes.chunks_exact_mut(per_block).zip(scales.as_chunks_mut::<2>().0);
    for (numbers, (codes, stored)) in row.chunks(BLOCK).zip(blocks) {
        let mut block = [0.0; BLOCK];
        block[..numbers.len()].copy_from_slice(numbers);
        let largest = largest(&block);
        let scale = scale_of(largest);
        let rounded = f16::from_f32(scale);
        if rounded.is_infinite() {
            return Err(RangeError::TooLarge { value: largest });
        }
        *stored = rounded.to_le_bytes();
        // A scale that rounds to 0 makes every value 0; its inverse may not be finite.
        let inverse = if rounded.to_f32() == 0.0 { 0.0 } else { 1.0 / scale };
        for x in &mut block {
            *x *= inverse;
        }
        encode(&block, codes);
    }
    Ok(())
}

/// The value of largest magnitude; the first one if several.
#[inline(always)]
fn largest(block: &[f32; BLOCK]) -> f32 {
    // In lanes, because comparisons one after the other take longer than everything else.
    let (mut lowest, mut highest) = (*block, *block);
    let mut width = BLOCK;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            let (low, high) = (lowest[lane + width], highest[lane + width]);
            lowest[lane] = if low < lowest[lane] { low } else { lowest[lane] };
            highest[lane] = if high > highest[lane] { high } else { highest[lane] };
        }
    }
    let (lowest, highest) = (lowest[0], highest[0]);
    if -lowest == highest {
        return block.iter().copied().find(|x| x.abs() == highest).unwrap_or(0.0);
    }
    if -lowest > highest { lowest } else { highest }
}
