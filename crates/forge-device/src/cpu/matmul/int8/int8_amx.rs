//! int8 GEMM tiles with AMX: 16 rows of x by 16 outputs ([`crate::cpu::simd::amx`]).
//!
//! For one block, x is a tile of `[16 rows, 32 quants]`, and the panel is a tile of `[8 words, 16 outputs]`
//! with four quants per word. This is the packed panel's layout. The integer products are exact, as with
//! other instruction sets. Scaling and summation over blocks are also the same.

use crate::cpu::format::matrix::{AT_ONCE, BLOCK, Scaling};
use crate::cpu::matmul::int8::int8_gemm::{BlockScales, QuantizedBatch, TOGETHER};
use crate::cpu::matmul::int8::int8_panel::PanelPrefetch;
use crate::cpu::matmul::int8::packed_panel::{PANEL, PackedPanel};
use crate::cpu::matmul::int8::scaled_products::scaled;
use crate::cpu::simd::amx::{ROW, SIDE, Sums, Tiles};
use crate::cpu::simd::avx512::Avx512;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
use std::arch::x86_64::*;

const _: () = assert!(TOGETHER == SIDE && PANEL == 2 * SIDE);

/// Accumulators of both half blocks of two blocks, and x and the panel of both half blocks. Each has `width` columns: a whole
/// block if it is not divided.
const fn shapes(width: usize) -> [(usize, usize); 8] {
    let (sums, of_x, of_panel) = ((SIDE, ROW), (SIDE, width), (width / 4, ROW));
    [sums, sums, sums, sums, of_x, of_x, of_panel, of_panel]
}

/// Zeroed buffer for gathered rows.
const EMPTY: BlockScales = BlockScales {
    codes: [[0; BLOCK]; TOGETHER],
    scales: [0.0; TOGETHER],
    half_block_sums: [[0; 2]; TOGETHER],
};

/// A packed panel of at most `AT_ONCE` blocks, and the rows to multiply.
pub(crate) struct AddPanel<'a> {
    pub(crate) panel: &'a [PackedPanel],
    /// The constant to add to the panel's quants; nonzero only with offsets.
    pub(crate) quant_offset: i32,
    pub(crate) scaling: Scaling,
    pub(crate) x: QuantizedBatch<'a>,
    /// Indices of rows of x.
    pub(crate) rows: &'a [usize],
    /// Block of x that corresponds to the panel's first block.
    pub(crate) first_block: usize,
    /// `[rows, PANEL]`, in whole tiles.
    pub(crate) sums: &'a mut [f32],
    pub(crate) coming: PanelPrefetch,
}

impl Task for AddPanel<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        // SAFETY: the caller has checked that the machine has AMX.
        unsafe {
            // Constants, so that each is compiled separately.
            match (self.scaling, self.quant_offset != 0) {
                (Scaling::HalfBlockScale, _) => self.tiles::<2, false>(Scaling::HalfBlockScale),
                (Scaling::HalfBlockOffset, false) => self.tiles::<2, false>(Scaling::HalfBlockOffset),
                (Scaling::HalfBlockOffset, true) => self.tiles::<2, true>(Scaling::HalfBlockOffset),
                (Scaling::Offset, false) => self.tiles::<1, false>(Scaling::Offset),
                (Scaling::Offset, true) => self.tiles::<1, true>(Scaling::Offset),
                (Scaling::Scale | Scaling::Done, _) => self.tiles::<1, false>(Scaling::Scale),
            }
        }
    }
}

impl AddPanel<'_> {
    /// Adds the products to the sums of each row. Blocks have `PARTS` separately scaled parts. `SHIFTED`: a constant is added to
    /// the panel's quants.
    #[inline(always)]
    unsafe fn tiles<const PARTS: usize, const SHIFTED: bool>(self, scaling: Scaling) {
        let AddPanel { panel, quant_offset, x: batch, rows, first_block, sums, coming, .. } = self;
        let of_rows = |row: usize| batch.of(row, first_block, panel.len());
        let mut gathered = [EMPTY; AT_ONCE];
        let tiles = unsafe { Tiles::set_up(shapes(BLOCK / PARTS)) };
        let count = rows.len().div_ceil(SIDE);
        for (tile, (rows, sums)) in rows.chunks(SIDE).zip(sums.chunks_exact_mut(SIDE * PANEL)).enumerate() {
            // In L1 the strips would take the place of the panel.
            unsafe { coming.prefetch_part::<Avx512, true>(tile, count) };
            let is_contiguous =
                rows[0] % TOGETHER == 0 && rows.iter().enumerate().all(|(i, row)| *row == rows[0] + i);
            let mut x = of_rows(rows[0]);
            if !is_contiguous {
                for (i, row) in rows.iter().enumerate() {
                    let lane = row % TOGETHER;
                    for (to, from) in gathered.iter_mut().zip(of_rows(*row)) {
                        to.codes[i] = from.codes[lane];
                        to.scales[i] = from.scales[lane];
                        to.half_block_sums[i] = from.half_block_sums[lane];
                    }
                }
                x = &gathered[..panel.len()];
            }
            for output in (0..PANEL).step_by(SIDE) {
                let panel = (panel, quant_offset, output);
                unsafe { add_tile::<PARTS, SHIFTED>(&tiles, scaling, panel, (x, batch.pitch), sums) };
            }
        }
        drop(tiles);
    }
}

/// Compiles a block once for each row of a tile. As a loop, the larger blocks are not unrolled, and the sums of all rows leave
/// their registers for memory.
macro_rules! for_each_row {
    ($row:ident, $block:block) => { for_each_row!($row, $block, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15) };
    ($row:ident, $block:block, $($number:literal)*) => { $({ let $row: usize = $number; $block })* };
}

