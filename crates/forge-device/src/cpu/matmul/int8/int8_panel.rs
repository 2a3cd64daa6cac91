//! Products of packed weight panels ([`crate::cpu::matmul::int8::packed_panel`]) with rows of x, for the int8 GEMM. Rows
//! are consecutive, or those that chose an expert.

// Index loops over lanes and rows of fixed-size arrays unroll into registers.
#![allow(clippy::needless_range_loop)]

use crate::cpu::format::matrix::{BLOCK, Matrix, Scaling};
use crate::cpu::format::repacked::OUTPUTS;
#[cfg(target_arch = "x86_64")]
use crate::cpu::matmul::int8::int8_amx;
use crate::cpu::matmul::int8::int8_gemm::{BlockScales, QuantizedBatch, TOGETHER};
use crate::cpu::matmul::int8::packed_panel::{DEPTH, PANEL, PackedPanel, fill, fill_strip};
use crate::cpu::matmul::int8::scaled_products::scaled;
use crate::cpu::simd::isa::{Isa, Task};
use crate::cpu::simd::vectors::Simd;

/// Rows of x that share a panel.
pub(crate) const ROWS: usize = 256;
/// Rows of x in a register tile.
const TILE: usize = 4;
/// Vectors of outputs in a register tile.
const VECTORS: usize = 2;

/// A matrix that is multiplied panel by panel, and the activations.
pub(crate) struct Panels<'a, M> {
    pub(crate) level: Isa,
    pub(crate) matrix: M,
    pub(crate) is_repacked: bool,
    /// Blocks per row of the matrix, and of x.
    pub(crate) blocks: usize,
    pub(crate) x: QuantizedBatch<'a>,
}

impl<M: Matrix> Panels<'_, M> {
    /// Multiplies matrix rows (first, count) by the rows of x with indices `rows`, into `sums` with `PANEL`
    /// results per row. `panel` is the packing buffer.
    #[inline(always)]
    pub(crate) unsafe fn products<S: Simd>(
        &self,
        (first, outputs): (usize, usize),
        rows: &[usize],
        panel: &mut [PackedPanel; DEPTH],
        sums: &mut [f32],
    ) {
        let Panels { level, matrix, is_repacked, blocks, x } = *self;
        let sums = &mut sums[..rows.len().next_multiple_of(TOGETHER) * PANEL];
        sums.fill(0.0);
        // The bias of quants in the panel, as the instruction set needs it.
        let quant_offset = M::QUANT_OFFSET;
        let more = if level.has_tiles() { quant_offset.min(0) } else { S::RAISED };
        // With AMX, packing would wait for memory otherwise.
        let prefetches = level.streams().is_one() || level.has_tiles();
        for first_block in (0..blocks).step_by(DEPTH) {
            let panel = &mut panel[..(blocks - first_block).min(DEPTH)];
            let mut coming = [None; PANEL / OUTPUTS];
            for output in (0..outputs).step_by(OUTPUTS) {
                let of_output = (first + output) * blocks;
                // SAFETY: the caller ensures that the matrix has all blocks of these rows.
                unsafe {
                    match is_repacked {
                        true => {
                            let first = of_output / OUTPUTS + first_block;
                            if prefetches {
                                let next = first + self.next(first_block);
                                coming[output / OUTPUTS] = Some(matrix.codes_at(next * OUTPUTS));
                            }
                            fill_strip::<S, M>(matrix, first, output, more - M::raised::<S>(), panel);
                        }
                        false => {
                            let rows = (of_output + first_block, blocks, (outputs - output).min(OUTPUTS));
                            fill::<S, M>(matrix, rows, output, more, panel);
                        }
                    }
                }
            }
            let (quant_offset, scaling) = (quant_offset - more, M::SCALING);
            let coming = PanelPrefetch { strips: coming, bytes: DEPTH * M::BITS * BLOCK / 8 * OUTPUTS };
            #[cfg(target_arch = "x86_64")]
            if level == Isa::Amx {
                let sums = &mut *sums;
                level.run(int8_amx::AddPanel {
                    panel,
                    quant_offset,
                    scaling,
                    x,
                    rows,
                    first_block,
                    sums,
                    coming,
                });
                continue;
            }
            let (sums, small) = (&mut *sums, M::SMALL);
            level.run(AddPanel { panel, quant_offset, small, scaling, x, rows, first_block, sums, coming });
        }
    }

    /// Distance in blocks to the data that is packed next: in the same strips, or in the following two.
    fn next(&self, first_block: usize) -> usize {
        if first_block + DEPTH < self.blocks { DEPTH } else { PANEL / OUTPUTS * self.blocks - first_block }
    }
}

