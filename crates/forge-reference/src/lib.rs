//! What a graph means, executable.
//!
//! A graph is evaluated node by node, as `forge-ir` defines the nodes: no fusion, no kernels, no cleverness. Values are
//! f32; every sum is carried in f64, so that a result is the rounded exact one and the order of sums does not matter.
//! Weights come a few rows at a time from anything that gives [`forge_ir::Numbers`], so memory stays small however
//! large the model is, and the same evaluation runs over the checkpoint and over the weight file made from it.
//!
//! Everything else is judged by this crate; this crate is judged by logits of the models' own authors.

mod attention;
mod eval;
mod experts;
mod golden;
mod kv_rounding;
mod linear;
mod mla;
mod parallel;
mod recurrent;
mod rows;

pub use crate::golden::{Golden, Sequence, golden, sequences};

use crate::rows::Row;
use forge_ir::{Diagnostic, Format, Graph, WeightRows};

/// Of which positions the logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Of every position.
    All,
    /// Of the last position.
    Last,
}

/// The logits after a text: one vector for each position wanted. Keys and values are kept as they are.
///
/// # Errors
/// When a token is outside the vocabulary, the text is empty, or a weight cannot be read.
pub fn evaluate(
    graph: &Graph,
    numbers: &dyn WeightRows,
    ids: &[u32],
    want: Want,
) -> Result<Vec<Vec<f32>>, Diagnostic> {
    let wanted = match want {
        Want::All => 0..ids.len(),
        Want::Last => ids.len().saturating_sub(1)..ids.len(),
    };
    let rows: Vec<Row> = crate::rows::of_slot(0, ids).collect();
    crate::eval::run(graph, numbers, Format::F32, &rows, &wanted.collect::<Vec<_>>())
}

/// The `count` tokens that follow a text when the likeliest is taken each time; of equals the lowest.
///
/// # Errors
/// As [`evaluate`].
pub fn greedy(
    graph: &Graph,
    numbers: &dyn WeightRows,
    ids: &[u32],
    count: usize,
) -> Result<Vec<u32>, Diagnostic> {
    let mut text = ids.to_vec();
    for _ in 0..count {
        let logits = evaluate(graph, numbers, &text, Want::Last)?;
        text.push(logits.first().map_or(0, |logits| likeliest(logits)));
    }
    Ok(text.split_off(ids.len()))
}

fn likeliest(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = id;
        }
    }
    best as u32
}
