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
//!
//! With weights for the columns' errors, the search starts from the weighted fit of each block, and the shared
//! scales are fitted to the result in turn.

use crate::codec::affine_levels::{AffineLevels, ends};
use crate::codec::codes::{block_bytes, pack, unpack};
use crate::codec::range_error::RangeError;
use crate::codec::rounding::code_of;
use crate::codec::weighted_fit::{Moments, WeightedGroup, fit_affine, fit_symmetric};
use forge_ir::{BLOCK, Bits, Format, SUPERBLOCK};
use half::f16;
use std::array;

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
            let codes = unpack(bits, bytes);
            let values: [f32; BLOCK] = array::from_fn(|column| f32::from(codes[column]));
            let half_blocks = out.chunks_mut(SIXTEEN).zip(values.chunks(SIXTEEN));
            if matches!(format, Format::Q6K | Format::Q3K) {
                let middle = middle(bits);
                let d = half([scales[0], scales[1]]);
                let of_half_blocks = scales[2 + 2 * block..].iter().map(|s| d * f32::from(s.cast_signed()));
                for ((out, values), scale) in half_blocks.zip(of_half_blocks) {
                    out.iter_mut().zip(values).for_each(|(out, code)| *out = (code - middle) * scale);
                }
            } else {
                for (half, (out, values)) in half_blocks.enumerate() {
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
    weights: Option<&[f32]>,
    codes: &mut [u8],
    scales: &mut [u8],
) -> Result<(), RangeError> {
    RangeError::check_f16(row)?;
    let (bits, of_codes) = of_codes(format);
    let superblocks =
        codes.chunks_exact_mut(of_codes).zip(scales.chunks_exact_mut(format.planes()[1].per_group));
    let levels = f32::from((1_u8 << bits.count()) - 1);
    let store_nibbles = |scales: &mut [u8], pairs: Vec<[u8; 2]>| {
        scales.iter_mut().zip(pairs).for_each(|(byte, [scale, offset])| *byte = scale | offset << 4);
    };
    let store_bytes = |scales: &mut [u8], pairs: Vec<[u8; 2]>| {
        scales.as_chunks_mut::<2>().0.iter_mut().zip(pairs).for_each(|(bytes, pair)| *bytes = pair);
    };
    for (index, (values, (codes, scales))) in row.chunks(SUPERBLOCK).zip(superblocks).enumerate() {
        let weights = weights.map(|weights| &weights[index * SUPERBLOCK..][..values.len()]);
        let lines = match (format, weights.map(|weights| WeightedGroup { values, weights })) {
            (Format::Q6K | Format::Q3K, None) => signed(values, middle(bits), scales),
            (Format::Q6K | Format::Q3K, Some(group)) => weighted_signed(group, middle(bits), scales),
            (Format::Q2K, None) => {
                pairs::<{ SUPERBLOCK / SIXTEEN }>(values, (levels, FOUR_BITS), scales, store_nibbles)
            }
            (Format::Q2K, Some(group)) => {
                weighted_pairs::<{ SUPERBLOCK / SIXTEEN }>(group, (levels, FOUR_BITS), scales, store_nibbles)
            }
            (_, None) => pairs::<BLOCKS>(values, (levels, SIX_BITS), scales, store_bytes),
            (_, Some(group)) => weighted_pairs::<BLOCKS>(group, (levels, SIX_BITS), scales, store_bytes),
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

/// Rounds of fitting block scales and shared scales in turn.
const ROUNDS: usize = 3;

/// As [`pairs`], with weighted errors.
fn weighted_pairs<const N: usize>(
    group: WeightedGroup<'_>,
    (levels, largest): (f32, f32),
    scales: &mut [u8],
    store: impl FnOnce(&mut [u8], Vec<[u8; 2]>),
) -> Vec<AffineLevels> {
    let blocks: [WeightedGroup<'_>; N] =
        std::array::from_fn(|block| group.part(block * (SUPERBLOCK / N)..(block + 1) * (SUPERBLOCK / N)));
    let fitted = blocks.map(|block| {
        let (low, high) = ends(block.values);
        let low = low.min(0.0);
        let base = AffineLevels::new((high.max(low) - low) / levels, low, levels);
        fit_affine(block, base, 0.0, |[scale, offset]| Some(AffineLevels::new(scale, offset, levels)))
    });
    let most = |of: fn(&AffineLevels) -> f32| fitted.iter().map(of).fold(0.0, f32::max);
    let mut shared = [step_for(most(|it| it.scale), largest), step_for(most(|it| -it.offset), largest)];
    let line = |[d, least]: [f16; 2], [scale, offset]: [f32; 2]| {
        AffineLevels::new(d.to_f32() * scale, -(least.to_f32() * offset), levels)
    };
    let mut best: Option<(f32, [f16; 2], [[f32; 2]; N])> = None;
    for _ in 0..ROUNDS {
        let [d, least] = shared.map(f16::to_f32);
        let mut total = 0.0;
        let places: [[f32; 2]; N] = std::array::from_fn(|index| {
            let fitted = fitted[index];
            let nearest = [times(fitted.scale, d, largest), times(-fitted.offset, least, largest)];
            let error = |place| blocks[index].error(line(shared, place));
            let place = hill_climb(nearest, 0.0..=largest, error);
            total += error(place);
            place
        });
        if best.as_ref().is_some_and(|(error, ..)| total >= *error) {
            break;
        }
        best = Some((total, shared, places));
        let moments = blocks.iter().zip(places);
        let moments = moments.map(|(block, place)| (block.moments(line(shared, place), 0.0), place));
        let Some(next) = Moments::shared(moments) else { break };
        let next = next.map(f16::from_f32);
        if next == shared || next.iter().any(|half| !half.is_finite()) {
            break;
        }
        shared = next;
    }
    let (_, shared, places) = best.unwrap_or((0.0, [f16::ZERO; 2], [[0.0; 2]; N]));
    scales[..2].copy_from_slice(&shared[0].to_le_bytes());
    scales[2..4].copy_from_slice(&shared[1].to_le_bytes());
    store(&mut scales[4..], places.iter().map(|place| place.map(|x| x as u8)).collect());
    places.map(|place| line(shared, place)).to_vec()
}

/// Maximum magnitude of a signed scale.
const SIGNED_SCALE: f32 = 127.0;

/// As [`signed`], with weighted errors.
fn weighted_signed(group: WeightedGroup<'_>, middle: f32, scales: &mut [u8]) -> Vec<AffineLevels> {
    const PARTS: usize = SUPERBLOCK / SIXTEEN;
    let parts: [WeightedGroup<'_>; PARTS] =
        std::array::from_fn(|part| group.part(part * SIXTEEN..(part + 1) * SIXTEEN));
    let levels = 2.0 * middle - 1.0;
    let of_scale = |scale: f32| AffineLevels::new(scale, -middle * scale, levels);
    let fitted = parts.map(|part| {
        fit_symmetric(part, (middle, levels), |scale| Some(of_scale(scale))).map_or(0.0, |line| line.scale)
    });
    let mut shared = step_for(fitted.iter().map(|scale| scale.abs()).fold(0.0, f32::max), SIGNED_SCALE);
    let mut best: Option<(f32, f16, [f32; PARTS])> = None;
    for _ in 0..ROUNDS {
        let d = shared.to_f32();
        let mut total = 0.0;
        let places: [f32; PARTS] = std::array::from_fn(|index| {
            let error = |[place]: [f32; 1]| parts[index].error(of_scale(d * place));
            let nearest = [times(fitted[index], d, SIGNED_SCALE)];
            let place = hill_climb(nearest, -SIGNED_SCALE..=SIGNED_SCALE, error);
            total += error(place);
            place[0]
        });
        if best.as_ref().is_some_and(|(error, ..)| total >= *error) {
            break;
        }
        best = Some((total, shared, places));
        let moments = parts.iter().zip(places);
        let moments = moments.map(|(part, place)| (part.moments(of_scale(d * place), middle), place));
        let Some(next) = Moments::shared_scale(moments).map(f16::from_f32) else { break };
        if next == shared || !next.is_finite() {
            break;
        }
        shared = next;
    }
    let (_, shared, places) = best.unwrap_or((0.0, f16::ZERO, [0.0; PARTS]));
    scales[..2].copy_from_slice(&shared.to_le_bytes());
    for (scale, place) in scales[2..].iter_mut().zip(places) {
        *scale = (place as i8).cast_unsigned();
    }
    places.map(|place| of_scale(shared.to_f32() * place)).to_vec()
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
    let d = step_for(reaches.iter().map(|scale| scale.abs()).fold(0.0, f32::max), SIGNED_SCALE);
    scales[..2].copy_from_slice(&d.to_le_bytes());
    let d = d.to_f32();
    let line = |[scale]: [f32; 1]| AffineLevels::new(d * scale, -middle * (d * scale), 2.0 * middle - 1.0);
    let of_parts = parts.iter().zip(reaches).enumerate().map(|(index, (part, scale))| {
        let nearest = [times(scale, d, SIGNED_SCALE)];
        let range = -SIGNED_SCALE..=SIGNED_SCALE;
        let best = hill_climb(nearest, range, |place| line(place).error(part));
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
    // Small f16 values are so far apart that the nearest can fall short by many steps.
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