/// Adds the products of a packed panel to the sums of each row. It does not depend on the weight format.
struct AddPanel<'a> {
    panel: &'a [PackedPanel],
    /// The constant to add to the panel's quants.
    quant_offset: i32,
    /// Whether quants are in 0..=15, apart from the bias.
    small: bool,
    scaling: Scaling,
    x: QuantizedBatch<'a>,
    /// Indices of rows of x.
    rows: &'a [usize],
    /// Block of x that corresponds to the panel's first block.
    first_block: usize,
    /// `[rows, PANEL]`, in whole tiles.
    sums: &'a mut [f32],
    coming: PanelPrefetch,
}

/// Prefetch of the strips that are packed next.
pub(crate) struct PanelPrefetch {
    /// Their addresses.
    strips: [Option<*const u8>; PANEL / OUTPUTS],
    /// Bytes of each strip.
    bytes: usize,
}

impl PanelPrefetch {
    /// Prefetches part `part` of `parts`, to L2 if `FAR`, else to L1.
    #[inline(always)]
    pub(crate) unsafe fn prefetch_part<S: Simd, const FAR: bool>(&self, part: usize, parts: usize) {
        let lines = self.bytes / 64;
        for strip in self.strips.into_iter().flatten() {
            for line in part * lines / parts..(part + 1) * lines / parts {
                let address = strip.wrapping_add(64 * line);
                // SAFETY: the caller dispatched on the instruction set, and prefetch addresses need not be
                // valid.
                unsafe { if FAR { S::prefetch_far(address) } else { S::prefetch(address) } }
            }
        }
    }
}

impl Task for AddPanel<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        // Constants, so that each is compiled separately.
        match (self.scaling, self.small && S::SMALL) {
            (Scaling::HalfBlockScale, _) => self.tiles::<S, false>(Scaling::HalfBlockScale),
            (Scaling::HalfBlockOffset, _) => self.tiles::<S, false>(Scaling::HalfBlockOffset),
            (Scaling::Offset, false) => self.tiles::<S, false>(Scaling::Offset),
            (Scaling::Offset, true) => self.tiles::<S, true>(Scaling::Offset),
            (_, false) => self.tiles::<S, false>(Scaling::Scale),
            (_, true) => self.tiles::<S, true>(Scaling::Scale),
        }
    }
}

impl AddPanel<'_> {
    #[inline(always)]
    fn tiles<S: Simd, const SMALL: bool>(self, scaling: Scaling) {
        let AddPanel { panel, x, rows, first_block, coming, .. } = self;
        let count = rows.len().div_ceil(TILE);
        let tiles = self.sums.chunks_exact_mut(TILE * PANEL).take(count);
        for (tile, sums) in tiles.enumerate() {
            // SAFETY: this runs compiled for its instruction set.
            unsafe { coming.prefetch_part::<S, false>(tile, count) };
            // Tile rows past the last row repeat it, and their results are unused.
            let x: [(&[BlockScales], usize); TILE] = std::array::from_fn(|i| {
                let row = rows[(tile * TILE + i).min(rows.len() - 1)];
                (x.of(row, first_block, panel.len()), row % TOGETHER)
            });
            for output in (0..PANEL).step_by(VECTORS * S::LANES) {
                // SAFETY: this runs compiled for its instruction set, and panels have whole vectors.
                unsafe { add_tile::<S, SMALL>(panel, (self.quant_offset, scaling), output, x, sums) };
            }
        }
    }
}

