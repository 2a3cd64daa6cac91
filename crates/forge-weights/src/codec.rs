//! One row of numbers as the bytes of a format, and back.
//!
//! A stored row has one slice of bytes for every plane of its format, padded to whole blocks of columns. Numbers are
//! rounded to the nearest, halves to the even; a number that a format cannot hold is refused, never clipped.

use forge_ir::{BLOCK, Format};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Why a row cannot be stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unfit {
    /// It holds an infinity or a NaN.
    NotFinite {
        /// In this column.
        column: usize,
    },
    /// It holds a number beyond the format's largest, or one whose block's scale is.
    TooLarge {
        /// The number.
        value: f32,
    },
}

/// Bytes of each plane of a stored row. The second is 0 where a format has one plane.
pub fn plane_bytes(format: Format, columns: usize) -> [usize; 2] {
    let mut bytes = [0; 2];
    for (bytes, plane) in bytes.iter_mut().zip(format.planes()) {
        *bytes = columns.div_ceil(BLOCK) * plane.per_block * plane.element.bytes();
    }
    bytes
}

/// Decodes the first `out.len()` numbers of a stored row. The planes are those of [`plane_bytes`]; what they lack is
/// left as it is in `out`.
pub fn decode_row(format: Format, planes: [&[u8]; 2], out: &mut [f32]) {
    let [values, scales] = planes;
    let blocks = out.chunks_mut(BLOCK).zip(scales.chunks_exact(2));
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
                let scale = f16::from_le_bytes([scale[0], scale[1]]).to_f32();
                for (out, code) in out.iter_mut().zip(codes) {
                    *out = f32::from(code.cast_signed()) * scale;
                }
            }
        }
        Format::Q4_0 => {
            for ((out, scale), codes) in blocks.zip(values.chunks_exact(BLOCK / 2)) {
                let scale = f16::from_le_bytes([scale[0], scale[1]]).to_f32();
                let nibbles = codes.iter().map(|code| code & 15).chain(codes.iter().map(|code| code >> 4));
                for (out, code) in out.iter_mut().zip(nibbles) {
                    *out = (f32::from(code) - 8.0) * scale;
                }
            }
        }
    }
}

/// Encodes a row into planes of the sizes of [`plane_bytes`]. Padding columns hold codes whose value is 0.
///
/// # Errors
/// When a number of the row cannot be stored in the format.
///
/// # Panics
/// When the planes have other sizes.
pub fn encode_row(format: Format, row: &[f32], planes: [&mut [u8]; 2]) -> Result<(), Unfit> {
    assert_eq!(planes.each_ref().map(|plane| plane.len()), plane_bytes(format, row.len()));
    let [values, scales] = planes;
    if let Some(column) = row.iter().position(|x| !x.is_finite()) {
        return Err(Unfit::NotFinite { column });
    }
    match format {
        Format::F32 => plain(row, values, |x| Some(x.to_le_bytes())),
        Format::F16 => plain(row, values, |x| {
            let half = f16::from_f32(x);
            half.is_finite().then_some(half.to_le_bytes())
        }),
        Format::Bf16 => plain(row, values, |x| {
            let half = bf16::from_f32(x);
            half.is_finite().then_some(half.to_le_bytes())
        }),
        Format::Q8_0 => quantise(row, values, scales, 127.0, |x, codes| {
            for (code, x) in codes.iter_mut().zip(x) {
                *code = round(*x).cast_unsigned();
            }
        }),
        Format::Q4_0 => quantise(row, values, scales, -8.0, |x, codes| {
            let (low, high) = x.split_at(BLOCK / 2);
            for ((code, low), high) in codes.iter_mut().zip(low).zip(high) {
                *code = nibble(*low) | nibble(*high) << 4;
            }
        }),
    }
}

fn plain<const N: usize>(
    row: &[f32],
    values: &mut [u8],
    encode: impl Fn(f32) -> Option<[u8; N]>,
) -> Result<(), Unfit> {
    let (values, _) = values.as_chunks_mut::<N>();
    let (stored, padding) = values.split_at_mut(row.len());
    for (bytes, x) in stored.iter_mut().zip(row) {
        *bytes = encode(*x).ok_or(Unfit::TooLarge { value: *x })?;
    }
    padding.fill([0; N]);
    Ok(())
}

/// Encodes block by block: the scale is the largest number over `top`, the code that stands for it; the codes are
/// made from what the unrounded scale leaves. A `top` below zero makes the largest number's own sign count.
fn quantise(
    row: &[f32],
    codes: &mut [u8],
    scales: &mut [u8],
    top: f32,
    encode: impl Fn(&[f32; BLOCK], &mut [u8]),
) -> Result<(), Unfit> {
    let per_block = codes.len() / row.len().div_ceil(BLOCK).max(1);
    let blocks = codes.chunks_exact_mut(per_block).zip(scales.as_chunks_mut::<2>().0);
    for (numbers, (codes, stored)) in row.chunks(BLOCK).zip(blocks) {
        let mut block = [0.0; BLOCK];
        block[..numbers.len()].copy_from_slice(numbers);
        let largest = block.iter().fold(0.0_f32, |top, x| if x.abs() > top.abs() { *x } else { top });
        let scale = if top < 0.0 { largest } else { largest.abs() } / top;
        let rounded = f16::from_f32(scale);
        if rounded.is_infinite() {
            return Err(Unfit::TooLarge { value: largest });
        }
        *stored = rounded.to_le_bytes();
        // A scale that rounds to nothing makes every code mean 0; its inverse may not be a number.
        let inverse = if rounded == f16::ZERO || rounded == f16::NEG_ZERO { 0.0 } else { 1.0 / scale };
        for x in &mut block {
            *x *= inverse;
        }
        encode(&block, codes);
    }
    Ok(())
}

/// The nearest whole number, halves away from zero, for a number within -127..=127.
fn round(x: f32) -> i8 {
    let whole = x as i32;
    let rest = x - whole as f32;
    (whole + i32::from(rest >= 0.5) - i32::from(rest <= -0.5)) as i8
}

/// The code of a number within -8..=8.
fn nibble(x: f32) -> u8 {
    ((x + 8.5) as u8).min(15)
}
