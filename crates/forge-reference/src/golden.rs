//! Reference logits that are shipped with a compiled model, so that it can be verified on its device.

use crate::eval::run;
use crate::linear::Precision;
use crate::rows;
use crate::rows::Row;
use forge_ir::{Diagnostic, Format, Graph, WeightRows};
use serde::Serialize;

/// A test sequence and its division into passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Rows of each pass; they add up to the number of tokens.
    pub chunks: Vec<usize>,
}

/// A test sequence with the logits of its last position.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Golden {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Rows of each pass.
    pub chunks: Vec<usize>,
    /// One per vocabulary entry.
    pub logits: Vec<f32>,
    /// Their standard deviation, the unit of tolerances.
    pub deviation: f64,
}

/// Maximum number of multiplications for all sequences of a model.
const BUDGET: u64 = 60_000_000_000;

/// Passes of each sequence, and of a shorter alternative: one row; a small batch and decode; prefill, a small
/// batch and decode; a longer sequence whose last steps attend to more than one KV split.
const CHUNK_LENGTHS: [[&[usize]; 2]; 4] =
    [[&[1], &[1]], [&[8, 1], &[4, 1]], [&[33, 5, 1], &[17, 2, 1]], [&[70, 2, 1], &[70, 2, 1]]];

/// Test sequences that cover decode, small batches and prefill.
///
/// The tokens are random but reproducible. A sequence takes about one multiplication per parameter and token.
/// Sequences that exceed 60 G multiplications altogether are shortened or dropped, in that order: a model of
/// 1 G parameters gets 60 tokens. Sequences that exceed `context` are dropped too. The first two are always
/// present if the context allows.
pub fn sequences(vocabulary: usize, context: usize, parameters: u64) -> Vec<Sequence> {
    let mut left = BUDGET / parameters.max(1);
    let mut random = Random(vocabulary as u64);
    let mut chosen = Vec::new();
    for (index, regime) in CHUNK_LENGTHS.iter().enumerate() {
        let rows = |chunks: &[usize]| chunks.iter().sum::<usize>();
        let fits = |chunks: &&&[usize]| rows(chunks) <= context;
        let paid = regime.iter().filter(fits).find(|chunks| rows(chunks) as u64 <= left);
        let needed = if index < 2 { regime.iter().rfind(fits) } else { None };
        if let Some(chunks) = paid.or(needed) {
            left = left.saturating_sub(rows(chunks) as u64);
            let ids = (0..rows(chunks)).map(|_| random.below(vocabulary)).collect();
            chosen.push(Sequence { ids, chunks: chunks.to_vec() });
        }
    }
    chosen
}

/// The shortest test sequences, of decode and of a small batch: for a quick check, and for models of any size.
pub fn quick_sequences(vocabulary: usize, context: usize) -> Vec<Sequence> {
    sequences(vocabulary, context, u64::MAX)
}

/// Evaluates all sequences at once, each in its own slot, so that every weight is read once. `cache` is the
/// KV cache format.
///
/// # Errors
/// As [`crate::evaluate`], and if a logit is infinite or NaN.
pub fn golden(
    graph: &Graph,
    weights: &dyn WeightRows,
    cache: Format,
    sequences: &[Sequence],
) -> Result<Vec<Golden>, Diagnostic> {
    let mut all: Vec<Row> = Vec::new();
    let mut last = Vec::new();
    for (slot, sequence) in sequences.iter().enumerate() {
        if sequence.ids.is_empty() {
            return Err(Diagnostic::new("F0402", "cannot evaluate an empty sequence"));
        }
        all.extend(rows::of_slot(slot, &sequence.ids));
        last.push(all.len() - 1);
    }
    let logits = run(graph, weights, (cache, Precision::F64), &all, &last)?;
    for (sequence, logits) in sequences.iter().zip(&logits) {
        let non_finite = logits.iter().filter(|logit| !logit.is_finite()).count();
        if non_finite > 0 {
            let tokens = match sequence.ids.len() {
                1 => "one token".to_owned(),
                count => format!("{count} tokens"),
            };
            let message = format!(
                "the model computes NaN or infinite logits for a sequence of {tokens}: {non_finite} of {} logits",
                logits.len()
            );
            let why = "weights are too large, or a value of config.json is out of range";
            return Err(Diagnostic::new("F0403", message)
                .note(why)
                .note("download the checkpoint again, or fix that key"));
        }
    }
    let golden = |(sequence, logits): (&Sequence, Vec<f32>)| Golden {
        ids: sequence.ids.clone(),
        chunks: sequence.chunks.clone(),
        deviation: deviation(&logits),
        logits,
    };
    Ok(sequences.iter().zip(logits).map(golden).collect())
}

/// The standard deviation.
fn deviation(numbers: &[f32]) -> f64 {
    let count = numbers.len().max(1) as f64;
    let mean = numbers.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
    (numbers.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / count).sqrt()
}

/// The splitmix64 generator of Steele, Lea and Flood.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> u32 {
        (self.next() % bound.max(1) as u64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_sequences_are_the_shortest_of_decode_and_a_small_batch() {
        let chunks =
            |sequences: &[Sequence]| sequences.iter().map(|it| it.chunks.clone()).collect::<Vec<_>>();
        let quick = quick_sequences(300, 4096);
        assert_eq!(chunks(&quick), [vec![1], vec![4, 1]]);
        assert_eq!(chunks(&quick_sequences(300, 3)), [vec![1]], "a context of 3");
        let full = sequences(300, 4096, 1_000_000);
        assert_eq!(full.iter().map(|it| it.ids.len()).sum::<usize>(), 122);
    }
}
