//! Encodes and decodes iq4_nl and iq4_xs: nibbles that are indices of 16 entries, which are denser near 0.
//! [`forge_ir::Format::Iq4Nl`] and [`forge_ir::Format::Iq4Xs`] define the values.
//!
//! Encoding tries scales that map the largest magnitude of a block to places around the last entry. For each, the
//! scale with the least squared error (optionally weighted) is computed from the entries nearest to the values.
//! The best one is rounded to the stored type, and the entries nearest with that scale are stored.

use crate::codec::affine_levels::LANES;
use crate::codec::codes::{pack, unpack};
use crate::codec::range_error::RangeError;
use forge_ir::{BLOCK, Bits, Format, IQ4_ENTRIES, SUPERBLOCK};
use half::f16;

/// Places of the largest magnitude, in multiples of a scale.
const PLACES: std::ops::RangeInclusive<i8> = 113..=127;

/// Largest byte of a scale.
const MOST: f32 = 127.0;

/// Decodes the first `out.len()` values of a row, as far as there are nibbles and scales.
pub(crate) fn decode(format: Format, codes: &[u8], scales: &[u8], out: &mut [f32]) {
    let blocks = out.chunks_mut(BLOCK).zip(codes.chunks_exact(BLOCK / 2)).zip(scales_of(format, scales));
    for ((out, codes), scale) in blocks {
        let codes = unpack(Bits::Four, codes);
        let entries = codes.iter().map(|code| f32::from(IQ4_ENTRIES[usize::from(*code)]));
        out.iter_mut().zip(entries).for_each(|(out, entry)| *out = entry * scale);
    }
}

/// The scale of every block.
fn scales_of(format: Format, scales: &[u8]) -> impl Iterator<Item = f32> + '_ {
    let half = |bytes: &[u8]| f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
    let per_group = format.planes()[1].per_group * format.planes()[1].element.bytes();
    scales.chunks_exact(per_group).flat_map(move |of_group| {
        let d = half(of_group);
        let bytes = of_group[2..].iter().map(move |s| d * f32::from(s.cast_signed()));
        let single = (format == Format::Iq4Nl).then_some(d);
        single.into_iter().chain(bytes)
    })
}

/// Encodes a row of finite values. Padding columns are the entry nearest to 0.
pub(crate) fn encode(
    format: Format,
    row: &[f32],
    weights: Option<&[f32]>,
    codes: &mut [u8],
    scales: &mut [u8],
) -> Result<(), RangeError> {
    RangeError::check_f16(row)?;
    let best = row.chunks(BLOCK).enumerate().map(|(index, values)| {
        best_scale(values, weights.map(|weights| &weights[index * BLOCK..][..values.len()]))
    });
    if format == Format::Iq4Nl {
        for (bytes, scale) in scales.as_chunks_mut::<2>().0.iter_mut().zip(best) {
            *bytes = f16::from_f32(scale).to_le_bytes();
        }
    } else {
        let best: Vec<f32> = best.collect();
        let superblocks =
            scales.chunks_exact_mut(2 + SUPERBLOCK / BLOCK).zip(best.chunks(SUPERBLOCK / BLOCK));
        for (stored, best) in superblocks {
            let largest = best.iter().fold(0.0_f32, |largest, scale| largest.max(scale.abs()));
            let nearest = f16::from_f32(largest / MOST);
            // Small f16 values are so far apart that the nearest can fall short by many steps.
            let is_short = largest > (MOST + 0.5) * nearest.to_f32();
            let d = if is_short { f16::from_bits(nearest.to_bits() + 1) } else { nearest };
            stored.fill(0);
            stored[..2].copy_from_slice(&d.to_le_bytes());
            let d = d.to_f32();
            for (byte, scale) in stored[2..].iter_mut().zip(best) {
                let s = if d > 0.0 { (scale / d).round().clamp(-MOST, MOST) } else { 0.0 };
                *byte = (s as i8).cast_unsigned();
            }
        }
    }
    let blocks = codes.chunks_exact_mut(BLOCK / 2).zip(scales_of(format, scales)).enumerate();
    for (index, (bytes, scale)) in blocks {
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / f64::from(scale) };
        let block = std::array::from_fn(|column| {
            let value = row.get(index * BLOCK + column).copied().unwrap_or(0.0);
            nearest_entry((f64::from(value) * inverse) as f32)
        });
        pack(Bits::Four, &block, bytes);
    }
    Ok(())
}

/// The middles between neighboring entries.
const MIDDLES: [f32; 15] = {
    let mut middles = [0.0; 15];
    let mut i = 0;
    while i < middles.len() {
        middles[i] = (IQ4_ENTRIES[i] as f32 + IQ4_ENTRIES[i + 1] as f32) / 2.0;
        i += 1;
    }
    middles
};

