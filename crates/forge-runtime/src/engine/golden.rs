//! Reference logits, computed by the compiler from the very weights that the program reads.
//!
//! `golden.json` holds sequences of ids, how to feed them (`chunks`: rows of each pass), and the logits that the
//! last position must have. Distances are in standard deviations of the reference's logits.

use crate::device::Device;
use crate::engine::{Engine, Output};
use crate::error::Error;
use serde::Deserialize;
use std::path::Path;

/// The file.
#[derive(Clone, Debug, Deserialize)]
pub struct Golden {
    /// The model that it was computed for.
    pub model: String,
    /// How far logits may lie from the reference.
    pub tolerance: Tolerance,
    /// How far int8 activations may move logits, where the CPU device has such for this model's weights; else empty.
    #[serde(default)]
    pub int8_activations: Vec<ActivationBound>,
    /// What was computed.
    pub sequences: Vec<Sequence>,
}

/// A bound on how far int8 activations move the logits of a share of the positions, from those of f32 activations.
#[derive(Clone, Debug, Deserialize)]
pub struct ActivationBound {
    /// The share of positions, the nearest first, that the bound is for: 0.5 for the median, 1 for all.
    pub share: f64,
    /// Largest difference allowed at any of them, in standard deviations of the position's logits.
    pub bound: f64,
    /// Why this much.
    pub reason: String,
}

/// A bound and where it comes from.
#[derive(Clone, Debug, Deserialize)]
pub struct Tolerance {
    /// Largest difference allowed, in standard deviations.
    pub bound: f64,
    /// Why this much.
    pub reason: String,
}

/// Ids and the logits after the last of them.
#[derive(Clone, Debug, Deserialize)]
pub struct Sequence {
    /// What is fed.
    pub ids: Vec<u32>,
    /// Rows of each pass; their sum is the number of ids.
    pub chunks: Vec<usize>,
    /// After the last id.
    pub logits: Vec<f32>,
    /// The standard deviation of `logits`.
    pub deviation: f64,
}

/// How far a device was from the reference.
#[derive(Clone, Copy, Debug)]
pub struct Distance {
    /// Largest difference, in standard deviations.
    pub worst: f64,
    /// The id that has it.
    pub at: usize,
    /// Whether the largest logit is the reference's.
    pub same_next: bool,
}

impl Golden {
    /// Reads the file at `path`.
    pub fn read(path: &Path) -> Result<Golden, Error> {
        let trouble = |what: String| Error::runtime(format!("{}: {what}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| {
            trouble(format!("cannot be read: {error}; a model compiled with --no-reference-logits has none"))
        })?;
        let golden: Golden = serde_json::from_str(&text)
            .map_err(|error| trouble(format!("is not what forge writes: {error}")))?;
        for (index, sequence) in golden.sequences.iter().enumerate() {
            if sequence.chunks.iter().sum::<usize>() != sequence.ids.len() || sequence.ids.is_empty() {
                return Err(trouble(format!("sequence {index} has chunks that are not its ids")));
            }
        }
        Ok(golden)
    }

    /// The most positions that a sequence needs.
    pub fn longest(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.ids.len()).max().unwrap_or(0)
    }
}

impl Sequence {
    /// Feeds the ids to slot 0, from its start, and compares what comes.
    pub fn measure<D: Device>(&self, engine: &mut Engine<D>) -> Result<Distance, Error> {
        engine.truncate(0, 0);
        let mut ids = &self.ids[..];
        let mut logits = Vec::new();
        for &count in &self.chunks {
            let (chunk, rest) = ids.split_at(count);
            let want = if rest.is_empty() { Output::Logits } else { Output::Nothing };
            logits = engine.feed(0, chunk, want)?.logits;
            ids = rest;
        }
        self.distance(logits.last().map_or(&[], Vec::as_slice))
    }

    /// Compares `logits` with the reference.
    pub fn distance(&self, logits: &[f32]) -> Result<Distance, Error> {
        if logits.len() != self.logits.len() {
            return Err(Error::runtime(format!(
                "the reference has {} logits and the program {}",
                self.logits.len(),
                logits.len()
            )));
        }
        let mut distance =
            Distance { worst: 0.0, at: 0, same_next: largest(logits) == largest(&self.logits) };
        for (at, (got, wanted)) in logits.iter().zip(&self.logits).enumerate() {
            let difference = f64::from(got - wanted).abs() / self.deviation;
            // What is not a number is farther than anything.
            let difference = if difference.is_nan() { f64::INFINITY } else { difference };
            if difference > distance.worst {
                (distance.worst, distance.at) = (difference, at);
            }
        }
        Ok(distance)
    }
}

/// The index of the largest number, the lowest of equals; 0 if none is a number.
pub fn largest(logits: &[f32]) -> usize {
    let mut best = None;
    for (index, logit) in logits.iter().enumerate() {
        if !logit.is_nan() && best.is_none_or(|(_, most)| logit > most) {
            best = Some((index, logit));
        }
    }
    best.map_or(0, |(index, _)| index)
}
