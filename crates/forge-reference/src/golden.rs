//! Reference logits that travel with a compiled model, so that it can be checked where it runs.

use crate::eval::run;
use crate::rows;
use crate::rows::Row;
use forge_ir::{Diagnostic, Format, Graph, WeightRows};
use serde::Serialize;

/// A text, and how many of its tokens each pass is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// The tokens.
    pub ids: Vec<u32>,
    /// Rows of each pass; their sum is the number of tokens.
    pub chunks: Vec<usize>,
}

/// A text and the logits of its last position.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Golden {
    /// The tokens.
    pub ids: Vec<u32>,
    /// Rows of each pass.
    pub chunks: Vec<usize>,
    /// One for each entry of the vocabulary.
    pub logits: Vec<f32>,
    /// Their standard deviation, in which distances are told.
    pub deviation: f64,
}

/// Multiplications that the texts of a model may take altogether.
const BUDGET: u64 = 60_000_000_000;

/// What the texts are to exercise, each with a shorter stand-in: one row; a small batch and a decode step; a prefill
/// continued by a small batch and a decode step; a longer one, whose last steps attend to more than one split takes.
const REGIMES: [[&[usize]; 2]; 4] =
    [[&[1], &[1]], [&[8, 1], &[4, 1]], [&[33, 5, 1], &[17, 2, 1]], [&[70, 2, 1], &[70, 2, 1]]];

/// Texts that exercise every regime of rows.
///
/// The tokens are random but always the same. A text takes a multiplication for each of the model's `parameters` and
/// each of its tokens. What exceeds 60 thousand million of them altogether is shortened or left out, in that order:
/// a thousand million parameters are given 60 tokens. Texts that do not fit `context` are left out too. The first two
/// regimes are always there as far as the context allows.
pub fn sequences(vocabulary: usize, context: usize, parameters: u64) -> Vec<Sequence> {
    let mut left = BUDGET / parameters.max(1);
    let mut random = Random(vocabulary as u64);
    let mut chosen = Vec::new();
    for (index, regime) in REGIMES.iter().enumerate() {
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

/// Evaluates all texts at once, with keys and values cached as `cache`, each in a slot of its own, so that every weight is
/// read once.
///
/// # Errors
/// As [`crate::evaluate`], and where a logit is no number or infinite: nothing can be compared with it.
pub fn golden(
    graph: &Graph,
    numbers: &dyn WeightRows,
    cache: Format,
    sequences: &[Sequence],
) -> Result<Vec<Golden>, Diagnostic> {
    let mut all: Vec<Row> = Vec::new();
    let mut last = Vec::new();
    for (slot, sequence) in sequences.iter().enumerate() {
        if sequence.ids.is_empty() {
            return Err(Diagnostic::new("F0402", "a text of no tokens has no logits"));
        }
        all.extend(rows::of_slot(slot, &sequence.ids));
        last.push(all.len() - 1);
    }
    let logits = run(graph, numbers, cache, &all, &last)?;
    for (sequence, logits) in sequences.iter().zip(&logits) {
        let broken = logits.iter().filter(|logit| !logit.is_finite()).count();
        if broken > 0 {
            let tokens = match sequence.ids.len() {
                1 => "one token".to_owned(),
                count => format!("{count} tokens"),
            };
            let message = format!(
                "the model computes no numbers for a text of {tokens}: {broken} of its {} logits are infinite or not a number",
                logits.len()
            );
            let why = "weights that are far too large make it so, or a number of config.json that is out of its range";
            return Err(Diagnostic::new("F0403", message)
                .note(why)
                .note("fetch the checkpoint again, or correct that key"));
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

/// The generator splitmix64 of Steele, Lea and Flood.
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
