//! Reference logits, computed by the compiler from the program's weights.
//!
//! `golden.json` has token sequences, the chunks to feed them in (`chunks`: rows of each pass), and the
//! expected logits of the last position. Differences are in standard deviations of the reference logits.

use crate::engine::engine::Engine;
use crate::engine::output::Output;
use forge_device::device::Device;
use forge_device::error::Error;
use forge_device::sampling::argmax::argmax;
use serde::Deserialize;
use std::path::Path;

/// The content of `golden.json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Golden {
    /// The name of the compiled model.
    pub model: String,
    /// The tolerance for logits in f32 activations.
    pub tolerance: Tolerance,
    /// Bounds on the error of int8 activations; empty if this model's CPU kernels do not use them.
    #[serde(default)]
    pub int8_activations: Vec<ActivationBound>,
    /// The reference sequences.
    pub sequences: Vec<Sequence>,
}

/// A bound on the logit error of int8 activations, relative to f32 activations.
#[derive(Clone, Debug, Deserialize)]
pub struct ActivationBound {
    /// The share of positions that the bound applies to, smallest error first: 0.5 is the median, 1 is all.
    pub share: f64,
    /// The largest allowed root mean square of a position's logit differences, in standard deviations of its logits; with a
    /// share of 1 the largest allowed difference of any logit.
    pub bound: f64,
    /// The reason for this value.
    pub reason: String,
}

/// A tolerance and its reason.
#[derive(Clone, Debug, Deserialize)]
pub struct Tolerance {
    /// The largest allowed difference, in standard deviations.
    pub bound: f64,
    /// The reason for this value.
    pub reason: String,
}

/// A token sequence and the logits after its last token.
#[derive(Clone, Debug, Deserialize)]
pub struct Sequence {
    /// The token ids.
    pub ids: Vec<u32>,
    /// Rows of each pass; they sum to the number of token ids.
    pub chunks: Vec<usize>,
    /// Logits after the last token.
    pub logits: Vec<f32>,
    /// The standard deviation of `logits`.
    pub deviation: f64,
}

/// The difference between a device's logits and the reference.
#[derive(Clone, Copy, Debug)]
pub struct Distance {
    /// The largest difference, in standard deviations.
    pub worst: f64,
    /// The token id of the largest difference.
    pub at: usize,
    /// Whether the argmax equals the reference's.
    pub same_argmax: bool,
}

impl Golden {
    /// Reads the file at `path`.
    pub fn read(path: &Path) -> Result<Golden, Error> {
        let error_at = |what: String| Error::runtime(format!("{}: {what}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| {
            error_at(format!("cannot be read: {error}; a model compiled with --certify none has none"))
        })?;
        let golden: Golden = serde_json::from_str(&text)
            .map_err(|error| error_at(format!("not a valid golden.json: {error}")))?;
        for (index, sequence) in golden.sequences.iter().enumerate() {
            if sequence.chunks.iter().sum::<usize>() != sequence.ids.len() || sequence.ids.is_empty() {
                return Err(error_at(format!(
                    "sequence {index}: chunks do not sum to the number of token ids"
                )));
            }
        }
        Ok(golden)
    }

    /// The length of the longest sequence in tokens.
    pub fn max_length(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.ids.len()).max().unwrap_or(0)
    }
}

impl Sequence {
    /// Runs the sequence in slot 0 from position 0 and compares the logits.
    pub fn measure<D: Device>(&self, engine: &mut Engine<D>) -> Result<Distance, Error> {
        engine.truncate(0, 0);
        let mut ids = &self.ids[..];
        let mut logits = Vec::new();
        for &count in &self.chunks {
            let (chunk, rest) = ids.split_at(count);
            let want = if rest.is_empty() { Output::Logits } else { Output::Nothing };
            logits = engine.run_tokens(0, chunk, want)?.logits;
            ids = rest;
        }
        self.distance(logits.last().map_or(&[], Vec::as_slice))
    }

    /// Compares `logits` with the reference.
    pub fn distance(&self, logits: &[f32]) -> Result<Distance, Error> {
        if logits.len() != self.logits.len() {
            return Err(Error::runtime(format!(
                "the reference has {} logits, the program {}",
                self.logits.len(),
                logits.len()
            )));
        }
        let mut distance =
            Distance { worst: 0.0, at: 0, same_argmax: argmax(logits) == argmax(&self.logits) };
        for (at, (got, wanted)) in logits.iter().zip(&self.logits).enumerate() {
            let difference = f64::from(got - wanted).abs() / self.deviation;
            // A NaN counts as an infinite difference.
            let difference = if difference.is_nan() { f64::INFINITY } else { difference };
            if difference > distance.worst {
                (distance.worst, distance.at) = (difference, at);
            }
        }
        Ok(distance)
    }
}