/// Adds the products of a register tile to its sums.
#[inline(always)]
unsafe fn add_tile<S: Simd, const SMALL: bool>(
    panel: &[PackedPanel],
    (quant_offset, scaling): (i32, Scaling),
    output: usize,
    x: [(&[BlockScales], usize); TILE],
    sums: &mut [f32],
) {
    // SAFETY: the caller's contract; x has as many blocks as the panel.
    unsafe {
        let place = |i: usize, v: usize| i * PANEL + output + v * S::LANES;
        let parts = if scaling.has_half_blocks() { 2 } else { 1 };
        let mut all = [[S::splat(0.0); VECTORS]; TILE];
        for i in 0..TILE {
            for v in 0..VECTORS {
                all[i][v] = S::load(&sums[place(i, v)]);
            }
        }
        for (index, block) in panel.iter().enumerate() {
            let of = |i: usize| (x[i].0.get_unchecked(index), x[i].1);
            let codes: [&[i8; BLOCK]; TILE] = std::array::from_fn(|i| of(i).0.codes.get_unchecked(of(i).1));
            let totals: [[i32; 2]; TILE] = std::array::from_fn(|i| {
                scaling.sums_per_scale(*of(i).0.half_block_sums.get_unchecked(of(i).1))
            });
            let mut of_parts = [[[S::splat(0.0); 2]; VECTORS]; TILE];
            for half in 0..parts {
                let mut products = [[S::splat_sums(0); VECTORS]; TILE];
                for i in 0..TILE {
                    let begin = if SMALL || S::PAIRS { 0 } else { totals[i][half] * quant_offset };
                    products[i] = [S::splat_sums(begin); VECTORS];
                }
                let (eights, fours) = (BLOCK / 8 / parts, BLOCK / 4 / parts);
                for eight in half * eights..if S::PAIRS { (half + 1) * eights } else { 0 } {
                    for v in 0..VECTORS {
                        let weights = block.pairs(eight, output + v * S::LANES);
                        for i in (0..TILE).step_by(2) {
                            let x = [i, i + 1].map(|i| codes[i].as_ptr().add(8 * eight));
                            let sums = S::add_pair([products[i][v], products[i + 1][v]], weights, x);
                            [products[i][v], products[i + 1][v]] = sums;
                        }
                    }
                }
                for four in half * fours..if S::PAIRS { 0 } else { (half + 1) * fours } {
                    for v in 0..VECTORS {
                        let weights = block.codes[four][output + v * S::LANES].as_ptr();
                        for i in 0..TILE {
                            let x = &raw const codes[i][4 * four];
                            products[i][v] = match SMALL {
                                true => S::add_small(products[i][v], S::load_codes(weights), x),
                                false => S::add_products(products[i][v], weights, x),
                            };
                        }
                    }
                }
                for v in 0..VECTORS {
                    for i in (0..if S::PAIRS { TILE } else { 0 }).step_by(2) {
                        let sums = [products[i][v], products[i + 1][v]];
                        let more = [totals[i][half], totals[i + 1][half]].map(|total| total * quant_offset);
                        [products[i][v], products[i + 1][v]] = S::of_pair(sums, more);
                    }
                    for i in 0..TILE {
                        let mut products = products[i][v];
                        if SMALL {
                            products = S::of_small(products, totals[i][half] * quant_offset);
                        }
                        of_parts[i][v][half] = S::sums_to_f32(products);
                    }
                }
            }
            for v in 0..VECTORS {
                let (mut scales, mut offsets) = ([S::splat(0.0); 2], [S::splat(0.0); 2]);
                for half in 0..parts {
                    scales[half] = S::load(&block.scales[half][output + v * S::LANES]);
                    offsets[half] = S::load(&block.offsets[half][output + v * S::LANES]);
                }
                for i in 0..TILE {
                    let of_x = [S::splat(totals[i][0] as f32), S::splat(totals[i][1] as f32)];
                    let of_block = scaled::<S>(scaling, of_parts[i][v], of_x, scales, offsets);
                    all[i][v] =
                        S::add(all[i][v], S::mul(of_block, S::splat(*of(i).0.scales.get_unchecked(of(i).1))));
                }
            }
        }
        for i in 0..TILE {
            for v in 0..VECTORS {
                S::store(&mut sums[place(i, v)], all[i][v]);
            }
        }
    }
}
