//! A few rows of x in whole numbers, straight from the stored codes: to the bit what [`crate::cpu::matmul::int8::int8_gemm`] makes of them among many.
//!
//! Panels are worth filling for many rows only. Here a block's codes meet those of each row where they lie, eight lanes a block; lanes
//! are added up as singles, which is exact, for they are whole numbers below 2^24. What comes of sixteen blocks is scaled at once,
//! and added to the sum block after block, as it is there.

// Indices count lanes and rows of fixed-size arrays: loops over them unroll into registers.
#![allow(clippy::needless_range_loop)]

use crate::cpu::format::matrix::{AT_ONCE, BLOCK, Matrix, Scaling};
use crate::cpu::matmul::int8::quantized_rows::QuantizedRow;
use crate::cpu::simd::vectors::Simd;
use std::mem::MaybeUninit;

/// The products of `W` rows of a matrix, which begin with blocks `first`, with `X` rows of as many blocks.
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
            // SAFETY: the caller's promise.
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

/// What each of `count <= AT_ONCE` blocks from `block` adds to the sum of each row, whose blocks begin with `start`.
#[inline(always)]
unsafe fn by_block<S: Simd, M: Matrix, const X: usize>(
    matrix: M,
    block: usize,
    rows: [&QuantizedRow; X],
    start: usize,
    count: usize,
) -> [[f32; AT_ONCE]; X] {
    let together = S::LANES / 8;
    // Not all zeros before: that would take as long as the rest.
    let mut lanes = [[const { MaybeUninit::uninit() }; AT_ONCE]; X];
    // What all codes of a block have too little, as they were multiplied.
    let mut missing = [0.0; AT_ONCE];
    let mut of_blocks = [[0.0; AT_ONCE]; X];
    // SAFETY: the caller's promise; codes and scales of x are whole sixteens of blocks.
    unsafe {
        for i in (0..count).step_by(together) {
            let (codes, raised) = codes::<S, M>(matrix, block + i, count - i);
            missing[i..i + together].fill((M::LACKING.unwrap_or(0) - raised) as f32);
            for r in 0..X {
                let x = rows[r].codes.as_ptr().add((start + i) * BLOCK);
                lanes[r][i / together].write(S::sums_to_singles(S::add_codes(S::splat_sums(0), codes, x)));
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
                let products = S::add(S::load(&products[i]), S::mul(total, S::load(&missing[i])));
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

/// The codes of `LANES / 8` blocks, of which `count` are there, and by how much they are larger than the format's.
#[inline(always)]
unsafe fn codes<S: Simd, M: Matrix>(matrix: M, block: usize, count: usize) -> (S::Codes, i32) {
    let together = S::LANES / 8;
    // SAFETY: the caller promises `count` blocks.
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

/// The scales of `count <= AT_ONCE` blocks, the first of which begins a group, and their offsets; zeros past them.
#[inline(always)]
unsafe fn scales_by_block<S: Simd, M: Matrix>(matrix: M, block: usize, count: usize) -> [[f32; AT_ONCE]; 2] {
    let mut scales = [0.0; 2 * AT_ONCE];
    // SAFETY: the caller promises as many blocks.
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
