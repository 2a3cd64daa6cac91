//! int8 GEMV for a few rows of x, directly from row-major weights. Results are bitwise identical to
//! [`crate::cpu::matmul::int8::int8_gemm`].
//!
//! Packing a panel pays off only for many rows. Here the quants of a block are multiplied in place, with
//! eight lanes a block. Lanes are summed as f32, which is exact for integers below 2^24. Sixteen blocks are
//! scaled together, and added to the sum block by block as in the GEMM.

// Index loops over lanes and rows of fixed-size arrays unroll into registers.
#![allow(clippy::needless_range_loop)]

use crate::cpu::format::matrix::{AT_ONCE, BLOCK, Matrix, Scaling};
use crate::cpu::matmul::int8::quantized_rows::QuantizedRow;
use crate::cpu::matmul::int8::scaled_products::scaled;
use crate::cpu::simd::vectors::Simd;
use std::mem::MaybeUninit;

/// Multiplies `W` matrix rows, which start at blocks `first`, by `X` rows of x.
#[inline(always)]
pub(crate) unsafe fn products<S: Simd, M: Matrix, const W: usize, const X: usize>(
    matrix: M,
    first: [usize; W],
    rows: [&QuantizedRow; X],
    blocks: usize,
) -> [[f32; X]; W] {
    let mut sums = [[0.0_f32; X]; W];
    for start in (0..blocks).step_by(AT_ONCE) {
        let count = (blocks - start).min(AT_ONCE);
        let mut of_blocks = [[[0.0; AT_ONCE]; X]; W];
        for w in 0..W {
            // SAFETY: the caller's contract.
            of_blocks[w] = unsafe { by_block::<S, M, X>(matrix, first[w] + start, rows, start, count) };
        }
        for i in 0..count {
            for w in 0..W {
                for r in 0..X {
                    sums[w][r] += of_blocks[w][r][i];
                }
            }
        }
    }
    sums
}

/// Scaled products of each of `count <= AT_ONCE` blocks from `block` on, for each row; `start` is the first
/// block of x.
#[inline(always)]
unsafe fn by_block<S: Simd, M: Matrix, const X: usize>(
    matrix: M,
    block: usize,
    rows: [&QuantizedRow; X],
    start: usize,
    count: usize,
) -> [[f32; AT_ONCE]; X] {
    let together = S::LANES / 8;
    // Not zeroed first: that would take as long as the rest.
    let mut lanes = [[const { MaybeUninit::uninit() }; AT_ONCE]; X];
    // The constant to add to a block's quants as they were multiplied.
    let mut quant_offsets = [0.0; AT_ONCE];
    let mut of_blocks = [[0.0; AT_ONCE]; X];
    // SAFETY: the caller's contract; rows of x have whole groups of 16 blocks.
    unsafe {
        for i in (0..count).step_by(together) {
            let (codes, raised) = codes::<S, M>(matrix, block + i, count - i);
            quant_offsets[i..i + together].fill((M::QUANT_OFFSET - raised) as f32);
            for r in 0..X {
                let x = rows[r].codes.as_ptr().add((start + i) * BLOCK);
                lanes[r][i / together].write(S::sums_to_f32(S::add_codes(S::splat_sums(0), codes, x)));
            }
        }
        for nothing in count.div_ceil(together)..AT_ONCE / together {
            for r in 0..X {
                lanes[r][nothing].write(S::splat(0.0));
            }
        }
        let [scales, offsets] = scales_by_block::<S, M>(matrix, block, count);
        for r in 0..X {
            let lanes: &mut [S::V; AT_ONCE] = &mut *lanes[r].as_mut_ptr().cast();
            let sums = S::sums_of_eights(lanes.as_ptr());
            let mut sums_of_first = [0.0; AT_ONCE];
            if M::SCALING.has_half_blocks() {
                for lanes in lanes.iter_mut().take(AT_ONCE / together) {
                    *lanes = S::mul(*lanes, S::load(FIRST_HALF_BLOCKS.as_ptr()));
                }
                sums_of_first = S::sums_of_eights(lanes.as_ptr());
            }
            for i in (0..AT_ONCE).step_by(S::LANES) {
                let of_first = S::load(&rows[r].half_totals[start + i]);
                let (total, sum) = (S::load(&rows[r].totals[start + i]), S::load(&sums[i]));
                let (mut totals, mut products) = ([total; 2], [sum; 2]);
                if M::SCALING.has_half_blocks() {
                    let first = S::load(&sums_of_first[i]);
                    (totals, products) = ([of_first, S::sub(total, of_first)], [first, S::sub(sum, first)]);
                }
                let quant_offset = S::load(&quant_offsets[i]);
                for half in 0..2 {
                    products[half] = S::add(products[half], S::mul(totals[half], quant_offset));
                }
                let scales = [S::load(&scales[0][i]), S::load(&scales[1][i])];
                let offsets = [S::load(&offsets[0][i]), S::load(&offsets[1][i])];
                let of_block = scaled::<S>(M::SCALING, products, totals, scales, offsets);
                S::store(&mut of_blocks[r][i], S::mul(of_block, S::load(&rows[r].scales[start + i])));
            }
        }
    }
    of_blocks
}

/// Selects the lanes of the first half block of each block.
const FIRST_HALF_BLOCKS: [f32; 16] =
    [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0];

/// The quants of `LANES / 8` blocks, of which `count` exist, and their bias.
#[inline(always)]
unsafe fn codes<S: Simd, M: Matrix>(matrix: M, block: usize, count: usize) -> (S::Codes, i32) {
    let together = S::LANES / 8;
    // SAFETY: the caller ensures that `count` blocks exist.
    unsafe {
        if count >= together {
            return (matrix.row_codes::<S>(block), M::raised::<S>());
        }
        let mut codes = [[0; BLOCK]; 2];
        for (i, codes) in codes.iter_mut().enumerate().take(together.min(count)) {
            *codes = matrix.codes(block + i);
        }
        (S::load_codes(codes.as_ptr().cast()), S::RAISED)
    }
}

/// The scales and the offsets of each half of `count <= AT_ONCE` blocks, followed by zeros. The first block starts a group.
#[inline(always)]
pub(crate) unsafe fn scales_by_block<S: Simd, M: Matrix>(
    matrix: M,
    block: usize,
    count: usize,
) -> [[[f32; AT_ONCE]; 2]; 2] {
    let mut by_block = [[[0.0; AT_ONCE]; 2]; 2];
    let (groups, in_pairs) = (count.div_ceil(M::GROUP), M::SCALING.has_half_blocks());
    for start in (0..groups).step_by(M::SCALES_AT_ONCE) {
        let mut scales = [0.0; 2 * AT_ONCE];
        let at_once = (groups - start).min(M::SCALES_AT_ONCE);
        // SAFETY: the caller ensures that these blocks exist.
        unsafe { matrix.scales::<S>(block / M::GROUP + start, at_once, &mut scales) };
        for i in start * M::GROUP..AT_ONCE.min((start + M::SCALES_AT_ONCE) * M::GROUP) {
            let group = i / M::GROUP - start;
            match M::SCALING {
                Scaling::Offset => {
                    by_block[0][0][i] = scales[2 * group];
                    by_block[1][0][i] = scales[2 * group + 1];
                }
                _ if in_pairs => {
                    for half in 0..2 {
                        by_block[0][half][i] = scales[2 * group + half];
                        if M::SCALING.has_offsets() {
                            by_block[1][half][i] = scales[AT_ONCE + 2 * group + half];
                        }
                    }
                }
                _ => by_block[0][0][i] = scales[group],
            }
        }
    }
    by_block
}
