//! Encodes and decodes affine formats: groups of unsigned values with a scale and an offset, value = q *
//! scale + offset.
//!
//! Scales and offsets are f16, or bf16 if they come from the checkpoint; *half* means either. The offset is
//! the largest half not above the group's minimum. The scale is the half nearest to the exact scale from
//! there to the maximum. Values are rounded to the nearest level of the stored scale and offset, so rounding
//! these only widens the step slightly, and the error is at most half a step. A group of one repeated value
//! is exact if a half represents it.
//!
//! With few levels, outliers make the step coarse for all other values. In four bits or fewer the ends of the
//! range are moved inwards while the sum of squared errors decreases; values beyond them take the outermost
//! levels. For normally distributed values in four bits this reduces the error by a fifteenth.
//!
//! With weights for the columns' errors, scale and offset are fitted to the weighted values in any number of
//! bits, starting from those without weights.

use crate::codec::affine_levels::{AffineLevels, ends};
use crate::codec::codes::{block_bytes, pack, unpack};
use crate::codec::range_error::RangeError;
use crate::codec::rounding::code_of;
use crate::codec::weighted_fit::{WeightedGroup, fit_affine};
use forge_ir::{Affine, BLOCK, Scales};
use half::{bf16, f16};

/// Bytes of a scale and an offset.
const PAIR: usize = 4;

/// Decodes the first `out.len()` values of a row, as far as there are quantized values and scales.
pub(crate) fn decode(format: Affine, codes: &[u8], scales: &[u8], out: &mut [f32]) {
    let groups = out.chunks_mut(format.group.columns()).zip(scales.as_chunks::<PAIR>().0);
    for ((out, [a, b, c, d]), codes) in groups.zip(codes.chunks_exact(format.code_bytes())) {
        let pair = [[*a, *b], [*c, *d]].map(u16::from_le_bytes);
        let line = line(format.scales, pair[0], pair[1], 0.0);
        let blocks = out.chunks_mut(BLOCK).zip(codes.chunks_exact(block_bytes(format.bits)));
        for (out, bytes) in blocks {
            let codes = unpack(format.bits, bytes);
            out.iter_mut().zip(codes).for_each(|(out, code)| *out = line.value(f32::from(code)));
        }
    }
}

/// Encodes a row of finite values. Padding columns are 0, which means the group's offset.
pub(crate) fn encode(
    format: Affine,
    row: &[f32],
    weights: Option<&[f32]>,
    codes: &mut [u8],
    scales: &mut [u8],
) -> Result<(), RangeError> {
    codes.fill(0);
    let groups = codes.chunks_exact_mut(format.code_bytes()).zip(scales.as_chunks_mut::<PAIR>().0);
    let levels = ((1_u16 << format.bits.count()) - 1).into();
    let width = format.group.columns();
    for (index, (values, (codes, pair))) in row.chunks(width).zip(groups).enumerate() {
        let (low, high) = ends(values);
        let line = through(format.scales, low, high, levels)?;
        let line = if levels <= MAX_NARROWED_LEVELS {
            narrow_range(format.scales, line, values, low, high)
        } else {
            line
        };
        let line = if let Some(weights) = weights {
            let group = WeightedGroup { values, weights: &weights[index * width..][..values.len()] };
            fit_affine(group, line, f32::INFINITY, |pair| storable(format.scales, pair, levels))
        } else {
            line
        };
        *pair = stored(format.scales, line);
        for (values, bytes) in values.chunks(BLOCK).zip(codes.chunks_exact_mut(block_bytes(format.bits))) {
            let mut codes = [0; BLOCK];
            codes.iter_mut().zip(values).for_each(|(code, x)| *code = code_of(line.code(*x)));
            pack(format.bits, &codes, bytes);
        }
    }
    Ok(())
}

/// Maximum level for which the ends are moved inwards.
const MAX_NARROWED_LEVELS: f32 = 15.0;

/// The levels of a scale and an offset given as bits.
fn line(scales: Scales, scale: u16, offset: u16, levels: f32) -> AffineLevels {
    AffineLevels::new(widened(scales, scale), widened(scales, offset), levels)
}

