//! Layouts of linear layers on NVIDIA GPUs, from measurements.
//!
//! The linear layers of a 1.1B Llama in f16, q8_0 and q4_0 were timed on an H200 (132 multiprocessors) in all
//! layouts, as consecutive launches in a CUDA graph with matrices in memory. For one row these rules take at
//! most 5% longer per token than the best layout of each layer, in each format. The bottleneck is latency:
//! with few simdgroups a multiprocessor has too few bytes in flight, while an addition through threadgroup
//! memory is nearly free. The rules for q4_0 with 4,096 columns or more, and for small batches, come from
//! tuning 8B and 30B models in q4_0 around the previous rules.

use crate::context::packet_columns;
use crate::layout::class::Class;
use crate::spec::{Knobs, Rows};
use forge_ops::Format;

/// Sufficient simdgroups per multiprocessor. Measured: with fewer than 16 kernels are slower; with 32 those
/// of 4-bit weights are 2% faster and those of 8-bit weights 8% slower.
const ENOUGH: usize = 24;

/// Maximum simdgroups that split the columns of a row.
const MOST_SHARING: usize = 8;

/// Weights of the smallest matrix in f16 or bf16 that is multiplied with MMA. Measured for one row, 8B in f16: 3 to 4% more
/// time than without MMA from 117M weights, nothing for 59M, 14% for 25M and 23% for 17M. Whole models of 0.6B and 1B
/// took 17 and 18% more with MMA for all matrices.
const FLOAT_MMA_WEIGHTS: usize = 24 << 20;

/// Knobs for `outputs` rows of `inputs` columns. `writes_partials`: the epilogue writes a partial result per
/// threadgroup. `exact`: activations must be neither quantized nor split in two.
pub(crate) fn knobs(
    cores: usize,
    rows: Rows,
    format: Format,
    [outputs, inputs]: [usize; 2],
    writes_partials: bool,
    exact: bool,
) -> Knobs {
    match rows {
        Rows::Few => few(cores, outputs, inputs.div_ceil(4 * packet_columns(format).max(8))),
        Rows::Many => many(cores, [outputs, inputs]),
        _ if !exact && Knobs::can_use_mma(format) && format.is_quantized() => {
            int_mma(cores, format, [outputs, inputs], writes_partials)
        }
        _ if !exact && Knobs::can_use_mma(format) && outputs * inputs >= FLOAT_MMA_WEIGHTS => {
            float_mma(cores, format, [outputs, inputs], writes_partials)
        }
        _ => one(cores, format, [outputs, inputs], writes_partials),
    }
}

/// One row of x. Columns are split before rows are reduced, down to one packet per lane. With partial results
/// threadgroups are larger, as far as one simdgroup can write their outputs and there are about as many as
/// multiprocessors.
fn one(cores: usize, format: Format, [outputs, inputs]: [usize; 2], writes_partials: bool) -> Knobs {
    let packets = inputs.div_ceil(packet_columns(format));
    let [rows, split] = match Class::of(format) {
        // Enough rows without a split, and no loading ahead: 28,672 outputs of 4,096 columns take 5% less
        // time than with 4 rows. (bf16 is not faster with it.)
        Class::Plain if format == Format::F16 && !writes_partials && outputs >= 8 * ENOUGH * cores => {
            return wide();
        }
        Class::Plain => shared(cores, outputs, packets, 4, 2),
        Class::Bytes => shared(cores, outputs, packets, 4, 4),
        Class::Nibbles => nibbles(cores, outputs, packets),
    };
    let mut simdgroups = split.max(2);
    let of_group = |simdgroups: usize| rows * simdgroups / split;
    while writes_partials
        && simdgroups < 16
        && of_group(2 * simdgroups) <= 32
        && outputs >= 128 * of_group(2 * simdgroups)
    {
        simdgroups *= 2;
    }
    let ahead = Class::of(format) != Class::Nibbles && rows <= 4 && packets >= 32 * 2 * split;
    let packets = if ahead { 2 } else { 1 };
    Knobs::of_rows(rows, simdgroups, split, packets)
}

/// Two rows per simdgroup, eight simdgroups per threadgroup.
fn wide() -> Knobs {
    Knobs::of_rows(2, 8, 1, 1)
}

