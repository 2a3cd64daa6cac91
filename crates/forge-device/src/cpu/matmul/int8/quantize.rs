//! Activation quantization to int8, 16 blocks at a time. The maximum and the sum of a block are horizontal
//! reductions, which are slow. Sixteen blocks are therefore transposed, so that lanes are blocks.

// Index loops over blocks and lanes of fixed-size arrays unroll into registers.
#![allow(clippy::needless_range_loop)]

use crate::cpu::format::matrix::{AT_ONCE, BLOCK};
use crate::cpu::simd::vectors::Simd;

/// Scales and sums of 16 quantized blocks.
pub(crate) struct QuantizedBlock {
    /// Scale of each block.
    pub(crate) scales: [f32; AT_ONCE],
    /// Sum of each block's quants.
    pub(crate) totals: [f32; AT_ONCE],
    /// Sum of the quants in each block's first half.
    pub(crate) half_totals: [f32; AT_ONCE],
}

/// One vector per block.
#[repr(align(64))]
struct Tile([[f32; 16]; AT_ONCE]);

impl Tile {
    const ZEROS: Tile = Tile([[0.0; 16]; AT_ONCE]);

    /// The transpose: from lanes per block to blocks per lane.
    #[inline(always)]
    unsafe fn transposed<S: Simd>(&self) -> Tile {
        let mut transposed = Tile::ZEROS;
        for first in (0..AT_ONCE).step_by(S::LANES) {
            let rows = std::array::from_fn(|i| self.0[(first + i) % AT_ONCE].as_ptr());
            // SAFETY: the caller dispatched on the instruction set, and the tile holds all lanes.
            unsafe { S::transpose(rows, &mut transposed.0[0][first], AT_ONCE) };
        }
        transposed
    }
}

/// Sums each block's lanes, which are integers.
#[inline(always)]
unsafe fn sums_of_blocks<S: Simd>(lanes: &Tile) -> [f32; AT_ONCE] {
    let mut sums = [0.0; AT_ONCE];
    // SAFETY: the caller dispatched on the instruction set, and vectors are in bounds of the tile.
    unsafe {
        let of_lanes = lanes.transposed::<S>();
        for first in (0..AT_ONCE).step_by(S::LANES) {
            let mut sum = S::splat(0.0);
            for lane in 0..S::LANES {
                sum = S::add(sum, S::load(of_lanes.0[lane][first..].as_ptr()));
            }
            S::store(sums[first..].as_mut_ptr(), sum);
        }
    }
    sums
}

