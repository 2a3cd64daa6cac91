//! Reference evaluation of a graph.
//!
//! Nodes are evaluated one by one as defined in `forge-ir`, without fusion or kernels. Values are f32; sums
//! are f64, so that a result is the correctly rounded one and the order of sums does not matter. Weights are
//! read a few rows at a time through [`forge_ir::WeightRows`], so memory stays small for any model size, and
//! the same code evaluates the checkpoint and the packed weight file.
//!
//! All other components are tested against this crate; this crate is tested against logits of transformers.

mod attention;
mod calibrate;
mod divergence;
mod eval;
mod experts;
mod golden;
mod kv_rounding;
mod linear;
mod linear_f32;
mod mla;
mod parallel;
mod recurrent;
mod rows;

pub use crate::calibrate::calibrate;
pub use crate::divergence::kl_divergence;
pub use crate::golden::{Golden, Sequence, golden, quick_sequences, sequences};

use crate::linear::Precision;
use crate::rows::Row;
use forge_ir::{Diagnostic, Format, Graph, WeightRows};

/// Positions whose logits are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// Every position.
    All,
    /// The last position.
    Last,
}

/// Logits of a sequence: one vector per requested position. The KV cache is f32.
///
/// # Errors
/// If a token is outside the vocabulary, the sequence is empty, or a weight cannot be read.
pub fn evaluate(
    graph: &Graph,
    weights: &dyn WeightRows,
    ids: &[u32],
    want: Positions,
) -> Result<Vec<Vec<f32>>, Diagnostic> {
    let positions = match want {
        Positions::All => 0..ids.len(),
        Positions::Last => ids.len().saturating_sub(1)..ids.len(),
    };
    let rows: Vec<Row> = crate::rows::of_slot(0, ids).collect();
    let cache = (Format::F32, Precision::F64);
    crate::eval::run(graph, weights, cache, &rows, &positions.collect::<Vec<_>>())
}

/// As [`evaluate`] at every position, with matrices multiplied in f32: several times as fast, for comparisons
/// over many tokens.
///
/// # Errors
/// As [`evaluate`].
pub fn evaluate_f32(
    graph: &Graph,
    weights: &dyn WeightRows,
    ids: &[u32],
) -> Result<Vec<Vec<f32>>, Diagnostic> {
    let rows: Vec<Row> = crate::rows::of_slot(0, ids).collect();
    let positions: Vec<usize> = (0..ids.len()).collect();
    crate::eval::run(graph, weights, (Format::F32, Precision::F32), &rows, &positions)
}

/// The `count` tokens that follow a sequence with greedy sampling; ties go to the lower id.
///
/// # Errors
/// As [`evaluate`].
pub fn greedy(
    graph: &Graph,
    weights: &dyn WeightRows,
    ids: &[u32],
    count: usize,
) -> Result<Vec<u32>, Diagnostic> {
    let mut text = ids.to_vec();
    for _ in 0..count {
        let logits = evaluate(graph, weights, &text, Positions::Last)?;
        text.push(logits.first().map_or(0, |logits| argmax(logits)));
    }
    Ok(text.split_off(ids.len()))
}

fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = id;
        }
    }
    best as u32
}
