//! Partition of outputs among threads in GEMV.

use crate::cpu::format::repacked::OUTPUTS;
use crate::cpu::matmul::epilogue::{EpilogueContext, SideOutput};

/// Partition of outputs into units of work.
pub(crate) struct OutputPartition {
    /// Partitions with additional outputs ([`EpilogueContext::partitions`]).
    pub(crate) partitions: usize,
    /// Outputs per partition.
    pub(crate) size: usize,
    /// Outputs per claim: whole partitions.
    pub(crate) piece: usize,
}

impl OutputPartition {
    /// For a row-major matrix.
    pub(crate) fn of_rows(finish: &EpilogueContext<'_>, outputs: usize, workers: usize) -> OutputPartition {
        let (partitions, size, at_once) = finish.partitions(outputs, workers);
        OutputPartition { partitions, size, piece: size * at_once }
    }

    /// For a repacked matrix, with pieces of about `wanted` outputs: whole strips and whole partitions.
    pub(crate) fn of_strips(
        finish: &EpilogueContext<'_>,
        outputs: usize,
        workers: usize,
        wanted: usize,
    ) -> OutputPartition {
        let (partitions, size) = match (finish.partitions(outputs, workers), &finish.side_output) {
            ((_, size, _), SideOutput::Nothing) => {
                let size = size.next_multiple_of(OUTPUTS);
                (outputs.div_ceil(size), size)
            }
            ((partitions, size, _), _) => (partitions, size),
        };
        let least = least_common_multiple(size, OUTPUTS);
        OutputPartition { partitions, size, piece: least * (wanted / least).max(1) }
    }
}

fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut of, mut rest) = (a, b);
    while rest > 0 {
        (of, rest) = (rest, of % rest);
    }
    a / of * b
}