/// Quantizes 16 blocks to int8. A block with NaN or infinity gets the scale NaN, so all its products are NaN.
#[inline(always)]
pub(crate) unsafe fn encode<S: Simd>(
    blocks: &[&[f32; BLOCK]; AT_ONCE],
    codes: &mut [[i8; BLOCK]; AT_ONCE],
) -> QuantizedBlock {
    let (mut scales, mut factors) = ([0.0; AT_ONCE], [0.0; AT_ONCE]);
    let (mut totals, mut half_totals);
    let (mut tile, mut half_blocks) = (Tile::ZEROS, Tile::ZEROS);
    // SAFETY: the caller's instruction set includes these instructions, and vectors are in bounds of blocks
    // and tiles.
    unsafe {
        for block in 0..AT_ONCE {
            let mut min = S::load(blocks[block].as_ptr());
            let mut max = min;
            for i in (S::LANES..BLOCK).step_by(S::LANES) {
                let some = S::load(blocks[block].as_ptr().add(i));
                (min, max) = (S::min(min, some), S::max(max, some));
            }
            let sizes = S::max(max, S::sub(S::splat(0.0), min));
            S::store(tile.0[block].as_mut_ptr(), sizes);
        }
        let sizes = tile.transposed::<S>();
        for first in (0..AT_ONCE).step_by(S::LANES) {
            let mut largest = S::splat(0.0);
            for lane in 0..S::LANES {
                largest = S::max(largest, S::load(sizes.0[lane][first..].as_ptr()));
            }
            S::store(scales[first..].as_mut_ptr(), largest);
        }
        for (factor, scale) in factors.iter_mut().zip(&mut scales) {
            // Smaller values have no finite inverse and are negligible.
            *factor = if *scale > 1e-30 { 127.0 / *scale } else { 0.0 };
            *scale /= 127.0;
        }
        // Adding 3 * 2^22 rounds to an integer, ties to even, because the sum has no fraction bits.
        let magic = S::splat(12_582_912.0);
        for block in 0..AT_ONCE {
            let factor = S::splat(factors[block]);
            let mut total = S::splat(0.0);
            for i in (0..BLOCK).step_by(S::LANES) {
                let some = S::mul(S::load(blocks[block].as_ptr().add(i)), factor);
                let rounded = S::sub(S::add(some, magic), magic);
                total = S::add(total, rounded);
                S::store_codes(codes[block].as_mut_ptr().add(i), rounded);
                if i + S::LANES == BLOCK / 2 {
                    S::store(half_blocks.0[block].as_mut_ptr(), total);
                }
            }
            S::store(tile.0[block].as_mut_ptr(), total);
        }
        (totals, half_totals) = (sums_of_blocks::<S>(&tile), sums_of_blocks::<S>(&half_blocks));
    }
    // NaN does not propagate through the maximum, but it does through the totals; infinity times a factor of
    // 0 is also NaN.
    if totals.iter().fold(false, |any, total| any | total.is_nan()) {
        for block in 0..AT_ONCE {
            if totals[block].is_nan() {
                codes[block].fill(0);
                (scales[block], totals[block], half_totals[block]) = (f32::NAN, 0.0, 0.0);
            }
        }
    }
    QuantizedBlock { scales, totals, half_totals }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::isa::{Isa, Task};

    /// Quantizes 16 blocks in a task.
    struct Blocks<'a> {
        blocks: &'a [[f32; BLOCK]; AT_ONCE],
        codes: &'a mut [[i8; BLOCK]; AT_ONCE],
        encoded: &'a mut QuantizedBlock,
    }

    impl Task for Blocks<'_> {
        #[inline(always)]
        fn run<S: Simd>(self) {
            // SAFETY: this runs compiled for its instruction set.
            *self.encoded = unsafe { encode::<S>(&self.blocks.each_ref(), self.codes) };
        }
    }

    /// Each block's quants, the bits of its scale, and the sums of all quants and of those in its first half.
    fn encoded(level: Isa, blocks: &[[f32; BLOCK]; AT_ONCE]) -> Vec<([i8; BLOCK], u32, [f32; 2])> {
        let mut codes = [[1; BLOCK]; AT_ONCE];
        let nothing = [0.0; AT_ONCE];
        let mut encoded = QuantizedBlock { scales: nothing, totals: nothing, half_totals: nothing };
        level.run(Blocks { blocks, codes: &mut codes, encoded: &mut encoded });
        let totals = |i: usize| [encoded.totals[i], encoded.half_totals[i]];
        let of_block = |i: usize| (codes[i], encoded.scales[i].to_bits(), totals(i));
        (0..AT_ONCE).map(of_block).collect()
    }

    #[test]
    fn blocks_quantize_to_127_levels() {
        let mut blocks = [[0.0; BLOCK]; AT_ONCE];
        for (block, numbers) in blocks.iter_mut().enumerate() {
            for (i, number) in numbers.iter_mut().enumerate() {
                *number = ((block * BLOCK + i) as f32 * 0.37).sin() * (block as f32 - 3.0).exp2();
            }
        }
        blocks[3] = [0.0; BLOCK];
        blocks[4][17] = -127.0 * 8.0;
        blocks[4][18] = 2.5 * 8.0;
        for level in Isa::available() {
            for (numbers, (codes, scale, totals)) in blocks.iter().zip(encoded(level, &blocks)) {
                let largest = numbers.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
                let factor = if largest == 0.0 { 0.0 } else { 127.0 / largest };
                assert_eq!(
                    codes.map(f32::from),
                    numbers.map(|x| (x * factor).round_ties_even()),
                    "{level:?}"
                );
                assert_eq!(scale, (largest / 127.0).to_bits(), "{level:?}");
                let sum = |codes: &[i8]| codes.iter().map(|code| f32::from(*code)).sum::<f32>();
                assert_eq!(totals, [sum(&codes), sum(&codes[..BLOCK / 2])], "{level:?}");
            }
        }
    }

    #[test]
    fn nan_affects_only_its_block() {
        let mut blocks = [[1.0; BLOCK]; AT_ONCE];
        for (block, what) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].into_iter().enumerate() {
            for place in [0, 15, 31] {
                blocks[4 * block + place / 15][place] = what;
            }
        }
        for level in Isa::available() {
            for (block, (codes, scale, totals)) in encoded(level, &blocks).into_iter().enumerate() {
                let is_number = blocks[block].iter().all(|number| number.is_finite());
                assert_eq!(is_number, block % 4 == 3 || block > 11, "block {block}");
                assert_eq!(f32::from_bits(scale).is_nan(), !is_number, "block {block}, {level:?}");
                let code = if is_number { 127 } else { 0 };
                assert_eq!(
                    (codes, totals),
                    ([code; BLOCK], [f32::from(code) * 32.0, f32::from(code) * 16.0]),
                    "block {block}, {level:?}"
                );
            }
        }
    }
}
