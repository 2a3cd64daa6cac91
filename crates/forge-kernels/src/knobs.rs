//! How a projection is laid over threads when nobody has measured: a default for each regime, with its reason.

use forge_ir::Format;

use crate::spec::{Knobs, Rows};

/// Simdgroups that keep a large GPU's memory busy: some 20 a core on 40 cores, rounded up.
const ENOUGH_SIMDGROUPS: usize = 1024;

impl Knobs {
    /// Knobs for `outputs` rows of `inputs` columns in `format`.
    ///
    /// - One row: 4 weight rows a simdgroup share one load of x, 2 where that would leave too few simdgroups to keep
    ///   memory busy. If there are still too few, simdgroups share rows by columns, as long as each of their lanes
    ///   has a packet. Two simdgroups a threadgroup: small groups are placed on cores more evenly.
    /// - Few rows: 4 rows of x against as many weight rows as fit in registers once decoded. A packet of 4 bits decodes
    ///   to 32 floats, so quantised formats take 2 weight rows and plain ones 4.
    /// - Many rows: 32 by 64 fills 13.5 KiB of threadgroup memory, and each simdgroup's 8 accumulators are enough
    ///   products in flight to hide the matrix unit's latency.
    pub fn default_for(rows: Rows, format: Format, outputs: usize, inputs: usize) -> Knobs {
        let tiles = Knobs {
            rows_per_simdgroup: 1,
            simdgroups: 2,
            split: 1,
            packets: 1,
            tile_rows: 1,
            tile_outputs: 1,
        };
        match rows {
            Rows::One => {
                let rows_per_simdgroup = if outputs / 4 >= ENOUGH_SIMDGROUPS { 4 } else { 2 };
                let packets = inputs.div_ceil(crate::context::packet_columns(format));
                let mut split = 1;
                while split < 4
                    && outputs / rows_per_simdgroup * split < ENOUGH_SIMDGROUPS
                    && packets >= 32 * split * 2
                {
                    split *= 2;
                }
                Knobs { rows_per_simdgroup, simdgroups: split.max(2), split, ..tiles }
            }
            Rows::Few => {
                let rows_per_simdgroup = if format.is_quantised() { 2 } else { 4 };
                Knobs { rows_per_simdgroup, tile_rows: 4, ..tiles }
            }
            Rows::Many => Knobs { simdgroups: 4, tile_rows: 32, tile_outputs: 64, ..tiles },
        }
    }
}
