//! The importance of a packed matrix's columns, row by row: the rows of a packed matrix come from weights, or
//! from experts of these, with inputs of their own.

use crate::file::gather;
use forge_ir::{ColumnSquares, Graph, ImportanceMatrix, Packed, Weight, WeightId};

/// Added to every column's weight, in units of the mean weight: a column that was never active in the
/// calibration text may be in another.
const FLOOR: f64 = 1e-3;

/// Weights of the squared errors of one part's columns.
#[derive(Debug)]
pub(crate) struct ColumnWeights {
    /// With a mean of about 1.
    pub(crate) weights: Vec<f32>,
    /// The factor by which weights are smaller than mean squared inputs.
    pub(crate) unit: f64,
}

impl ColumnWeights {
    /// Weights of mean squared inputs, each divided by the square of a folded gain.
    fn new(means: &[f64], gain: Option<&[f32]>) -> Option<ColumnWeights> {
        let input = |(column, mean): (usize, &f64)| match gain.map(|gain| f64::from(gain[column])) {
            // Its column is zero whatever the input is.
            Some(0.0) => 0.0,
            Some(gain) => mean / (gain * gain),
            None => *mean,
        };
        let means: Vec<f64> = means.iter().enumerate().map(input).collect();
        let unit = means.iter().sum::<f64>() / means.len().max(1) as f64;
        let weights = means.iter().map(|mean| (mean / unit + FLOOR) as f32).collect::<Vec<f32>>();
        (unit > 0.0 && unit.is_finite() && weights.iter().all(|x| x.is_finite()))
            .then_some(ColumnWeights { weights, unit })
    }
}

/// The importance of a weight's columns.
pub(crate) struct WeightImportance {
    rows: usize,
    /// Of each part of its statistics; empty without statistics.
    parts: Vec<Option<ColumnWeights>>,
}

impl WeightImportance {
    /// A folded gain is as wide as the weight.
    pub(crate) fn new(
        weight: &Weight,
        statistics: &ImportanceMatrix,
        gain: Option<&[f32]>,
    ) -> WeightImportance {
        let found = statistics.get(weight).filter(|squares| squares.columns() == weight.columns());
        let of_part = |squares: &ColumnSquares, part| ColumnWeights::new(&squares.means(part)?, gain);
        let parts =
            |squares: &ColumnSquares| (0..squares.parts()).map(|part| of_part(squares, part)).collect();
        WeightImportance { rows: weight.rows(), parts: found.map(parts).unwrap_or_default() }
    }

    /// The weights of a row's columns; `None` without statistics.
    pub(crate) fn row(&self, row: usize) -> Option<&ColumnWeights> {
        self.parts.get(row * self.parts.len() / self.rows.max(1))?.as_ref()
    }
}

/// The importance of a packed matrix's columns.
pub(crate) struct ColumnImportance<'a> {
    graph: &'a Graph,
    packed: &'a Packed,
    columns: usize,
    of_weights: Vec<WeightImportance>,
}

impl<'a> ColumnImportance<'a> {
    pub(crate) fn new(
        graph: &'a Graph,
        packed: &'a Packed,
        statistics: &ImportanceMatrix,
        gain: Option<&[f32]>,
    ) -> ColumnImportance<'a> {
        let columns = packed.shape.last().copied().unwrap_or(0);
        // A gain cannot be folded into column blocks.
        let of_weight = |id: &WeightId| WeightImportance::new(&graph.weights[id.0], statistics, gain);
        let of_weights = packed.parts.iter().map(of_weight).collect();
        ColumnImportance { graph, packed, columns, of_weights }
    }

    /// The weights of a packed row's columns and their unit; `None` without statistics.
    pub(crate) fn row(&self, row: usize) -> Option<(&[f32], f64)> {
        let (id, row, first) = gather::source(self.graph, self.packed, row)?;
        let index = self.packed.parts.iter().position(|part| *part == id)?;
        let found = self.of_weights[index].row(row)?;
        Some((&found.weights[first..first + self.columns], found.unit))
    }
}
