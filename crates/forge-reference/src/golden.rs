//! Reference logits that travel with a compiled model, so that it can be checked where it runs.

use crate::rows::{self, Row};
use crate::run::run;
use forge_ir::{Diagnostic, Graph, Numbers};
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

/// Multiplications that the sequences of a model may take altogether: some ten seconds on two cores.
const BUDGET: u64 = 60_000_000_000;

/// Texts that exercise every regime of rows: one row; a small batch and a decode step; a prefill that is continued by a
/// small batch and a decode step; a longer one, whose last steps attend to more positions than one split takes.
///
/// The tokens are random but always the same. A text takes a multiplication for each of the model's `parameters` and
/// each of its tokens; texts that would exceed a budget or `context` are left out or replaced by shorter ones, down to one
/// row, and four and one.
pub fn sequences(vocabulary: usize, context: usize, parameters: u64) -> Vec<Sequence> {
    let mut left = BUDGET / parameters.max(1);
    let mut random = Random(vocabulary as u64);
    let mut chosen = Vec::new();
    // From each line the first that can be paid for; of the first two lines the last in any case.
    let lines: [(&[&[usize]], bool); 4] = [
        (&[&[1]], true),
        (&[&[8, 1], &[4, 1]], true),
        (&[&[33, 5, 1], &[17, 2, 1]], false),
        (&[&[70, 2, 1]], false),
    ];
    for (line, needed) in lines {
        let rows = |chunks: &[usize]| chunks.iter().sum::<usize>();
        let fits = line.iter().find(|chunks| rows(chunks) as u64 <= left && rows(chunks) <= context);
        let least = line.last().filter(|chunks| needed && rows(chunks) <= context);
        let Some(chunks) = fits.or(least) else { continue };
        left = left.saturating_sub(rows(chunks) as u64);
        let ids = (0..rows(chunks)).map(|_| random.below(vocabulary)).collect();
        chosen.push(Sequence { ids, chunks: chunks.to_vec() });
    }
    chosen
}

/// Evaluates all texts at once, each in a slot of its own, so that every weight is read once.
///
/// # Errors
/// As [`crate::evaluate`].
pub fn golden(
    graph: &Graph,
    numbers: &dyn Numbers,
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
    let logits = run(graph, numbers, &all, &last)?;
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
