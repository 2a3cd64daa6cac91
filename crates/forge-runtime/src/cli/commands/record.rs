//! `record`: records the dispatches of passes for the kernel checker, without computing anything.

use crate::cli::arguments::Record;
use crate::cli::command::{Command, Context};
use crate::cli::output::Outcome;
use crate::engine::{Engine, OutputKind, Row};
use crate::measure::recorder::Recorder;
use forge_device::device::RunAhead;
use forge_device::error::Error;
use forge_device::sampling::sampler::SamplingParams;
use serde_json::json;

impl Command for Record {
    const NAME: &'static str = "record";
    const IS_HIDDEN: bool = true;

    fn run(&self, context: &Context<'_>) -> Outcome {
        let (program, common, command) = (context.program, context.common, self);
        let sequences = sequences(command)?;
        let longest: usize = sequences.iter().map(|chunks| chunks.iter().sum()).max().unwrap_or(0);
        let setup = common.load_options();
        let loaded = setup.load(program, Some(longest + command.tokens_per_pass as usize))?;
        let recorder = Recorder::new(loaded.weights.bytes(), loaded.model.layout(), command.cores);
        let mut engine = Engine::new(loaded.model, recorder, loaded.context, setup.slots);
        let at_once = (program.info.prefill_chunk / setup.slots).max(1) as usize;
        for (sequence, chunks) in sequences.iter().enumerate() {
            for slot in 0..setup.slots {
                engine.truncate(slot, 0);
            }
            let mut done = 0;
            for (index, &count) in chunks.iter().enumerate() {
                let last = index + 1 == chunks.len();
                for from in (done..done + count).step_by(at_once) {
                    let to = (from + at_once).min(done + count);
                    let first = engine.device().passes();
                    let want_last = last && to == done + count;
                    submit(
                        &mut engine,
                        setup.slots,
                        from,
                        &command.token_ids[from..to],
                        command.stagger,
                        (command.all, want_last),
                    )?;
                    let recorder = engine.device();
                    for pass in first..recorder.passes() {
                        recorder.label(pass, &format!("sequence {sequence} rows {from}..{to}"));
                    }
                }
                done += count;
                if last {
                    // The last read of a sequence is of the logits of its last position.
                    engine
                        .device()
                        .describe_read(json!({ "logits": { "sequence": sequence, "position": done - 1 } }));
                }
            }
            if command.tokens_per_pass > 0 {
                let run_ahead = RunAhead { tokens_per_pass: command.tokens_per_pass, passes: 1 };
                // Sampled rather than greedy, so that the sampling kernel is recorded too.
                let draw = SamplingParams::default().device_sampling(0, 0);
                engine
                    .decode_multi_step(0, command.token_ids[done - 1], run_ahead)?
                    .with_sampling(draw)
                    .next(command.tokens_per_pass as usize)?;
                let pass = engine.device().passes() - 1;
                engine
                    .device()
                    .label(pass, &format!("sequence {sequence}, then {} tokens", command.tokens_per_pass));
            }
        }
        let recording = engine.into_device().finish();
        let written = std::fs::write(&command.output, recording.to_string());
        written.map_err(|error| Error::runtime(format!("{}: {error}", command.output.display())))?;
        Ok(true)
    }
}

/// Runs one pass with these tokens for every slot, slot after slot. Each slot is `stagger` tokens behind the
/// slot before, and skips the tokens of the first passes. `all`: output logits of all rows; `last`:
/// of each slot's last row.
fn submit(
    engine: &mut Engine<Recorder>,
    slots: u32,
    first: usize,
    ids: &[u32],
    stagger: u32,
    (all, last): (bool, bool),
) -> Result<(), Error> {
    let of_slot = |slot| {
        let tokens = (first as u32..).zip(ids);
        tokens.filter_map(move |(place, &id)| {
            let position = place.checked_sub(slot * stagger)?;
            Some(Row { id, slot, position })
        })
    };
    let rows: Vec<Row> = (0..slots).flat_map(of_slot).collect();
    let wanted: Vec<u32> = match (all, last) {
        (true, _) => (0..rows.len() as u32).collect(),
        (false, true) => (0..rows.len() as u32)
            .filter(|&row| rows.get(row as usize + 1).is_none_or(|next| next.slot != rows[row as usize].slot))
            .collect(),
        (false, false) => Vec::new(),
    };
    engine.run_batch(&rows, &wanted, OutputKind::Logits).map(|_| ())
}

/// The rows of each pass, for each sequence.
fn sequences(command: &Record) -> Result<Vec<Vec<usize>>, Error> {
    if command.chunks.is_empty() {
        return Ok(vec![vec![command.token_ids.len()]]);
    }
    let mut sequences = Vec::new();
    for text in &command.chunks {
        let chunks: Option<Vec<usize>> =
            text.split(',').map(|count| count.trim().parse().ok().filter(|&count| count > 0)).collect();
        let Some(chunks) = chunks else {
            return Err(Error::usage(format!("--chunks {text}: expected numbers of rows, such as 8,1")));
        };
        let sum: usize = chunks.iter().sum();
        if sum > command.token_ids.len() {
            return Err(Error::usage(format!(
                "--chunks {text}: {sum} rows exceed the {} token ids",
                command.token_ids.len()
            )));
        }
        sequences.push(chunks);
    }
    Ok(sequences)
}