/// The bytes of a scale and an offset.
fn stored(scales: Scales, line: AffineLevels) -> [u8; PAIR] {
    let [a, b] = nearest(scales, line.scale).to_le_bytes();
    let [c, d] = nearest(scales, line.offset).to_le_bytes();
    [a, b, c, d]
}

/// Levels whose ends 0 and `levels` are at `low` and `high`, or at the next representable values outside
/// them.
fn through(scales: Scales, low: f32, high: f32, levels: f32) -> Result<AffineLevels, RangeError> {
    let offset = below(scales, low);
    if widened(scales, offset).is_infinite() {
        return Err(RangeError::TooLarge { value: low });
    }
    let reach = high - widened(scales, offset);
    let mut scale = nearest(scales, reach / levels);
    // Small scales are so far apart that the nearest can fall short of the end by many steps.
    if reach > (levels + 0.5) * widened(scales, scale) {
        scale += 1;
    }
    // The inverse of a subnormal bf16 scale overflows f32.
    if scales == Scales::Bf16 && scale > 0 {
        scale = scale.max(bf16::MIN_POSITIVE.to_bits());
    }
    let line = line(scales, scale, offset, levels);
    if line.value(levels).is_finite() { Ok(line) } else { Err(RangeError::TooLarge { value: high }) }
}

/// The levels of the halves nearest to a scale and an offset, if these can be stored.
fn storable(scales: Scales, [scale, offset]: [f32; 2], levels: f32) -> Option<AffineLevels> {
    let mut scale = nearest(scales, scale);
    if scales == Scales::Bf16 && scale > 0 {
        scale = scale.max(bf16::MIN_POSITIVE.to_bits());
    }
    let line = line(scales, scale, nearest(scales, offset), levels);
    (line.scale > 0.0 && line.offset.is_finite() && line.value(levels).is_finite()).then_some(line)
}

/// Moves the ends inwards by half a step at a time while the squared error decreases.
fn narrow_range(
    scales: Scales,
    line: AffineLevels,
    values: &[f32],
    mut low: f32,
    mut high: f32,
) -> AffineLevels {
    let (mut best, mut error) = (line, line.error(values));
    let step = (high - low) / line.levels / 2.0;
    let mut is_better = true;
    while is_better && error > 0.0 && high - low > 4.0 * step {
        is_better = false;
        for (from, to) in [(step, 0.0), (0.0, step)] {
            let Ok(line) = through(scales, low + from, high - to, line.levels) else {
                continue;
            };
            let closer = line.error(values);
            if closer < error {
                (best, error, is_better) = (line, closer, true);
                (low, high) = (low + from, high - to);
            }
        }
    }
    best
}

/// The value of a half.
fn widened(scales: Scales, bits: u16) -> f32 {
    match scales {
        Scales::F16 => f16::from_bits(bits).to_f32(),
        Scales::Bf16 => bf16::from_bits(bits).to_f32(),
    }
}

/// The bits of the half nearest to a value.
fn nearest(scales: Scales, x: f32) -> u16 {
    match scales {
        Scales::F16 => f16::from_f32(x).to_bits(),
        Scales::Bf16 => bf16::from_f32(x).to_bits(),
    }
}

/// The bits of the largest half not above a value; of minus infinity if there is none.
fn below(scales: Scales, x: f32) -> u16 {
    let bits = nearest(scales, x);
    if widened(scales, bits) <= x {
        return bits;
    }
    // One step towards minus infinity: positive halves are ordered as their bits, negative ones in reverse.
    match bits {
        0 | 0x8000 => 0x8001,
        _ if bits < 0x8000 => bits - 1,
        _ => bits + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn below_returns_the_largest_16_bit_float_not_above(x in any::<f32>().prop_filter("a number", |x| !x.is_nan())) {
            for scales in [Scales::F16, Scales::Bf16] {
                let half = widened(scales, below(scales, x));
                prop_assert!(half <= x);
                let mut all = (0..=u16::MAX).map(|bits| widened(scales, bits)).filter(|half| !half.is_nan());
                prop_assert!(all.all(|other| other > x || other <= half));
            }
        }
    }
}
