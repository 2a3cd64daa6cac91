//! Encodes `q8_0`, `q5_0` and `q4_0` with weighted errors: the scale of each block is the one with the least
//! weighted sum of squared errors that a search finds.

use crate::codec::affine_levels::AffineLevels;
use crate::codec::codes::{block_bytes, pack};
use crate::codec::range_error::RangeError;
use crate::codec::rounding::code_of;
use crate::codec::weighted_fit::{WeightedGroup, fit_symmetric};
use forge_ir::{BLOCK, Bits};
use half::f16;

/// Encodes a row of finite values. Values are (q - `zero`) · scale for q up to `levels`; q is stored minus
/// `bias`.
pub(crate) fn encode(
    bits: Bits,
    [zero, levels, bias]: [f32; 3],
    row: WeightedGroup<'_>,
    codes: &mut [u8],
    scales: &mut [u8],
) -> Result<(), RangeError> {
    let blocks = codes.chunks_exact_mut(block_bytes(bits)).zip(scales.as_chunks_mut::<2>().0);
    for (index, (bytes, stored)) in blocks.enumerate() {
        let group = row.part(index * BLOCK..(index + 1) * BLOCK);
        let largest = group.values.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        if f16::from_f32(largest / zero).is_infinite() {
            return Err(RangeError::TooLarge { value: largest });
        }
        let line = |scale: f16| {
            let scale = scale.to_f32();
            AffineLevels::new(scale, -zero * scale, levels)
        };
        let store = |scale: f32| Some(f16::from_f32(scale)).filter(|half| half.is_finite()).map(line);
        let zeros = AffineLevels::new(0.0, 0.0, levels);
        let line = fit_symmetric(group, (zero, levels), store).unwrap_or(zeros);
        *stored = f16::from_f32(line.scale).to_le_bytes();
        let mut block = [0; BLOCK];
        for (column, code) in block.iter_mut().enumerate() {
            let x = group.values.get(column).copied().unwrap_or(0.0);
            let q = if line.scale == 0.0 { zero } else { line.code(x) };
            *code = code_of(q - bias);
        }
        pack(bits, &block, bytes);
    }
    Ok(())
}