/// Layout for MMA of integers: 16 rows at once, with columns split until there are enough simdgroups.
/// With partial results, or a split below eight, a threadgroup has 32 outputs. With eight or more steps, one
/// is loaded ahead.
///
/// Chosen by tuning 8B and 0.6B models in q4_0 and q8_0. 6,144 outputs of 4,096 columns take 12 and 27% less
/// time with 16 outputs per threadgroup and no loading ahead than with 32 and one step ahead; 4,096 outputs
/// of 14,336 columns take the same. Output heads have so many outputs that loading ahead gains nothing;
/// splitting their columns takes 20 to 33% less time.
fn int_mma(cores: usize, format: Format, [outputs, inputs]: [usize; 2], writes_partials: bool) -> Knobs {
    let steps = inputs.div_ceil(Knobs::mma_columns(format));
    let all = |split: usize| outputs.div_ceil(16) * split;
    let has_plenty = all(1) > 2 * ENOUGH * cores;
    let (rows, enough) = match (has_plenty, Class::of(format)) {
        (true, Class::Nibbles) => (32, 4),
        (true, _) => (16, 2),
        (false, _) => (16, MOST_SHARING),
    };
    let mut split = 1;
    while split < enough && steps >= 2 * split && (has_plenty || all(split) < ENOUGH * cores) {
        split *= 2;
    }
    let of_32_outputs = 32 / rows * split;
    let simdgroups = if writes_partials || split < MOST_SHARING { of_32_outputs } else { split };
    let packets = if !has_plenty && steps >= 8 * split { 2 } else { 1 };
    Knobs { mma: true, ..Knobs::of_rows(rows, simdgroups, split, packets) }
}

/// Layout for MMA of floats: 16 rows at once. Columns are split in four, or in eight if there are still few simdgroups.
/// With partial results and no more than one threadgroup for each multiprocessor, a threadgroup has 32 outputs and loads one
/// step ahead.
///
/// Measured with an 8B model in f16. 6,144 outputs of 4,096 columns take 16% less time with eight parts than with four,
/// 28,672 outputs take 8% more. Twice as many outputs per threadgroup take 13% more time.
fn float_mma(cores: usize, format: Format, [outputs, inputs]: [usize; 2], writes_partials: bool) -> Knobs {
    let steps = inputs.div_ceil(Knobs::mma_columns(format));
    let all = |split: usize| outputs.div_ceil(16) * split;
    let mut split = 1;
    while split < MOST_SHARING && steps >= 2 * split && (split < 4 || all(split) < ENOUGH * cores) {
        split *= 2;
    }
    let has_few_groups = writes_partials && all(MOST_SHARING) < ENOUGH * cores;
    let simdgroups = if has_few_groups { 2 * split } else { split };
    let packets = if has_few_groups && steps > split { 2 } else { 1 };
    Knobs { mma: true, ..Knobs::of_rows(16, simdgroups, split, packets) }
}

/// Rows per simdgroup, from `most` down to `fewest`, and the column split.
fn shared(cores: usize, outputs: usize, packets: usize, most: usize, fewest: usize) -> [usize; 2] {
    let (mut rows, mut split) = (most, 1);
    while outputs.div_ceil(rows) * split < ENOUGH * cores {
        if split < MOST_SHARING && packets >= 32 * 2 * split {
            split *= 2;
        } else if rows > fewest {
            rows /= 2;
        } else {
            break;
        }
    }
    [rows, split]
}

/// Rows and split for 4-bit weights. They take so many instructions that four times as many simdgroups pay
/// off: with 28,672 outputs of 4,096 columns one packet per lane takes 31% less time than four. Lanes get
/// equal numbers of packets where possible. With more than four packets per lane, or fewer than three
/// simdgroups per multiprocessor, rows are reduced (4,096 outputs of 14,336 columns: 10% less time; the
/// second case has not been measured).
fn nibbles(cores: usize, outputs: usize, packets: usize) -> [usize; 2] {
    let (mut rows, mut split) = (8, 1);
    let even = |split: usize| packets.is_multiple_of(32 * split);
    while outputs.div_ceil(rows) * split < 4 * ENOUGH * cores
        && split < MOST_SHARING
        && packets >= 32 * 2 * split
        && (even(2 * split) || !even(split))
    {
        split *= 2;
    }
    if packets > 4 * 32 * split {
        rows = 4;
    }
    while rows > 2 && outputs.div_ceil(rows) * split < 3 * cores {
        rows /= 2;
    }
    [rows, split]
}

/// Small batches: 16 rows with columns split over four simdgroups; over eight if there would be fewer than
/// eight per multiprocessor. Measured in q4_0 only: 12 and 14% less time for 6,144 and 28,672 outputs of
/// 4,096 columns than with a split of eight and of one, and no difference for 4,096 outputs with a split of
/// eight.
fn few(cores: usize, outputs: usize, strips: usize) -> Knobs {
    let (rows, mut split) = (16, 1);
    while split < MOST_SHARING
        && strips >= 4 * split
        && (split < 4 || outputs.div_ceil(rows) * split < 8 * cores)
    {
        split *= 2;
    }
    Knobs::of_rows(rows, split.max(4), split, 1)
}

