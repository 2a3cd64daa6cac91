//! Packed weight panels of the int8 GEMM: four adjacent columns of every output, packed once for many rows of x.

// Index loops over lanes and rows of fixed-size arrays unroll into registers.
#![allow(clippy::needless_range_loop)]

use crate::cpu::format::matrix::{AT_ONCE, BLOCK, Matrix};
use crate::cpu::format::quant_plane::columns;
use crate::cpu::format::repacked::OUTPUTS;
use crate::cpu::matmul::int8::int8_gemv::scales_by_block;
use crate::cpu::simd::vectors::Simd;

/// Outputs of a panel: two or four vectors.
pub(crate) const PANEL: usize = 32;
/// Blocks per panel slice, chosen to fit in L1.
pub(crate) const DEPTH: usize = AT_ONCE;
/// 32 columns of a panel's outputs.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct PackedPanel {
    /// Words of four quants: the first word of each output, then the second of each. With `Simd::PAIRS`,
    /// words are stored in pairs per output.
    pub(crate) codes: [[[i8; 4]; PANEL]; BLOCK / 4],
    /// Scales of the block, or of its half blocks.
    pub(crate) scales: [[f32; PANEL]; 2],
    pub(crate) offsets: [[f32; PANEL]; 2],
}

impl PackedPanel {
    /// Sets a word of 16 outputs from `first` on, adding `more` to each quant.
    #[inline(always)]
    fn set<S: Simd>(&mut self, word: usize, first: usize, words: [u32; OUTPUTS], more: i32) {
        if S::PAIRS {
            let two = self.codes[word / 2 * 2..][..2].as_flattened_mut();
            for i in 0..OUTPUTS {
                two[2 * (first + i) + word % 2] = plus(words[i], more);
            }
        } else {
            let to = &mut self.codes[word][first..first + OUTPUTS];
            for i in 0..OUTPUTS {
                to[i] = plus(words[i], more);
            }
        }
    }

    /// Address of the pairs of words of some outputs (with `Simd::PAIRS`).
    #[inline(always)]
    pub(crate) fn pairs(&self, eight: usize, output: usize) -> *const i8 {
        (&raw const self.codes.as_flattened()[2 * (eight * PANEL + output)]).cast()
    }

    /// Address of word `word` of some outputs; the next word of each is `PANEL` words later.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn words(&self, word: usize, output: usize) -> *const [i8; 4] {
        &raw const self.codes[word][output]
    }
}

/// Prefetch distance in blocks of a row-major matrix.
const AHEAD: usize = 8;

/// A zeroed panel.
pub(crate) const EMPTY: PackedPanel = PackedPanel {
    codes: [[[0; 4]; PANEL]; BLOCK / 4],
    scales: [[0.0; PANEL]; 2],
    offsets: [[0.0; PANEL]; 2],
};

/// Packs blocks of up to 16 outputs: from block `first` of the first one, at a stride of `apart`. Outputs are
/// read in parallel for more reads in flight, and written one word of all outputs at a time.
#[inline(always)]
pub(crate) unsafe fn fill<S: Simd, M: Matrix>(
    matrix: M,
    (first, apart, count): (usize, usize, usize),
    output: usize,
    more: i32,
    panel: &mut [PackedPanel],
) {
    // SAFETY: the caller ensures that the panel's blocks exist.
    unsafe {
        let mut words = [[0_u32; BLOCK / 4]; OUTPUTS];
        for (index, block) in panel.iter_mut().enumerate() {
            for (row, words) in words.iter_mut().enumerate().take(count) {
                let at = first + row * apart + index;
                matrix.prefetch::<S>(at + AHEAD);
                // Words match the vector layout.
                *words = std::mem::transmute::<[i8; BLOCK], [u32; BLOCK / 4]>(matrix.codes(at));
            }
            for word in 0..BLOCK / 4 {
                let mut of_outputs = [0; OUTPUTS];
                for i in 0..OUTPUTS {
                    of_outputs[i] = words[i][word];
                }
                block.set::<S>(word, output, of_outputs, more);
            }
        }
        for row in 0..count {
            let [scales, offsets] = scales_by_block::<S, M>(matrix, first + row * apart, panel.len());
            for (index, block) in panel.iter_mut().enumerate() {
                for half in 0..2 {
                    block.scales[half][output + row] = scales[half][index];
                    block.offsets[half][output + row] = offsets[half][index];
                }
            }
        }
    }
}

/// Packs a strip's blocks from `first` on.
#[inline(always)]
pub(crate) unsafe fn fill_strip<S: Simd, M: Matrix>(
    matrix: M,
    first: usize,
    output: usize,
    more: i32,
    panel: &mut [PackedPanel],
) {
    for (index, block) in panel.iter_mut().enumerate() {
        for pair in 0..BLOCK / 8 {
            let mut words = [[0_u32; OUTPUTS]; 2];
            // SAFETY: the caller ensures that the panel's blocks exist.
            unsafe {
                for part in 0..OUTPUTS / S::LANES {
                    let [near, far] = matrix.strip_codes::<S>(first + index, pair, part);
                    S::store_bytes(words[0][part * S::LANES..].as_mut_ptr().cast(), near);
                    S::store_bytes(words[1][part * S::LANES..].as_mut_ptr().cast(), far);
                }
            }
            for (words, column) in words.into_iter().zip(columns(pair)) {
                block.set::<S>(column / 4, output, words, more);
            }
        }
        for part in 0..OUTPUTS / S::LANES {
            let at = output + part * S::LANES;
            // SAFETY: as above; a panel has whole strips.
            unsafe {
                let scales = matrix.strip_scales::<S>(first + index, part);
                let offsets = matrix.strip_offsets::<S>(first + index, part);
                for half in 0..1 + usize::from(M::SCALING.has_half_blocks()) {
                    S::store(block.scales[half][at..].as_mut_ptr(), scales[half]);
                    if M::SCALING.has_offsets() {
                        S::store(block.offsets[half][at..].as_mut_ptr(), offsets[half]);
                    }
                }
            }
        }
    }
}

/// Adds `more` to each of four quants, as one word so that the loop vectorizes.
#[inline(always)]
fn plus(word: u32, more: i32) -> [i8; 4] {
    const HIGHEST: u32 = 0x8080_8080;
    let more = u32::from_ne_bytes([more as u8; 4]);
    // The highest bit of each byte is added separately, so that it does not carry into the next byte.
    let lower = (word & !HIGHEST) + (more & !HIGHEST);
    let sum = lower ^ (word ^ more) & HIGHEST;
    sum.to_ne_bytes().map(u8::cast_signed)
}
