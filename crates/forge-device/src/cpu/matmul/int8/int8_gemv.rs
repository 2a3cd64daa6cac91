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
            quant_offsets[i..i + together].fill((M::QUANT_OFFSET.unwrap_or(0) - raised) as f32);
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
            let products = S::sums_of_eights(lanes[r].as_ptr().cast());
            for i in (0..AT_ONCE).step_by(S::LANES) {
                let total = S::load(&rows[r].totals[start + i]);
                let products = S::add(S::load(&products[i]), S::mul(total, S::load(&quant_offsets[i])));
                let mut of_block = S::mul(products, S::load(&scales[i]));
                if M::SCALING == Scaling::Offset {
                    of_block = S::add(of_block, S::mul(total, S::load(&offsets[i])));
                }
                S::store(&mut of_blocks[r][i], S::mul(of_block, S::load(&rows[r].scales[start + i])));
            }
        }
    }
    of_blocks
}

/// The quants of `LANES / 8` blocks, of which `count` exist, and their bias.
#[inline(always)]
unsafe fn codes<S: Simd, M: Matrix>(matrix: M, block: usize, count: usize) -> (S::Codes, i32) {
    let together = S::LANES / 8;
    // SAFETY: the caller ensures that `count` blocks exist.
    unsafe {
        if M::ROW && count >= together {
            return (matrix.row_codes::<S>(block), M::raised::<S>());
        }
        let mut codes = [[0; BLOCK]; 2];
        for (i, codes) in codes.iter_mut().enumerate().take(together.min(count)) {
            *codes = matrix.codes(block + i);
        }
        (S::load_codes(codes.as_ptr().cast()), S::RAISED)
    }
}

/// Scales and offsets of `count <= AT_ONCE` blocks, followed by zeros. The first block starts a group.
#[inline(always)]
unsafe fn scales_by_block<S: Simd, M: Matrix>(matrix: M, block: usize, count: usize) -> [[f32; AT_ONCE]; 2] {
    let mut scales = [0.0; 2 * AT_ONCE];
    // SAFETY: the caller ensures that these blocks exist.
    unsafe { matrix.scales::<S>(block / M::GROUP, count.div_ceil(M::GROUP), &mut scales) };
    let mut by_block = [[0.0; AT_ONCE]; 2];
    for i in 0..AT_ONCE {
        match M::SCALING {
            Scaling::Offset => {
                by_block[0][i] = scales[i / M::GROUP * 2];
                by_block[1][i] = scales[i / M::GROUP * 2 + 1];
            }
            _ => by_block[0][i] = scales[i],
        }
    }
    by_block
}