/// Many rows: tiles of 64 rows by 64 outputs. 128 outputs if a prompt of 512 rows has at least three such
/// tiles per two multiprocessors; 32 rows if it has fewer than three 64 by 64 tiles per two. If 32 by 64
/// tiles would leave multiprocessors idle, as for routers, tiles are 32 by 32 with a column split of two.
/// (Other tiles with a split are up to 7% faster too, but do not fit in threadgroup memory with f32.)
///
/// Measured in passes of 512 rows in q8_0 and q4_0, tuned over all layouts. With 7.8, 2.9, 2.4 and 1.9 tiles
/// of 128 outputs per multiprocessor these are 22, 21, 7 and 10% faster than 64, and with 1.5 they are not.
/// With 1.9 tiles of 64 by 64 these are 13% faster than 32 rows. 128 outputs take 46% less time in 32 by 32
/// tiles than in 32 by 64. The exact thresholds between these points have not been measured.
fn many(cores: usize, [outputs, inputs]: [usize; 2]) -> Knobs {
    let tiles = |tile_rows: usize, tile_outputs: usize| outputs.div_ceil(tile_outputs) * (512 / tile_rows);
    let (tile_rows, tile_outputs, split) = match () {
        () if tiles(32, 64) < cores && inputs >= 256 => (32, 32, 2),
        () if 2 * tiles(64, 64) < 3 * cores => (32, 64, 1),
        () if 2 * tiles(64, 128) < 3 * cores => (64, 64, 1),
        () => (64, 128, 1),
    };
    Knobs::of_tile(tile_rows, tile_outputs, split)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h200_uses_its_measured_layouts() {
        // Shape, format, whether it writes partial results, and for one row: rows, split, simdgroups,
        // packets.
        let cases = [
            ([2048, 8192], Format::Q8_0, true, [4, 8, 16, 2]),
            ([2048, 2048], Format::Q8_0, true, [4, 4, 16, 1]),
            ([16384, 2048], Format::Q8_0, false, [4, 1, 2, 2]),
            ([2048, 8192], Format::Q4_0, true, [8, 8, 16, 1]),
            ([3072, 2048], Format::Q4_0, false, [8, 2, 2, 1]),
            ([5120, 2048], Format::Q4_0, false, [8, 2, 2, 1]),
            ([28672, 4096], Format::Q4_0, false, [8, 4, 4, 1]),
            ([6144, 4096], Format::Q4_0, false, [8, 4, 4, 1]),
            ([4096, 14336], Format::Q4_0, true, [4, 2, 16, 1]),
            ([128256, 4096], Format::Q4_0, true, [8, 1, 4, 1]),
            ([3072, 2048], Format::F16, false, [4, 8, 8, 1]),
            ([28672, 4096], Format::F16, false, [2, 1, 8, 1]),
        ];
        for (shape, format, writes_partials, expected) in cases {
            let Knobs { rows_per_simdgroup, simdgroups, split, packets, .. } =
                one(132, format, shape, writes_partials);
            assert_eq!([rows_per_simdgroup, split, simdgroups, packets], expected, "{shape:?} {format:?}");
        }
        // For MMA of integers: rows, split, simdgroups, packets.
        let cases = [
            ([6144, 4096], Format::Q8_0, false, [16, 8, 8, 1]),
            ([4096, 4096], Format::Q4_0, true, [16, 8, 16, 1]),
            ([28672, 4096], Format::Q4_0, false, [16, 2, 4, 2]),
            ([4096, 14336], Format::Q4_0, true, [16, 8, 16, 2]),
            ([128256, 4096], Format::Q4_0, true, [32, 4, 4, 1]),
            ([128256, 4096], Format::Q8_0, true, [16, 2, 4, 1]),
            ([1024, 64], Format::Q8_0, false, [16, 1, 2, 1]),
        ];
        for (shape, format, writes_partials, expected) in cases {
            let Knobs { rows_per_simdgroup, simdgroups, split, packets, .. } =
                int_mma(132, format, shape, writes_partials);
            assert_eq!([rows_per_simdgroup, split, simdgroups, packets], expected, "{shape:?} {format:?}");
        }
        // For MMA of floats: rows, split, simdgroups, packets; lanes for smaller matrices.
        let cases = [
            ([28672, 4096], false, [16, 4, 4, 1]),
            ([6144, 4096], false, [16, 8, 8, 1]),
            ([4096, 14336], true, [16, 8, 16, 2]),
            ([128256, 4096], true, [16, 4, 4, 1]),
            ([4096, 4096], true, [4, 4, 16, 2]),
        ];
        for (shape, writes_partials, expected) in cases {
            let Knobs { rows_per_simdgroup, simdgroups, split, packets, mma, .. } =
                knobs(132, Rows::One, Format::F16, shape, writes_partials, false);
            assert_eq!([rows_per_simdgroup, split, simdgroups, packets], expected, "{shape:?}");
            assert_eq!(mma, rows_per_simdgroup == 16, "{shape:?}");
        }
        let tile = |outputs| {
            let Knobs { tile_rows, tile_outputs, split, .. } = many(132, [outputs, 2048]);
            [tile_rows, tile_outputs, split]
        };
        assert_eq!([128, 576, 2048].map(tile), [[32, 32, 2], [32, 64, 1], [64, 64, 1]]);
        assert_eq!([3072, 4096, 16384].map(tile), [[64, 64, 1], [64, 128, 1], [64, 128, 1]]);
        let sharing = |outputs| few(132, outputs, 32).split;
        assert_eq!([4096, 6144, 28672].map(sharing), [8, 4, 4]);
    }
}
