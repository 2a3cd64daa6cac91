//! Candidate layouts for tuning: the defaults and their neighborhood. A kernel's limits may exclude some.

use crate::context::packet_columns;
use crate::spec::{ExpertsKnobs, Knobs, Rows};
use forge_ops::Format;

impl Knobs {
    /// Candidate layouts of a linear layer with this many columns. `writes_partials`: the epilogue writes a
    /// partial result per threadgroup.
    pub fn tried(rows: Rows, format: Format, inputs: usize, writes_partials: bool) -> Vec<Knobs> {
        match rows {
            Rows::Few => few(inputs.div_ceil(4 * packet_columns(format).max(8))),
            Rows::Many => many(),
            _ => {
                let mut tried = one(inputs.div_ceil(packet_columns(format)), writes_partials);
                if Knobs::can_use_mma(format) {
                    tried.extend(with_mma(inputs.div_ceil(Knobs::mma_columns(format))));
                }
                tried
            }
        }
    }
}

impl ExpertsKnobs {
    /// Candidate layouts of an expert kernel. `writes_partials`: the kernel writes a partial result per
    /// threadgroup, whose outputs one simdgroup writes.
    pub fn tried(rows: Rows, writes_partials: bool) -> Vec<ExpertsKnobs> {
        if rows == Rows::Many {
            let tile = |tile_outputs| ExpertsKnobs { rows_per_simdgroup: 1, simdgroups: 4, tile_outputs };
            return [32, 64, 128].map(tile).into();
        }
        let mut tried = Vec::new();
        for rows_per_simdgroup in [2, 4, 8] {
            for simdgroups in [2, 4, 8, 16] {
                let fits =
                    if writes_partials { rows_per_simdgroup * simdgroups <= 32 } else { simdgroups <= 8 };
                if fits {
                    tried.push(ExpertsKnobs { rows_per_simdgroup, simdgroups, tile_outputs: 1 });
                }
            }
        }
        tried
    }
}

/// Every lane has at least one packet. Large threadgroups only pay off with partial results.
fn one(packets: usize, writes_partials: bool) -> Vec<Knobs> {
    let mut tried = Vec::new();
    for rows_per_simdgroup in [1, 2, 4, 8] {
        for split in [1, 2, 4, 8].into_iter().filter(|split| *split == 1 || packets >= 32 * split) {
            let most = if writes_partials { 16 } else { 8 };
            for simdgroups in [2, 4, 8, 16].into_iter().filter(|count| (split..=most).contains(count)) {
                for at_once in [1, 2] {
                    if at_once == 2 && (packets <= 32 * split || rows_per_simdgroup > 4) {
                        continue;
                    }
                    tried.push(Knobs::of_rows(rows_per_simdgroup, simdgroups, split, at_once));
                }
            }
        }
    }
    tried
}

/// Candidates with MMA.
fn with_mma(steps: usize) -> Vec<Knobs> {
    let mut tried = Vec::new();
    for rows_per_simdgroup in [16, 32] {
        for split in [1, 2, 4, 8].into_iter().filter(|split| steps >= *split) {
            for simdgroups in [split, 2 * split, 4 * split].into_iter().filter(|count| *count <= 16) {
                for packets in [1, 2].into_iter().filter(|packets| *packets == 1 || steps > split) {
                    tried.push(Knobs {
                        mma: true,
                        ..Knobs::of_rows(rows_per_simdgroup, simdgroups, split, packets)
                    });
                }
            }
        }
    }
    tried
}

fn few(strips: usize) -> Vec<Knobs> {
    let mut tried = Vec::new();
    for rows_per_simdgroup in [8, 16, 32] {
        for split in [1, 2, 4, 8].into_iter().filter(|split| *split == 1 || strips >= 2 * split) {
            for simdgroups in [2, 4, 8].into_iter().filter(|count| *count >= split) {
                tried.push(Knobs::of_rows(rows_per_simdgroup, simdgroups, split, 1));
            }
        }
    }
    tried
}

fn many() -> Vec<Knobs> {
    let mut tried = Vec::new();
    for tile_rows in [32, 64] {
        for tile_outputs in [32, 64, 128] {
            for split in [1, 2] {
                tried.push(Knobs::of_tile(tile_rows, tile_outputs, split));
            }
        }
    }
    tried
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Family;

    #[test]
    fn default_layouts_are_tuning_candidates() {
        let families = [Family::Apple7, Family::Apple8, Family::Apple9, Family::Apple10, Family::Nvidia];
        let formats = [Format::F32, Format::F16, Format::Q8_0, Format::Q4_0];
        for (family, cores) in
            families.into_iter().flat_map(|family| [8, 40, 132].map(|cores| (family, cores)))
        {
            for format in formats {
                for writes_partials in [false, true] {
                    let (rows_per_simdgroup, simdgroups) =
                        Knobs::of_experts(family, cores, format, 2048, 4096, writes_partials);
                    let chosen = ExpertsKnobs { rows_per_simdgroup, simdgroups, tile_outputs: 1 };
                    assert!(ExpertsKnobs::tried(Rows::Few, writes_partials).contains(&chosen), "{chosen:?}");
                }
                for (outputs, inputs) in [(64, 64), (576, 1536), (2048, 2048), (2048, 8192), (128_256, 4096)]
                {
                    for rows in [Rows::One, Rows::Few, Rows::Many] {
                        for writes_partials in [false, rows == Rows::One] {
                            for exact in [false, true] {
                                let shape = [outputs, inputs];
                                let chosen = Knobs::for_chip(
                                    family,
                                    cores,
                                    rows,
                                    format,
                                    shape,
                                    writes_partials,
                                    exact,
                                );
                                assert!(
                                    Knobs::tried(rows, format, inputs, writes_partials).contains(&chosen),
                                    "{family:?} {cores} {rows:?} {format} {outputs} × {inputs}: {chosen:?}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}
