//! int8 GEMV for one or a few rows of x and repacked weights ([`crate::cpu::format::repacked`]): the decode
//! path of quantized models.
//!
//! Each thread quantizes the rows itself, as in [`crate::cpu::matmul::int8::int8_gemm`], which is cheap
//! compared with its part of the matrix. Lanes are outputs: four quants of each output are multiplied by the
//! same four quants of x. A block's products are scaled, and blocks are added in order, with each operation
//! rounded separately. Results are bitwise identical to the GEMM.

// Index loops over lanes and rows of fixed-size arrays unroll into registers.
#![allow(clippy::needless_range_loop)]

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::device::scratch::Scratch;
use crate::cpu::format::matrix::{BLOCK, Matrix};
use crate::cpu::format::quant_plane::columns;
use crate::cpu::format::repacked::OUTPUTS;
use crate::cpu::matmul::epilogue::{EpilogueContext, PartialResults};
use crate::cpu::matmul::int8::quantized_rows::{QuantizedRow, encoded_rows, keep};
use crate::cpu::matmul::int8::scaled_products::scaled;
use crate::cpu::matmul::linear::prepared_x;
use crate::cpu::matmul::output_partition::OutputPartition;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::prefetch_policy::ReadPattern;
use crate::cpu::simd::vectors::{Simd, no_int8};
use forge_ops::Linear;
use std::marker::PhantomData;

/// Outputs per piece, if partitions are no larger and all threads get work: the strips that are read
/// together.
const PIECE: usize = 4 * OUTPUTS;

/// Maximum number of outputs per claim. Claims are large, because the memory pipeline drains between them.
const MAX_OUTPUTS_PER_CLAIM: usize = 8192;

/// Maximum number of rows whose sums are in registers at once.
const MAX_GROUP: usize = 8;

/// GEMV of a few rows.
pub(crate) struct RepackedGemv<'a, M> {
    call: &'a KernelArgs<'a>,
    shape: &'a Linear,
    format: PhantomData<M>,
}

impl<'a, M> RepackedGemv<'a, M> {
    pub(crate) fn new(call: &'a KernelArgs<'a>, shape: &'a Linear) -> RepackedGemv<'a, M> {
        RepackedGemv { call, shape, format: PhantomData }
    }
}

impl<M: Matrix> Task for RepackedGemv<'_, M> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        if !S::HAS_INT8 {
            no_int8();
        }
        let RepackedGemv { call, shape, .. } = self;
        let (rows, outputs) = (call.scalar(0), shape.outputs);
        let blocks = shape.inputs.div_ceil(M::WHOLE * BLOCK) * M::WHOLE;
        let finish = EpilogueContext::new::<S>(call, shape, rows);
        let wanted = (outputs / (call.workers() * 2)).clamp(OUTPUTS, PIECE);
        let OutputPartition { partitions, size, piece } =
            OutputPartition::of_strips(&finish, outputs, call.workers(), wanted);
        let pieces =
            call.claim((partitions * size).div_ceil(piece), 1).up_to((MAX_OUTPUTS_PER_CLAIM / piece).max(1));
        let pitch = pieces.at_once() * piece;
        let mut scratch = Scratch::take(rows * (blocks * BLOCK + pitch));
        let (padded_x, values) = scratch.split_at_mut(rows * blocks * BLOCK);
        let x = encoded_rows::<S>(prepared_x(call, shape, rows, blocks * BLOCK, padded_x), blocks * BLOCK);
        let matrix = M::find(call, "weight", outputs, blocks);
        for pieces in pieces {
            // The last partitions may have no outputs.
            let (start, end) = (pieces.start * piece, outputs.min(pieces.end * piece));
            let strips = end.saturating_sub(start) / OUTPUTS;
            let first = start / OUTPUTS * blocks;
            let of = RepackedRows { matrix, first, strips, blocks, streams: call.level().streams() };
            // SAFETY: `find` checked that the matrix is whole, and x has as many blocks.
            unsafe { of.few::<S>(&x[..rows], values, pitch) };
            for partition in start / size..partitions.min(pieces.end * piece / size) {
                let mut partials = PartialResults::NOTHING;
                let range = (partition * size).min(outputs)..((partition + 1) * size).min(outputs);
                for row in 0..rows {
                    if !range.is_empty() {
                        let values = &mut values[row * pitch + range.start - start..][..range.len()];
                        // SAFETY: these outputs belong to this thread.
                        unsafe { finish.outputs(row, range.start, values, &mut partials) };
                    }
                }
                // SAFETY: this partition belongs to this thread.
                unsafe { finish.write_partials(partition, partials) };
            }
        }
        keep(x);
    }
}

