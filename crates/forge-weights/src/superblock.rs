//! Encodes and decodes superblocks (k-quants): 256 columns whose block scales are quantized themselves, as
//! multiples of a shared f16.
//!
//! [`Format`] defines values and layout. Arithmetic is f32: the products of an f16 with any scale and any
//! quantized value are exact, so a value is rounded once, when the offset is added, and never in
//! `q6_k` and `q3_k`.
//!
//! Encoding searches for the best storable scale and offset of each block. It starts from the pair nearest to
//! the block's range and moves to a neighboring pair while the sum of squared errors decreases. This narrows
//! the range where that helps most values, and corrects for the rounding of scales.

use crate::affine_levels::{AffineLevels, ends};
use crate::codec::{RangeError, code_of};
use crate::codes::{block_bytes, pack, unpack};
use forge_ir::{BLOCK, Bits, Format, SUPERBLOCK};
use half::f16;

/// Blocks of a superblock.
const BLOCKS: usize = SUPERBLOCK / BLOCK;
/// Columns that share a signed scale.
const SIXTEEN: usize = 16;
/// Largest values of 6 and 4 bits: scales and offsets of 32 columns, and of 16.
const SIX_BITS: f32 = 63.0;
const FOUR_BITS: f32 = 15.0;

/// The quantized value of 0 with signed scales.
fn middle(bits: Bits) -> f32 {
    f32::from(1_u8 << (bits.count() - 1))
}

/// Bits of a quantized value, and bytes of a superblock's quantized values.
fn of_codes(format: Format) -> (Bits, usize) {
    (format.bits().unwrap_or(Bits::Eight), format.planes()[0].per_group)
}

fn half([a, b]: [u8; 2]) -> f32 {
    f16::from_le_bytes([a, b]).to_f32()
}

/// Decodes the first `out.len()` values of a row, as far as there are quantized values and scales.
pub(crate) fn decode(format: Format, codes: &[u8], scales: &[u8], out: &mut [f32]) {
    let (bits, of_codes) = of_codes(format);
    let superblocks = out.chunks_mut(SUPERBLOCK).zip(codes.chunks_exact(of_codes));
    for ((out, codes), scales) in superblocks.zip(scales.chunks_exact(format.planes()[1].per_group)) {
        let blocks = out.chunks_mut(BLOCK).zip(codes.chunks_exact(block_bytes(bits)));
        for (block, (out, bytes)) in blocks.enumerate() {
            let values = unpack(bits, bytes).map(f32::from);
            let halves = out.chunks_mut(SIXTEEN).zip(values.chunks(SIXTEEN));
            if matches!(format, Format::Q6K | Format::Q3K) {
                let middle = middle(bits);
                let d = half([scales[0], scales[1]]);
                let of_halves = scales[2 + 2 * block..].iter().map(|s| d * f32::from(s.cast_signed()));
                for ((out, values), scale) in halves.zip(of_halves) {
                    out.iter_mut().zip(values).for_each(|(out, code)| *out = (code - middle) * scale);
                }
            } else {
                for (half, (out, values)) in halves.enumerate() {
                    let line = pair(format, scales, 2 * block + half);
                    out.iter_mut().zip(values).for_each(|(out, code)| *out = line.value(*code));
                }
            }
        }
    }
}

/// The levels of 16 columns.
fn pair(format: Format, scales: &[u8], sixteen: usize) -> AffineLevels {
    let (d, least) = (half([scales[0], scales[1]]), half([scales[2], scales[3]]));
    let [scale, offset] = match format {
        Format::Q2K => [scales[4 + sixteen] & 15, scales[4 + sixteen] >> 4],
        _ => [scales[4 + sixteen / 2 * 2], scales[5 + sixteen / 2 * 2]],
    };
    AffineLevels::new(d * f32::from(scale), -(least * f32::from(offset)), 0.0)
}

/// Encodes a row of finite values. Padding columns are the value nearest to 0.
pub(crate) fn encode(
    format: Format,
    row: &[f32],
    codes: &mut [u8],
    scales: &mut [u8],
) -> Result<(), RangeError> {
    // Kernels for many rows multiply in f16.
    if let Some(x) = row.iter().find(|x| x.abs() > f16::MAX.to_f32()) {
        return Err(RangeError::TooLarge { value: *x });
    }
    let (bits, of_codes) = of_codes(format);
    let superblocks =
        codes.chunks_exact_mut(of_codes).zip(scales.chunks_exact_mut(format.planes()[1].per_group));
    for (values, (codes, scales)) in row.chunks(SUPERBLOCK).zip(superblocks) {
        let levels = f32::from((1_u8 << bits.count()) - 1);
        let lines = match format {
            Format::Q6K | Format::Q3K => signed(values, middle(bits), scales),
            Format::Q2K => {
                pairs::<{ SUPERBLOCK / SIXTEEN }>(values, (levels, FOUR_BITS), scales, |scales, pairs| {
                    scales
                        .iter_mut()
                        .zip(pairs)
                        .for_each(|(byte, [scale, offset])| *byte = scale | offset << 4);
                })
            }
            _ => pairs::<BLOCKS>(values, (levels, SIX_BITS), scales, |scales, pairs| {
                scales.as_chunks_mut::<2>().0.iter_mut().zip(pairs).for_each(|(bytes, pair)| *bytes = pair);
            }),
        };
        for (index, bytes) in codes.chunks_exact_mut(block_bytes(bits)).enumerate() {
            let mut block = [0; BLOCK];
            for (column, code) in block.iter_mut().enumerate() {
                let column = index * BLOCK + column;
                let line = lines[column * lines.len() / SUPERBLOCK];
                *code = code_of(line.code(values.get(column).copied().unwrap_or(0.0)));
            }
            pack(bits, &block, bytes);
        }
    }
    Ok(())
}

