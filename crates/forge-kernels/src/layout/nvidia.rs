//! How a projection is laid over an NVIDIA GPU, as measured.
//!
//! The projections of a Llama of 1.1 billion numbers, in f16, q8_0 and q4_0, were timed on an H200 of 132 multiprocessors in every
//! layout that the kernels have: launches one after the other in a graph, matrices from memory. For one row the rule here takes
//! at most 5% longer over a token than the best layouts of each projection do, in each format.
//! Latency is what there is to hide: with few simdgroups a multiprocessor asks for too little at a time, while an addition through
//! threadgroup memory costs next to nothing. What is said of q4_0 and 4,096 columns or more, and of few rows, are choices of programs
//! of 8 and 30 billion numbers in q4_0, which chose among the layouts around the rule of that time.

use crate::context::packet_columns;
use crate::layout::Class;
use crate::spec::{Knobs, Rows, STRETCH};
use forge_ir::Format;

/// Simdgroups of a multiprocessor that are enough. Measured: with less than 16 kernels are slower; with 32 those of nibbles are 2%
/// faster, and those of bytes 8% slower.
const ENOUGH: usize = 24;

/// Simdgroups that share rows at most.
const MOST_SHARING: usize = 8;

/// Knobs for `outputs` rows of `inputs` columns. `leaves`: the epilogue leaves something for
/// each threadgroup; `exact`: nothing of x may be rounded.
pub(crate) fn knobs(
    cores: usize,
    rows: Rows,
    format: Format,
    [outputs, inputs]: [usize; 2],
    leaves: bool,
    exact: bool,
) -> Knobs {
    match rows {
        Rows::One if !exact && Knobs::can_take_codes(format) => {
            coded(cores, format, [outputs, inputs], leaves)
        }
        Rows::One => one(cores, format, [outputs, inputs], leaves),
        Rows::Few => few(cores, outputs, inputs.div_ceil(4 * packet_columns(format).max(8))),
        Rows::Many => many(cores, [outputs, inputs]),
    }
}