/// Adds the products of a tile.
#[inline(always)]
unsafe fn add_tile<const PARTS: usize, const SHIFTED: bool>(
    tiles: &Tiles,
    scaling: Scaling,
    (panel, quant_offset, output): (&[PackedPanel], i32, usize),
    (x, ahead): (&[BlockScales], usize),
    sums: &mut [f32],
) {
    let mut products = [[Sums([[0; SIDE]; SIDE]); PARTS]; 2];
    unsafe {
        let mut all = [_mm512_setzero_ps(); SIDE];
        for i in 0..SIDE {
            all[i] = _mm512_loadu_ps(&sums[i * PANEL + output]);
        }
        multiply::<PARTS, 0, 1>(tiles, (&panel[0], output), &x[0], &mut products[0]);
        for (index, (block, of_x)) in panel.iter().zip(x).enumerate() {
            // The next block's product is in flight while this one's is scaled.
            if let (Some(block), Some(of_x)) = (panel.get(index + 1), x.get(index + 1)) {
                match index % 2 {
                    0 => multiply::<PARTS, 2, 3>(tiles, (block, output), of_x, &mut products[1]),
                    _ => multiply::<PARTS, 0, 1>(tiles, (block, output), of_x, &mut products[0]),
                }
            }
            if output == 0 {
                prefetch_block(of_x, ahead);
            }
            let products = &products[index % 2];
            let (mut scales, mut offsets) = ([_mm512_setzero_ps(); 2], [_mm512_setzero_ps(); 2]);
            for half in 0..PARTS {
                scales[half] = _mm512_load_ps(&block.scales[half][output]);
                offsets[half] = _mm512_load_ps(&block.offsets[half][output]);
            }
            let totals = Totals::new(scaling, quant_offset, of_x);
            for_each_row!(row, {
                let mut of_parts = [_mm512_setzero_ps(); 2];
                for half in 0..PARTS {
                    let mut product = _mm512_load_si512(products[half].0[row].as_ptr().cast());
                    if SHIFTED {
                        product = _mm512_add_epi32(product, _mm512_set1_epi32(totals.shifts[half][row]));
                    }
                    of_parts[half] = _mm512_cvtepi32_ps(product);
                }
                let totals = totals.sums.map(|of_half| _mm512_set1_ps(of_half[row]));
                let of_block = scaled::<Avx512>(scaling, of_parts, totals, scales, offsets);
                let of_x = _mm512_set1_ps(of_x.scales[row]);
                all[row] = _mm512_add_ps(all[row], _mm512_mul_ps(of_block, of_x));
            });
        }
        for i in 0..SIDE {
            _mm512_storeu_ps(&mut sums[i * PANEL + output], all[i]);
        }
    }
}

/// For 16 rows of x, what each scale of a block takes from the sums of their quants ([`Scaling::sums_per_scale`]). It is in
/// memory, from where the instruction that uses a number also broadcasts it.
#[repr(C, align(64))]
struct Totals {
    sums: [[f32; SIDE]; 2],
    /// What the constant that is added to the panel's quants adds to the products.
    shifts: [[i32; SIDE]; 2],
}

impl Totals {
    #[inline(always)]
    unsafe fn new(scaling: Scaling, quant_offset: i32, of_x: &BlockScales) -> Totals {
        let mut totals = Totals { sums: [[0.0; SIDE]; 2], shifts: [[0; SIDE]; 2] };
        // SAFETY: there are 16 pairs of 16-bit sums.
        unsafe {
            let pairs = _mm512_loadu_si512(of_x.half_block_sums.as_ptr().cast());
            let sums = match scaling.has_half_blocks() {
                true => [_mm512_srai_epi32(_mm512_slli_epi32(pairs, 16), 16), _mm512_srai_epi32(pairs, 16)],
                false => [_mm512_madd_epi16(pairs, _mm512_set1_epi16(1)), _mm512_setzero_si512()],
            };
            for (half, sums) in sums.into_iter().enumerate() {
                let shifts = _mm512_mullo_epi32(sums, _mm512_set1_epi32(quant_offset));
                _mm512_store_si512(totals.shifts[half].as_mut_ptr().cast(), shifts);
                _mm512_store_ps(totals.sums[half].as_mut_ptr(), _mm512_cvtepi32_ps(sums));
            }
        }
        totals
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

/// Multiplies a block of x by a block of the panel, in the accumulators `FIRST` and, for a second half, `SECOND`.
#[inline(always)]
unsafe fn multiply<const PARTS: usize, const FIRST: usize, const SECOND: usize>(
    tiles: &Tiles,
    (block, output): (&PackedPanel, usize),
    x: &BlockScales,
    to: &mut [Sums<i32>; PARTS],
) {
    // SAFETY: x has 16 rows of 32 bytes, and the panel 8 rows of 16 words.
    unsafe {
        tiles.load::<4, _>(x.codes.as_ptr().cast::<i8>(), BLOCK);
        tiles.load::<6, _>(block.words(0, output), 4 * PANEL);
        tiles.clear::<FIRST>();
        tiles.add_bytes::<FIRST, 4, 6>();
        if PARTS == 2 {
            tiles.load::<5, _>(x.codes.as_ptr().cast::<i8>().add(BLOCK / 2), BLOCK);
            tiles.load::<7, _>(block.words(BLOCK / 8, output), 4 * PANEL);
            tiles.clear::<SECOND>();
            tiles.add_bytes::<SECOND, 5, 7>();
            tiles.store::<SECOND, _>(&mut to[PARTS - 1]);
        }
        tiles.store::<FIRST, _>(&mut to[0]);
    }
}
