//! Activation statistics of a model's matrices over a calibration text.

use crate::eval::collect;
use crate::rows;
use crate::rows::Row;
use forge_ir::{Diagnostic, Graph, ImportanceMatrix, WeightRows};

/// Tokens evaluated at once. All weights are read once for each batch.
const BATCH: usize = 1024;

/// The activation statistics over some sequences, each evaluated from position 0 on. `progress` is called with
/// the number of tokens evaluated so far.
///
/// Sums of squares are f64 and added in the order of the sequences, so the result depends on nothing else.
///
/// # Errors
/// If a token is outside the vocabulary, or a weight cannot be read.
pub fn calibrate(
    graph: &Graph,
    weights: &dyn WeightRows,
    sequences: &[Vec<u32>],
    progress: &mut dyn FnMut(usize),
) -> Result<ImportanceMatrix, Diagnostic> {
    let mut statistics = ImportanceMatrix::default();
    let (mut batch, mut slots, mut done): (Vec<Row>, _, _) = (Vec::new(), 0, 0);
    for (index, sequence) in sequences.iter().enumerate() {
        batch.extend(rows::of_slot(slots, sequence));
        slots += 1;
        let is_full = sequences.get(index + 1).is_none_or(|next| batch.len() + next.len() > BATCH);
        if is_full && !batch.is_empty() {
            collect(graph, weights, &batch, &mut statistics)?;
            done += batch.len();
            progress(done);
            batch.clear();
            slots = 0;
        }
    }
    Ok(statistics)
}