/// Many rows at once, shared by simdgroups before they become fewer, down to a packet a lane. Where something is left threadgroups are
/// larger, as far as one simdgroup finishes their outputs and there are about as many as multiprocessors.
fn one(cores: usize, format: Format, [outputs, inputs]: [usize; 2], leaves: bool) -> Knobs {
    let packets = inputs.div_ceil(packet_columns(format));
    let [rows, split] = match Class::of(format) {
        // Enough for all without sharing, and nothing ahead: 28,672 outputs of 4,096 columns take 5% less time than with 4 rows. (A token in
        // bf16 is no faster with it.)
        Class::Plain if format == Format::F16 && !leaves && outputs >= 8 * ENOUGH * cores => return wide(),
        Class::Plain => shared(cores, outputs, packets, 4, 2),
        Class::Bytes => shared(cores, outputs, packets, 4, 4),
        Class::Nibbles => nibbles(cores, outputs, packets),
    };
    let mut simdgroups = split.max(2);
    let of_group = |simdgroups: usize| rows * simdgroups / split;
    while leaves
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

/// Two rows a simdgroup, eight simdgroups a threadgroup.
fn wide() -> Knobs {
    Knobs::of_rows(2, 8, 1, 1)
}

/// Where x is taken as codes: 16 rows at once, with columns shared until there are enough simdgroups. Where something is left, and where
/// less than eight share, a threadgroup has 32 outputs. Who has eight stretches or more loads one ahead.
///
/// Chosen among all layouts by programs of 8 and 0.6 billion numbers in q4_0 and q8_0: 6,144 outputs of 4,096 columns take 12 and 27% less
/// time with 16 outputs for a threadgroup and nothing ahead than with 32 and a stretch ahead, and 4,096 outputs of 14,336 columns none.
/// Heads have so many outputs that nothing is gained by asking ahead, and are shared all the same, which takes 20 to 33% less time.
fn coded(cores: usize, format: Format, [outputs, inputs]: [usize; 2], leaves: bool) -> Knobs {
    let stretches = inputs.div_ceil(STRETCH);
    let all = |split: usize| outputs.div_ceil(16) * split;
    let has_plenty = all(1) > 2 * ENOUGH * cores;
    let (rows, enough) = match (has_plenty, Class::of(format)) {
        (true, Class::Nibbles) => (32, 4),
        (true, _) => (16, 2),
        (false, _) => (16, MOST_SHARING),
    };
    let mut split = 1;
    while split < enough && stretches >= 2 * split && (has_plenty || all(split) < ENOUGH * cores) {
        split *= 2;
    }
    let of_32_outputs = 32 / rows * split;
    let simdgroups = if leaves || split < MOST_SHARING { of_32_outputs } else { split };
    let packets = if !has_plenty && stretches >= 8 * split { 2 } else { 1 };
    Knobs { codes: true, ..Knobs::of_rows(rows, simdgroups, split, packets) }
}

/// Rows of a simdgroup, from `most` down to `fewest`, and simdgroups that share them.
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

/// The same of nibbles, which take so many instructions that four times as many simdgroups are none too many: with 28,672 outputs of 4,096
/// columns a packet a lane takes 31% less time than four. All lanes have as many packets, if there is a way to it. Where each has
/// more than four all the same, and where there are not three simdgroups for a multiprocessor, they have fewer rows (4,096 outputs of
/// 14,336 columns: 10% less; where there are few nobody has measured it).
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

/// 16 rows at once, shared by four simdgroups; by eight where there would not be eight for a multiprocessor. Measured in q4_0 alone:
/// 12 and 14% less time for 6,144 and 28,672 outputs of 4,096 columns than with eight simdgroups that share rows and with none, and
/// none less for 4,096 outputs, which eight share.
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

/// 64 rows by 64 outputs; by 128 where a prompt of 512 rows has three such tiles for two multiprocessors; and 32 rows where it has less than
/// three of the tiles of 64 by 64 for two. Where tiles of 32 by 64 would leave multiprocessors without one, as for routers, they
/// are 32 by 32, and two halves of a threadgroup share the columns. (Other tiles with their columns shared are up to 7% faster, too,
/// but where singles are staged they do not fit threadgroup memory.)
///
/// Measured, in passes of 512 rows in q8_0 and q4_0, where programs chose among all layouts: with 7.8, 2.9, 2.4 and 1.9 tiles of 128 outputs for a
/// multiprocessor these are 22, 21, 7 and 10% faster than those of 64, and with 1.5 they are not; with 1.9 tiles of 64 by 64 these are 13%
/// faster than those of 32 rows; 128 outputs take 46% less time in tiles of 32 by 32 than of 32 by 64.
/// Where between these numbers layouts change nobody has measured.
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
    fn an_h200_gets_what_was_measured_on_it() {
        // Shape, format, whether it leaves something, and of one row: rows, split, simdgroups, packets.
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
        for (shape, format, leaves, expected) in cases {
            let Knobs { rows_per_simdgroup, simdgroups, split, packets, .. } =
                one(132, format, shape, leaves);
            assert_eq!([rows_per_simdgroup, split, simdgroups, packets], expected, "{shape:?} {format:?}");
        }
        // Of what takes x as codes: rows, split, simdgroups, packets.
        let cases = [
            ([6144, 4096], Format::Q8_0, false, [16, 8, 8, 1]),
            ([4096, 4096], Format::Q4_0, true, [16, 8, 16, 1]),
            ([28672, 4096], Format::Q4_0, false, [16, 2, 4, 2]),
            ([4096, 14336], Format::Q4_0, true, [16, 8, 16, 2]),
            ([128256, 4096], Format::Q4_0, true, [32, 4, 4, 1]),
            ([128256, 4096], Format::Q8_0, true, [16, 2, 4, 1]),
            ([1024, 64], Format::Q8_0, false, [16, 1, 2, 1]),
        ];
        for (shape, format, leaves, expected) in cases {
            let Knobs { rows_per_simdgroup, simdgroups, split, packets, .. } =
                coded(132, format, shape, leaves);
            assert_eq!([rows_per_simdgroup, split, simdgroups, packets], expected, "{shape:?} {format:?}");
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