/// Some strips of a repacked matrix.
pub(crate) struct RepackedRows<M> {
    pub(crate) matrix: M,
    /// First block of the first strip.
    pub(crate) first: usize,
    pub(crate) strips: usize,
    /// Blocks per strip, and per row.
    pub(crate) blocks: usize,
    pub(crate) streams: ReadPattern,
}

impl<M: Matrix> RepackedRows<M> {
    /// Multiplies by one to [`Isa::repacked_rows`](crate::cpu::simd::isa::Isa::repacked_rows) rows.
    #[inline(always)]
    pub(crate) unsafe fn few<S: Simd>(&self, rows: &[QuantizedRow], to: &mut [f32], pitch: usize) {
        if !S::HAS_VARIANTS {
            for (row, to) in rows.iter().zip(to.chunks_mut(pitch)) {
                // SAFETY: the caller's contract.
                unsafe { self.multiply_row::<S>(row, to, pitch) };
            }
            return;
        }
        // SAFETY: the caller's contract.
        unsafe {
            match rows {
                [a] => self.multiply_row::<S>(a, to, pitch),
                [a, b] if self.streams.is_one() => self.products::<S, 2, 1>([a, b], to, pitch),
                [a, b] => self.products::<S, 2, 2>([a, b], to, pitch),
                [a, b, c] => self.products::<S, 3, 1>([a, b, c], to, pitch),
                rows => match rows.len().div_ceil(rows.len().div_ceil(MAX_GROUP)) {
                    ..=4 => self.in_groups::<S, 4>(rows, to, pitch),
                    5 | 6 => self.in_groups::<S, 6>(rows, to, pitch),
                    _ => self.in_groups::<S, MAX_GROUP>(rows, to, pitch),
                },
            }
        }
    }

    /// Multiplies by groups of up to `X` rows, strip by strip: after the first group, a strip is in the L2 cache. The last
    /// row of a smaller group is repeated.
    #[inline(always)]
    unsafe fn in_groups<S: Simd, const X: usize>(&self, rows: &[QuantizedRow], to: &mut [f32], pitch: usize) {
        let each = rows.len().div_ceil(rows.len().div_ceil(X));
        for strip in 0..self.strips {
            for (group, to) in rows.chunks(each).zip(to.chunks_mut(each * pitch)) {
                let padded = std::array::from_fn(|row| &group[row.min(group.len() - 1)]);
                // SAFETY: the caller's contract.
                unsafe {
                    let sums = self.at_once::<S, X, 1>(padded, [strip]);
                    Self::store::<S, X>(&sums[0], group.len(), &mut to[strip * OUTPUTS..], pitch);
                }
            }
        }
    }

    /// Stores the results of a strip for the first `count` rows.
    #[inline(always)]
    unsafe fn store<S: Simd, const X: usize>(
        sums: &[[S::V; 2]; X],
        count: usize,
        to: &mut [f32],
        pitch: usize,
    ) {
        for r in 0..count {
            for part in 0..OUTPUTS / S::LANES {
                let to = &mut to[r * pitch + part * S::LANES..][..S::LANES];
                // SAFETY: the slice has a vector's lanes.
                unsafe { S::store(to.as_mut_ptr(), sums[r][part]) };
            }
        }
    }

    /// Multiplies by one row.
    #[inline(always)]
    pub(crate) unsafe fn multiply_row<S: Simd>(&self, row: &QuantizedRow, to: &mut [f32], pitch: usize) {
        // With hardware prefetch, one strip of 8-bit quants is read 10% faster than four (AMD, 2022). Scales
        // of nibbles are an eighth of their bytes, and hardware prefetch of that separate stream is too slow.
        let is_one = match self.streams {
            ReadPattern::InOrder | ReadPattern::Once => true,
            ReadPattern::Foreseen => M::BITS == 8,
            ReadPattern::Several => false,
        };
        // SAFETY: the caller's contract.
        unsafe {
            if S::HAS_VARIANTS {
                match is_one {
                    true => self.products::<S, 1, 1>([row], to, pitch),
                    false => self.products::<S, 1, 4>([row], to, pitch),
                }
            } else {
                self.products::<S, 1, 1>([row], to, pitch);
            }
        }
    }