/// The index of the entry nearest to a value.
fn nearest_entry(x: f32) -> u8 {
    MIDDLES.into_iter().map(|middle| u8::from(x > middle)).sum()
}

/// The distance of each entry from the one before.
const STEPS: [f32; 15] = {
    let mut steps = [0.0; 15];
    let mut i = 0;
    while i < steps.len() {
        steps[i] = (IQ4_ENTRIES[i + 1] as f32) - (IQ4_ENTRIES[i] as f32);
        i += 1;
    }
    steps
};

/// The entries nearest to some values: those of [`nearest_entry`], but summed instead of looked up, for SIMD.
#[inline(always)]
fn nearest_values(values: [f32; LANES]) -> [f32; LANES] {
    let mut entries = [f32::from(IQ4_ENTRIES[0]); LANES];
    for (middle, step) in MIDDLES.into_iter().zip(STEPS) {
        for lane in 0..LANES {
            entries[lane] += if values[lane] > middle { step } else { 0.0 };
        }
    }
    entries
}

/// The scale with the least squared error of a block; errors may have weights.
fn best_scale(values: &[f32], weights: Option<&[f32]>) -> f32 {
    let largest = values.iter().copied().fold(0.0_f32, |a, b| if b.abs() > a.abs() { b } else { a });
    if largest == 0.0 {
        return 0.0;
    }
    // Relative to the largest, so that squares are neither too small nor too large. Missing values have no weight.
    let (mut relative, mut of_columns) = ([0.0; BLOCK], [0.0; BLOCK]);
    for (column, x) in values.iter().enumerate() {
        relative[column] = x / largest;
        of_columns[column] = weights.map_or(1.0, |weights| weights[column]);
    }
    let (mut best, mut most) = (1.0 / -MOST, 0.0);
    for place in PLACES {
        // The last entry on the negative side is further from 0.
        for sign in [-1.0, 1.0] {
            let inverse = sign * f32::from(place);
            let (mut products, mut squares) = ([0.0; LANES], [0.0; LANES]);
            let columns = relative.as_chunks::<LANES>().0.iter().zip(of_columns.as_chunks::<LANES>().0);
            for (x, weights) in columns {
                let entries = nearest_values(x.map(|x| x * inverse));
                for lane in 0..LANES {
                    let weighted = weights[lane] * entries[lane];
                    products[lane] += weighted * x[lane];
                    squares[lane] += weighted * entries[lane];
                }
            }
            let [products, squares] = [products, squares].map(|lanes| lanes.iter().sum::<f32>());
            // What the scale with the least error, products / squares, removes from the sum of squares.
            let removed = products * products / squares;
            if removed > most {
                (best, most) = (products / squares, removed);
            }
        }
    }
    best * largest
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The decoded values of an encoded row.
    fn through(format: Format, row: &[f32]) -> Vec<f32> {
        let [mut codes, mut scales] = format.plane_bytes(row.len()).map(|bytes| vec![9; bytes]);
        encode(format, row, None, &mut codes, &mut scales).unwrap();
        let mut out = vec![9.0; row.len()];
        decode(format, &codes, &scales, &mut out);
        out
    }

    #[test]
    fn entries_are_their_own_nearest() {
        for (index, entry) in IQ4_ENTRIES.into_iter().enumerate() {
            assert_eq!(usize::from(nearest_entry(f32::from(entry))), index);
        }
        assert_eq!(
            [nearest_entry(-1e9), nearest_entry(-116.0), nearest_entry(0.0), nearest_entry(1e9)],
            [0, 0, 8, 15]
        );
        for (index, middle) in MIDDLES.into_iter().enumerate() {
            assert_eq!(usize::from(nearest_entry(middle)), index);
            assert_eq!(usize::from(nearest_entry(middle.next_up())), index + 1);
        }
        for x in (-1400..1400).map(|tenth| tenth as f32 / 10.0) {
            let entry = f32::from(IQ4_ENTRIES[usize::from(nearest_entry(x))]);
            assert_eq!(nearest_values([x; LANES]), [entry; LANES], "{x}");
        }
    }

    #[test]
    fn zeros_are_exact() {
        assert_eq!(through(Format::Iq4Nl, &[0.0; 40]), [0.0; 40]);
        assert_eq!(through(Format::Iq4Xs, &[0.0; 256]), [0.0; 256]);
    }

    proptest! {
        #[test]
        fn blocks_with_the_first_entry_are_nearly_exact(codes in prop::collection::vec(0_usize..16, 31), d in -3.0_f32..3.0) {
            let d = f16::from_f32(d).to_f32();
            let entries = std::iter::once(0).chain(codes).map(|code| d * f32::from(IQ4_ENTRIES[code]));
            let row: Vec<f32> = entries.collect();
            for (a, b) in row.iter().zip(through(Format::Iq4Nl, &row)) {
                prop_assert!((a - b).abs() <= 2e-3 * a.abs(), "{a} became {b}");
            }
        }
    }
}
