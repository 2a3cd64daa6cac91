//! Weights of which some are rounded to a number format, to measure the effect of that.

use crate::codec::row::{decode_row, encode_row, encode_row_weighted};
use crate::column_importance::WeightImportance;
use forge_ir::{Diagnostic, Format, Graph, ImportanceMatrix, WeightId, WeightRows};
use std::collections::BTreeMap;
use std::ops::Range;

/// The weights of a graph, with some matrices rounded to a format. A row that the format cannot represent
/// keeps its values.
pub struct Requantized<'a> {
    weights: &'a dyn WeightRows,
    format: Format,
    rounded: BTreeMap<WeightId, WeightImportance>,
}

impl<'a> Requantized<'a> {
    /// Rounds these matrices, for the activation statistics that they have.
    pub fn new(
        graph: &Graph,
        weights: &'a dyn WeightRows,
        statistics: &ImportanceMatrix,
        format: Format,
        rounded: impl IntoIterator<Item = WeightId>,
    ) -> Requantized<'a> {
        let importance = |id: WeightId| (id, WeightImportance::new(&graph.weights[id.0], statistics, None));
        Requantized { weights, format, rounded: rounded.into_iter().map(importance).collect() }
    }
}

impl WeightRows for Requantized<'_> {
    fn rows(&self, weight: WeightId, rows: Range<usize>, out: &mut [f32]) -> Result<(), Diagnostic> {
        self.weights.rows(weight, rows.clone(), out)?;
        let Some(importance) = self.rounded.get(&weight) else { return Ok(()) };
        let columns = out.len() / rows.len().max(1);
        let mut planes = self.format.plane_bytes(columns).map(|bytes| vec![0; bytes]);
        for (row, values) in rows.zip(out.chunks_exact_mut(columns.max(1))) {
            let [codes, scales] = &mut planes;
            let encoded = match importance.row(row) {
                Some(weights) => encode_row_weighted(self.format, values, &weights.weights, [codes, scales]),
                None => encode_row(self.format, values, [codes, scales]),
            };
            if encoded.is_ok() {
                decode_row(self.format, [codes, scales], values);
            }
        }
        Ok(())
    }
}
