//! int8 GEMM tiles with AMX: 16 rows of x by 16 outputs ([`crate::cpu::simd::amx`]).
//!
//! For one block, x is a tile of `[16 rows, 32 quants]`, and the panel is a tile of `[8 words, 16 outputs]`
//! with four quants per word. This is the packed panel's layout. The integer products are exact, as with
//! other instruction sets. Scaling and summation over blocks are also the same.

use crate::cpu::format::matrix::{AT_ONCE, BLOCK};
use crate::cpu::matmul::int8::int8_gemm::{BlockScales, QuantizedBatch, TOGETHER};
use crate::cpu::matmul::int8::int8_panel::{PANEL, PackedPanel};
use crate::cpu::simd::amx::{ROW, SIDE, Sums, Tiles};
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
use std::arch::x86_64::*;

const _: () = assert!(TOGETHER == SIDE && PANEL == 2 * SIDE);

/// Two accumulator tiles, two tiles of x and two of the panel.
const SHAPES: [(usize, usize); 8] = {
    let (sums, of_x, of_panel) = ((SIDE, ROW), (SIDE, BLOCK), (BLOCK / 4, ROW));
    [sums, sums, of_x, of_x, of_panel, of_panel, (0, 0), (0, 0)]
};

/// Zeroed buffer for gathered rows.
const EMPTY: BlockScales =
    BlockScales { codes: [[0; BLOCK]; TOGETHER], scales: [0.0; TOGETHER], totals: [0; TOGETHER] };

/// A packed panel of at most `AT_ONCE` blocks, and the rows to multiply.
pub(crate) struct AddPanel<'a> {
    pub(crate) panel: &'a [PackedPanel],
    /// The constant to add to the panel's quants; nonzero only with offsets.
    pub(crate) quant_offset: i32,
    /// Whether the format has offsets.
    pub(crate) offset: bool,
    pub(crate) x: QuantizedBatch<'a>,
    /// Indices of rows of x.
    pub(crate) rows: &'a [usize],
    /// Block of x that corresponds to the panel's first block.
    pub(crate) first_block: usize,
    /// `[rows, PANEL]`, in whole tiles.
    pub(crate) sums: &'a mut [f32],
}

impl Task for AddPanel<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        // SAFETY: the caller has checked that the machine has AMX.
        unsafe { if self.offset { self.tiles::<true>() } else { self.tiles::<false>() } }
    }
}

impl AddPanel<'_> {
    /// Adds the products to the sums of each row.
    #[inline(always)]
    unsafe fn tiles<const OFFSET: bool>(self) {
        let AddPanel { panel, quant_offset, x: batch, rows, first_block, sums, .. } = self;
        let of_rows = |row: usize| batch.of(row, first_block, panel.len());
        let mut gathered = [EMPTY; AT_ONCE];
        let tiles = unsafe { Tiles::set_up(SHAPES) };
        for (rows, sums) in rows.chunks(SIDE).zip(sums.chunks_exact_mut(SIDE * PANEL)) {
            let is_contiguous =
                rows[0] % TOGETHER == 0 && rows.iter().enumerate().all(|(i, row)| *row == rows[0] + i);
            let mut x = of_rows(rows[0]);
            if !is_contiguous {
                for (i, row) in rows.iter().enumerate() {
                    let lane = row % TOGETHER;
                    for (to, from) in gathered.iter_mut().zip(of_rows(*row)) {
                        to.codes[i] = from.codes[lane];
                        (to.scales[i], to.totals[i]) = (from.scales[lane], from.totals[lane]);
                    }
                }
                x = &gathered[..panel.len()];
            }
            for output in (0..PANEL).step_by(SIDE) {
                unsafe { add_tile::<OFFSET>(&tiles, (panel, quant_offset, output), (x, batch.pitch), sums) };
            }
        }
        drop(tiles);
    }
}

/// Adds the products of a tile.
#[inline(always)]
unsafe fn add_tile<const OFFSET: bool>(
    tiles: &Tiles,
    (panel, quant_offset, output): (&[PackedPanel], i32, usize),
    (x, ahead): (&[BlockScales], usize),
    sums: &mut [f32],
) {
    let mut products = [Sums([[0; SIDE]; SIDE]); 2];
    unsafe {
        let mut all = [_mm512_setzero_ps(); SIDE];
        for i in 0..SIDE {
            all[i] = _mm512_loadu_ps(&sums[i * PANEL + output]);
        }
        multiply::<0, 2, 4>(tiles, &panel[0], output, &x[0], &mut products[0]);
        for (index, (block, of_x)) in panel.iter().zip(x).enumerate() {
            // The next block's product is in flight while this one's is scaled.
            if let (Some(block), Some(of_x)) = (panel.get(index + 1), x.get(index + 1)) {
                match index % 2 {
                    0 => multiply::<1, 3, 5>(tiles, block, output, of_x, &mut products[1]),
                    _ => multiply::<0, 2, 4>(tiles, block, output, of_x, &mut products[0]),
                }
            }
            if output == 0 {
                prefetch_block(of_x, ahead);
            }
            let products = &products[index % 2].0;
            let scales = _mm512_load_ps(&block.scales[output]);
            let offsets = _mm512_load_ps(&block.offsets[output]);
            for i in 0..SIDE {
                let mut product = _mm512_load_si512(products[i].as_ptr().cast());
                if OFFSET && quant_offset != 0 {
                    product = _mm512_add_epi32(product, _mm512_set1_epi32(of_x.totals[i] * quant_offset));
                }
                let mut of_block = _mm512_mul_ps(_mm512_cvtepi32_ps(product), scales);
                if OFFSET {
                    let offset = _mm512_mul_ps(_mm512_set1_ps(of_x.totals[i] as f32), offsets);
                    of_block = _mm512_add_ps(of_block, offset);
                }
                all[i] = _mm512_add_ps(all[i], _mm512_mul_ps(of_block, _mm512_set1_ps(of_x.scales[i])));
            }
        }
        for i in 0..SIDE {
            _mm512_storeu_ps(&mut sums[i * PANEL + output], all[i]);
        }
    }
}

/// Prefetches the block `ahead` blocks later, which need not exist.
#[inline(always)]
unsafe fn prefetch_block(of_x: &BlockScales, ahead: usize) {
    let first = (&raw const *of_x).wrapping_add(ahead).cast::<i8>();
    for line in 0..size_of::<BlockScales>() / 64 {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(64 * line)) };
    }
}

/// Multiplies a block of x by a block of the panel.
#[inline(always)]
unsafe fn multiply<const SUMS: usize, const X: usize, const PANEL_TILE: usize>(
    tiles: &Tiles,
    block: &PackedPanel,
    output: usize,
    x: &BlockScales,
    to: &mut Sums<i32>,
) {
    // SAFETY: x has 16 rows of 32 bytes, and the panel 8 rows of 16 words.
    unsafe {
        tiles.load::<X, _>(x.codes.as_ptr(), BLOCK);
        tiles.load::<PANEL_TILE, _>(block.words(output), 4 * PANEL);
        tiles.clear::<SUMS>();
        tiles.add_bytes::<SUMS, X, PANEL_TILE>();
        tiles.store::<SUMS, _>(to);
    }
}
