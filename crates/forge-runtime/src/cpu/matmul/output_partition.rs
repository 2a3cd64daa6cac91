//! How the outputs of few rows are shared among threads.

use crate::cpu::format::repacked::OUTPUTS;
use crate::cpu::matmul::epilogue::{EpilogueContext, SideOutput};

/// Outputs as threads take them.
pub(crate) struct OutputPartition {
    /// Shares that leave something ([`EpilogueContext::shares`]).
    pub(crate) shares: usize,
    /// Outputs of each.
    pub(crate) size: usize,
    /// Outputs that a thread takes at once: whole shares.
    pub(crate) piece: usize,
}

impl OutputPartition {
    /// Of a matrix whose rows lie one after the other.
    pub(crate) fn of_rows(finish: &EpilogueContext<'_>, outputs: usize, workers: usize) -> OutputPartition {
        let (shares, size, at_once) = finish.shares(outputs, workers);
        OutputPartition { shares, size, piece: size * at_once }
    }

    /// Of a matrix in strips, of `wanted` outputs if shares are no larger: a thread takes whole strips, too.
    pub(crate) fn of_strips(
        finish: &EpilogueContext<'_>,
        outputs: usize,
        workers: usize,
        wanted: usize,
    ) -> OutputPartition {
        let (shares, size) = match (finish.shares(outputs, workers), &finish.left) {
            ((_, size, _), SideOutput::Nothing) => {
                let size = size.next_multiple_of(OUTPUTS);
                (outputs.div_ceil(size), size)
            }
            ((shares, size, _), _) => (shares, size),
        };
        let least = least_common_multiple(size, OUTPUTS);
        OutputPartition { shares, size, piece: least * (wanted / least).max(1) }
    }
}

fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut of, mut rest) = (a, b);
    while rest > 0 {
        (of, rest) = (rest, of % rest);
    }
    a / of * b
}