/// Finds a scale and an offset for each of `N` parts, at most `largest` units, and stores units and scales.
fn pairs<const N: usize>(
    values: &[f32],
    (levels, largest): (f32, f32),
    scales: &mut [u8],
    store: impl Fn(&mut [u8], Vec<[u8; 2]>),
) -> Vec<AffineLevels> {
    let blocks: [&[f32]; N] = parts(values);
    let reaches = blocks.map(|block| {
        let (low, high) = ends(block);
        // Offsets are never positive.
        let low = low.min(0.0);
        ((high.max(low) - low) / levels, -low)
    });
    let most = |of: fn(&(f32, f32)) -> f32| reaches.iter().map(of).fold(0.0, f32::max);
    let (d, least) = (step_for(most(|it| it.0), largest), step_for(most(|it| it.1), largest));
    scales[..2].copy_from_slice(&d.to_le_bytes());
    scales[2..4].copy_from_slice(&least.to_le_bytes());
    let (d, least) = (d.to_f32(), least.to_f32());
    let line = |[scale, offset]: [f32; 2]| AffineLevels::new(d * scale, -(least * offset), levels);
    let of_blocks = blocks.iter().zip(reaches).map(|(block, (scale, low))| {
        let nearest = [times(scale, d, largest), times(low, least, largest)];
        hill_climb(nearest, 0.0..=largest, |place| line(place).error(block))
    });
    let best: Vec<[f32; 2]> = of_blocks.collect();
    store(&mut scales[4..], best.iter().map(|pair| pair.map(|x| x as u8)).collect());
    best.into_iter().map(line).collect()
}

/// Finds and stores a signed scale for every 16 columns.
fn signed(values: &[f32], middle: f32, scales: &mut [u8]) -> Vec<AffineLevels> {
    let parts: [&[f32]; SUPERBLOCK / SIXTEEN] = parts(values);
    // The range is asymmetric: the value of largest magnitude gets the lowest q, which is one step further
    // from the middle.
    let reaches = parts.map(|part| {
        let (low, high) = ends(part);
        -(if high > -low { high } else { low }) / middle
    });
    const MOST: f32 = 127.0;
    let d = step_for(reaches.iter().map(|scale| scale.abs()).fold(0.0, f32::max), MOST);
    scales[..2].copy_from_slice(&d.to_le_bytes());
    let d = d.to_f32();
    let line = |[scale]: [f32; 1]| AffineLevels::new(d * scale, -middle * (d * scale), 2.0 * middle - 1.0);
    let of_parts = parts.iter().zip(reaches).enumerate().map(|(index, (part, scale))| {
        let nearest = [times(scale, d, MOST)];
        let best = hill_climb(nearest, -MOST..=MOST, |place| line(place).error(part));
        scales[2 + index] = (best[0] as i8).cast_unsigned();
        line(best)
    });
    of_parts.collect()
}

/// Some values in `N` parts of a superblock; missing values shorten the last parts.
fn parts<const N: usize>(values: &[f32]) -> [&[f32]; N] {
    let (size, length) = (SUPERBLOCK / N, values.len());
    std::array::from_fn(|part| &values[length.min(part * size)..length.min((part + 1) * size)])
}

/// The smallest adequate f16 of which `count` steps reach a non-negative number.
fn step_for(number: f32, count: f32) -> f16 {
    let nearest = f16::from_f32(number / count);
    // Small halves are so far apart that the nearest can fall short by many steps.
    if number > (count + 0.5) * nearest.to_f32() { f16::from_bits(nearest.to_bits() + 1) } else { nearest }
}

/// The rounded quotient of a number and a unit, at most `most` either way; 0 for a unit of 0.
fn times(number: f32, unit: f32, most: f32) -> f32 {
    if unit > 0.0 { (number / unit).round().clamp(-most, most) } else { 0.0 }
}

/// Hill climbing over integer points: moves to the best neighbor while there is a better one.
fn hill_climb<const N: usize>(
    mut place: [f32; N],
    range: std::ops::RangeInclusive<f32>,
    error: impl Fn([f32; N]) -> f32,
) -> [f32; N] {
    let mut least = error(place);
    loop {
        let from = place;
        for neighbor in 0..3_usize.pow(N as u32) {
            let step = |axis: usize| (neighbor / 3_usize.pow(axis as u32) % 3) as f32 - 1.0;
            let to: [f32; N] = std::array::from_fn(|axis| from[axis] + step(axis));
            if to == from || to.iter().any(|x| !range.contains(x)) {
                continue;
            }
            let error = error(to);
            if error < least {
                (place, least) = (to, error);
            }
        }
        if place == from {
            return place;
        }
    }
}