    /// Multiplies the strips by `X` rows; results of rows have a stride of `pitch`. `W` strips are computed
    /// together, as `W` memory streams. They are far apart, so that each stream is long.
    #[inline(always)]
    pub(crate) unsafe fn products<S: Simd, const X: usize, const W: usize>(
        &self,
        rows: [&QuantizedRow; X],
        to: &mut [f32],
        pitch: usize,
    ) {
        let apart = self.strips.div_ceil(W);
        for i in 0..apart {
            // Strips past the last one repeat it.
            let mut strips = [0; W];
            for w in 0..W {
                strips[w] = (w * apart + i).min(self.strips - 1);
            }
            // SAFETY: the caller's contract.
            let sums = unsafe { self.at_once::<S, X, W>(rows, strips) };
            for w in 0..W {
                // SAFETY: the caller's contract.
                unsafe { Self::store::<S, X>(&sums[w], X, &mut to[strips[w] * OUTPUTS..], pitch) };
            }
        }
    }

    #[inline(always)]
    unsafe fn at_once<S: Simd, const X: usize, const W: usize>(
        &self,
        rows: [&QuantizedRow; X],
        strips: [usize; W],
    ) -> [[[S::V; 2]; X]; W] {
        let RepackedRows { matrix, first, blocks, streams, .. } = *self;
        let of_bytes = M::BITS == 8;
        let (ahead, once) = (streams.blocks_ahead(of_bytes), streams == ReadPattern::Once && !of_bytes);
        // The second of two sums per block, if half blocks have their own scales: that of the second word of each pair.
        let far = usize::from(M::SCALING.has_half_blocks());
        // SAFETY: the caller's contract.
        unsafe {
            let quant_offset = M::QUANT_OFFSET - M::raised::<S>();
            let small = M::SMALL && S::SMALL;
            let mut sums = [[[S::splat(0.0); 2]; X]; W];
            for block in 0..blocks {
                // Sums of x's quants, of the block or of its half blocks.
                let mut totals = [[0.0; 2]; X];
                let mut missing_of = [[0; 2]; X];
                let mut nothing = [[S::splat_sums(0); 2]; X];
                for r in 0..X {
                    totals[r][0] = *rows[r].totals.get_unchecked(block);
                    if far == 1 {
                        let of_first = *rows[r].half_totals.get_unchecked(block);
                        totals[r] = [of_first, totals[r][0] - of_first];
                    }
                    for half in 0..=far {
                        missing_of[r][half] = totals[r][half] as i32 * quant_offset;
                        nothing[r][half] = S::splat_sums(if small { 0 } else { missing_of[r][half] });
                    }
                }
                for w in 0..W {
                    let at = first + strips[w] * blocks + block;
                    let mut products = [[[S::splat_sums(0); 2]; 2]; X];
                    for r in 0..X {
                        products[r] = [nothing[r]; 2];
                    }
                    for pair in 0..BLOCK / 8 {
                        let [near_column, far_column] = columns(pair);
                        if ahead > 0 {
                            matrix.strip_prefetch::<S>(at + ahead, pair, once);
                        }
                        for part in 0..OUTPUTS / S::LANES {
                            let [near_codes, far_codes] = matrix.strip_codes::<S>(at, pair, part);
                            for r in 0..X {
                                let x = rows[r].codes.as_ptr().add(block * BLOCK);
                                let (near_x, far_x) = (x.add(near_column), x.add(far_column));
                                let sums = &mut products[r][part];
                                // Not through a function pointer: unoptimized builds would compile these as
                                // functions without the vector instructions.
                                if small {
                                    sums[0] = S::add_small(sums[0], near_codes, near_x);
                                    sums[far] = S::add_small(sums[far], far_codes, far_x);
                                } else {
                                    sums[0] = S::add_shared(sums[0], near_codes, near_x);
                                    sums[far] = S::add_shared(sums[far], far_codes, far_x);
                                }
                            }
                        }
                    }
                    for part in 0..OUTPUTS / S::LANES {
                        let scales = matrix.strip_scales::<S>(at, part);
                        let offsets = matrix.strip_offsets::<S>(at, part);
                        for r in 0..X {
                            let (mut of_parts, mut of_x) = ([S::splat(0.0); 2], [S::splat(0.0); 2]);
                            for half in 0..=far {
                                let mut products = products[r][part][half];
                                if small {
                                    products = S::of_small(products, missing_of[r][half]);
                                }
                                of_parts[half] = S::sums_to_f32(products);
                                of_x[half] = S::splat(totals[r][half]);
                            }
                            let of_block = scaled::<S>(M::SCALING, of_parts, of_x, scales, offsets);
                            let of_x = S::splat(*rows[r].scales.get_unchecked(block));
                            sums[w][r][part] = S::add(sums[w][r][part], S::mul(of_block, of_x));
                        }
                    }
                }
            }
            sums
        }
    }
}
