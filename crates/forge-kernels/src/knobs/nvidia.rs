//! How a projection is laid over an NVIDIA GPU, as measured.
//!
//! The projections of a Llama of 1.1 billion numbers, in f16, q8_0 and q4_0, were timed on an H200 of 132 multiprocessors in every
//! layout that the kernels have: launches one after the other in a graph, matrices from memory. For one row the rule here takes
//! at most 5% longer over a token than the best layouts of each projection do, in each format.
//! Latency is what there is to hide: with few simdgroups a multiprocessor asks for too little at a time, while an addition through
//! threadgroup memory costs next to nothing.

use super::Class;
use crate::context::packet_columns;
use crate::spec::{Knobs, Rows};
use forge_ir::Format;

/// Simdgroups of a multiprocessor that are enough. Measured: with less than 16 kernels are slower; with 32 those of nibbles are 2%
/// faster, and those of bytes 8% slower.
const ENOUGH: usize = 24;

/// Simdgroups that share rows at most.
const MOST_SHARING: usize = 8;

/// Knobs for `outputs` rows of `inputs` columns; for few rows there are none of its own. `leaves`: the epilogue leaves something for
/// each threadgroup.
pub(super) fn knobs(
    cores: usize,
    rows: Rows,
    format: Format,
    [outputs, inputs]: [usize; 2],
    leaves: bool,
) -> Option<Knobs> {
    match rows {
        Rows::One => Some(one(cores, format, [outputs, inputs], leaves)),
        Rows::Few => None,
        Rows::Many => Some(many(cores, outputs)),
    }
}

/// Many rows at once, shared by simdgroups before they become fewer, down to a packet a lane. Where something is left threadgroups are
/// larger, as far as one simdgroup finishes their outputs and there are about as many as multiprocessors.
fn one(cores: usize, format: Format, [outputs, inputs]: [usize; 2], leaves: bool) -> Knobs {
    let packets = inputs.div_ceil(packet_columns(format));
    let (most, fewest) = match Class::of(format) {
        Class::Plain => (4, 2),
        Class::Bytes => (4, 4),
        Class::Nibbles => (8, 8),
    };
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
    let mut simdgroups = split.max(2);
    let of_group = |simdgroups: usize| rows * simdgroups / split;
    while leaves
        && simdgroups < 16
        && of_group(2 * simdgroups) <= 32
        && outputs >= 128 * of_group(2 * simdgroups)
    {
        simdgroups *= 2;
    }
    let ahead = rows <= 4 && packets >= 32 * 2 * split;
    Knobs {
        rows_per_simdgroup: rows,
        simdgroups,
        split,
        packets: if ahead { 2 } else { 1 },
        tile_rows: 1,
        tile_outputs: 1,
    }
}

/// 64 rows by 64 outputs; by 128 where a prompt of 512 rows has four such tiles for a multiprocessor, and 32 rows where it has less than
/// three of the tiles of 64 by 64 for two. (Those with their columns shared are up to 7% faster then, but where singles are staged
/// they do not fit threadgroup memory.)
///
/// Measured, in passes of 512 rows in q8_0, where programs chose among all layouts: with 7.8 tiles of 128 outputs for a multiprocessor
/// these are 22% faster than those of 64, and with 1.5 they are not; with 1.9 tiles of 64 by 64 these are 13% faster than those of 32 rows.
/// Where between these numbers layouts change nobody has measured.
fn many(cores: usize, outputs: usize) -> Knobs {
    let tiles = |tile_outputs: usize| outputs.div_ceil(tile_outputs) * (512 / 64);
    let (tile_rows, tile_outputs) = match () {
        () if 2 * tiles(64) < 3 * cores => (32, 64),
        () if tiles(128) < 4 * cores => (64, 64),
        () => (64, 128),
    };
    Knobs { rows_per_simdgroup: 1, simdgroups: 4, split: 1, packets: 1, tile_rows, tile_outputs }
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
            ([3072, 2048], Format::F16, false, [4, 8, 8, 1]),
        ];
        for (shape, format, leaves, expected) in cases {
            let Knobs { rows_per_simdgroup, simdgroups, split, packets, .. } =
                one(132, format, shape, leaves);
            assert_eq!([rows_per_simdgroup, split, simdgroups, packets], expected, "{shape:?} {format:?}");
        }
        let tile = |outputs| {
            let Knobs { tile_rows, tile_outputs, .. } = many(132, outputs);
            [tile_rows, tile_outputs]
        };
        assert_eq!([576, 2048, 3072, 16384].map(tile), [[32, 64], [64, 64], [64, 64], [64, 128]]);
    }
}
