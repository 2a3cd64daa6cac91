//! The importance of a packed matrix's columns, row by row: the rows of a packed matrix come from weights, or
//! from experts of these, with inputs of their own.

use crate::gather;
use forge_ir::{Graph, ImportanceMatrix, Packed};

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

/// The importance of a packed matrix's columns.
pub(crate) struct ColumnImportance<'a> {
    graph: &'a Graph,
    packed: &'a Packed,
    columns: usize,
    /// For each weight of the packed matrix, and each part of its statistics.
    of_parts: Vec<Vec<Option<ColumnWeights>>>,
}

impl<'a> ColumnImportance<'a> {
    pub(crate) fn new(
        graph: &'a Graph,
        packed: &'a Packed,
        statistics: &ImportanceMatrix,
        gain: Option<&[f32]>,
    ) -> ColumnImportance<'a> {
        let columns = packed.shape.last().copied().unwrap_or(0);
        let of_weight = |id: &forge_ir::WeightId| {
            let weight = &graph.weights[id.0];
            let found = statistics.get(weight).filter(|squares| squares.columns() == weight.columns());
            let Some(squares) = found else { return Vec::new() };
            // Without column blocks, a gain is as wide as the weight.
            let of_part = |part| ColumnWeights::new(&squares.means(part)?, gain);
            (0..squares.parts()).map(of_part).collect()
        };
        let of_parts = packed.parts.iter().map(of_weight).collect();
        ColumnImportance { graph, packed, columns, of_parts }
    }

    /// The weights of a packed row's columns and their unit; `None` without statistics.
    pub(crate) fn row(&self, row: usize) -> Option<(&[f32], f64)> {
        let (id, row, first) = gather::source(self.graph, self.packed, row)?;
        let index = self.packed.parts.iter().position(|part| *part == id)?;
        let parts = &self.of_parts[index];
        let rows = self.graph.weights[id.0].rows();
        let part = row * parts.len() / rows.max(1);
        let found = parts.get(part)?.as_ref()?;
        Some((&found.weights[first..first + self.columns], found.unit))
    }
}
