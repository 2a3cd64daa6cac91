//! `record`: writes down what a device is told to do, computing nothing.

use super::super::engine::{Engine, Want};
use super::super::failure::Failure;
use super::super::model::Model;
use super::super::recorder::Recorder;
use super::Program;
use super::arguments::{Common, Record};
use super::load;
use super::output::Outcome;
use serde_json::json;

/// Feeds each sequence to slot 0 from its start, and asks for the logits of its last position.
pub(super) fn run<M: Model>(program: &Program, common: &Common, command: &Record) -> Outcome {
    let sequences = sequences(command)?;
    let longest = sequences.iter().map(|chunks| chunks.iter().sum()).max().unwrap_or(0);
    let loaded = load::load::<M>(program, common, Some(longest))?;
    let recorder = Recorder::new(loaded.weights.bytes(), loaded.model.layout());
    let mut engine = Engine::new(loaded.model, recorder, loaded.context, common.slots);
    for (sequence, chunks) in sequences.iter().enumerate() {
        engine.truncate(0, 0);
        let mut done = 0;
        for (index, &count) in chunks.iter().enumerate() {
            let want = match (command.all, index + 1 == chunks.len()) {
                (true, _) => Want::AllLogits,
                (false, true) => Want::Logits,
                (false, false) => Want::Nothing,
            };
            let first = engine.device().passes();
            engine.feed(0, &command.ids[done..done + count], want)?;
            let recorder = engine.device();
            let mut from = done;
            for pass in first..recorder.passes() {
                let to = (from + M::INFO.chunk as usize).min(done + count);
                recorder.label(pass, &format!("sequence {sequence} rows {from}..{to}"));
                from = to;
            }
            done += count;
            if index + 1 == chunks.len() {
                // What is read last ends with the logits of the last position.
                recorder.explain_read(json!({ "logits": { "sequence": sequence, "position": done - 1 } }));
            }
        }
    }
    let recording = engine.into_device().finish();
    let written = std::fs::write(&command.output, recording.to_string());
    written.map_err(|error| Failure::wrong(format!("{}: {error}", command.output.display())))?;
    Ok(true)
}

/// The rows of each pass of each sequence.
fn sequences(command: &Record) -> Result<Vec<Vec<usize>>, Failure> {
    if command.chunks.is_empty() {
        return Ok(vec![vec![command.ids.len()]]);
    }
    let mut sequences = Vec::new();
    for text in &command.chunks {
        let chunks: Option<Vec<usize>> =
            text.split(',').map(|count| count.trim().parse().ok().filter(|&count| count > 0)).collect();
        let Some(chunks) = chunks else {
            return Err(Failure::misuse(format!("--chunks {text}: expected numbers of rows, such as 8,1")));
        };
        let sum: usize = chunks.iter().sum();
        if sum > command.ids.len() {
            return Err(Failure::misuse(format!("--chunks {text} takes {sum} of {} ids", command.ids.len())));
        }
        sequences.push(chunks);
    }
    Ok(sequences)
}
