//! The time of each dispatch in a pass. Captured passes are replayed with each dispatch timed in isolation,
//! and again as a whole. Isolated dispatches do not overlap, so their sum may exceed the time of the pass.

pub(crate) mod table;
pub(crate) mod timings;
pub(crate) mod trace;

pub use crate::measure::profile::table::{PeakBandwidth, json, table};
pub use crate::measure::profile::timings::{Profile, Step};
pub use crate::measure::profile::trace::trace;

use crate::engine::{Engine, Output, OutputKind, Row};
use crate::measure::capture::{CapturedPass, CapturingDevice};
use forge_device::device::{Binding, Buffer, Device};
use forge_device::error::Error;
use forge_device::weights::WeightFile;
use std::time::Instant;

/// Captured passes to be profiled.
pub struct ProfiledPass {
    /// Description for output.
    pub name: String,
    /// Number of sequences that the rows of a pass belong to.
    pub sequences: u32,
    /// The passes, each with the positions that its last row attends to.
    pub passes: Vec<(CapturedPass, u32)>,
}

impl ProfiledPass {
    /// The decode pass at the end of a context of `length` tokens.
    pub fn decode<D: Device>(
        engine: &mut Engine<CapturingDevice<D>>,
        length: u32,
    ) -> Result<ProfiledPass, Error> {
        engine.truncate(0, 0);
        let ids = engine.info().test_tokens(length);
        let (last, before) =
            ids.split_last().ok_or_else(|| Error::usage("the context is empty: use --ctx-size 1 or more"))?;
        if !before.is_empty() {
            engine.run_tokens(0, before, Output::Nothing)?;
        }
        let passes = captured(engine, &[*last], Output::Greedy)?;
        Ok(ProfiledPass { name: format!("decode at {length} tokens"), sequences: 1, passes })
    }

    /// The passes that decode a token of each of `sequences` slots, at the end of a context of `length` tokens.
    pub fn decode_batch<D: Device>(
        engine: &mut Engine<CapturingDevice<D>>,
        length: u32,
        sequences: u32,
    ) -> Result<ProfiledPass, Error> {
        let ids = engine.info().test_tokens(length);
        let (last, before) =
            ids.split_last().ok_or_else(|| Error::usage("the context is empty: use --ctx-size 1 or more"))?;
        for slot in 0..sequences {
            engine.truncate(slot, 0);
            if !before.is_empty() {
                engine.run_tokens(slot, before, Output::Nothing)?;
            }
        }
        let rows: Vec<Row> =
            (0..sequences).map(|slot| Row { id: *last, slot, position: length - 1 }).collect();
        engine.device().take();
        engine.run_batch(&rows, &(0..sequences).collect::<Vec<_>>(), OutputKind::Greedy)?;
        let passes = engine.device().take().into_iter().map(|pass| (pass, length)).collect();
        Ok(ProfiledPass {
            name: format!("decode of {sequences} sequences at {length} tokens"),
            sequences,
            passes,
        })
    }

    /// The prefill passes of a prompt of `count` tokens.
    pub fn prefill<D: Device>(
        engine: &mut Engine<CapturingDevice<D>>,
        count: u32,
    ) -> Result<ProfiledPass, Error> {
        engine.truncate(0, 0);
        let ids = engine.info().test_tokens(count);
        let mut passes = Vec::new();
        let mut chunks = ids.chunks(engine.info().prefill_chunk as usize).peekable();
        while let Some(chunk) = chunks.next() {
            let want = if chunks.peek().is_some() { Output::Nothing } else { Output::Greedy };
            passes.extend(captured(engine, chunk, want)?);
        }
        Ok(ProfiledPass { name: format!("prefill of {count} tokens"), sequences: 1, passes })
    }

    /// Measures `rounds` rounds after a warm-up round. `goes_on` gets the number of rounds done and may stop
    /// early. `None` if no round was measured.
    pub fn measure(
        &self,
        device: &mut dyn Device,
        weights: &WeightFile,
        rounds: usize,
        goes_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Option<Profile>, String> {
        let (mut isolated, mut wholes, mut begins) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=rounds {
            if !goes_on(round) {
                break;
            }
            let (mut times, mut whole) = (Vec::new(), 0.0);
            for (pass, _) in &self.passes {
                pass.write_inputs(device);
                let of_pass = device.time_parts(pass.schedule, pass.dispatches.len(), &mut |index, to| {
                    pass.dispatches[index].encode(to)
                })?;
                let start = Instant::now();
                device.run(pass.schedule, &mut |to| pass.encode(to))?;
                whole += start.elapsed().as_secs_f64();
                // Each pass has its own clock; passes are concatenated.
                let first = of_pass.first().map_or(0.0, |time| time[0]);
                let before = times.last().map_or(0.0, |time: &[f64; 2]| time[1]);
                times.extend(of_pass.iter().map(|time| time.map(|at| at - first + before)));
            }
            if round > 0 {
                isolated.push(times.iter().map(|[begin, end]| end - begin).collect::<Vec<f64>>());
                wholes.push(whole);
                begins = times.iter().map(|time| time[0]).collect();
            }
        }
        if wholes.is_empty() {
            return Ok(None);
        }
        let mut steps = Vec::new();
        for (pass, length) in &self.passes {
            let mut layer = None;
            for note in &pass.dispatches {
                layer = layer_of(&note.bindings, weights, layer);
                let seconds = median(isolated.iter().map(|round| round[steps.len()]).collect());
                let done = note.kernel.cost.of(note.rows(), self.sequences, *length);
                steps.push(Step {
                    kernel: note.kernel.name,
                    layer,
                    cost: done,
                    seconds,
                    begin: begins[steps.len()],
                });
            }
        }
        let (name, rounds, whole) = (self.name.clone(), wholes.len(), median(wholes));
        Ok(Some(Profile { name, repetitions: rounds, steps, pass_seconds: whole }))
    }
}

/// Runs tokens and returns the captured passes, each with the positions that its last row attends to.
fn captured<D: Device>(
    engine: &mut Engine<CapturingDevice<D>>,
    ids: &[u32],
    want: Output,
) -> Result<Vec<(CapturedPass, u32)>, Error> {
    engine.device().take();
    engine.run_tokens(0, ids, want)?;
    let length = engine.length(0);
    Ok(engine.device().take().into_iter().map(|pass| (pass, length)).collect())
}

/// The layer of a dispatch: the lowest layer whose weights it reads, because a step may prepare input of the
/// next layer. Without weights, the layer of the previous dispatch.
fn layer_of(bindings: &[Binding], weights: &WeightFile, before: Option<u32>) -> Option<u32> {
    let read = bindings.iter().filter(|binding| binding.buffer == Buffer::Weights);
    let layers: Vec<Option<u32>> = read.map(|binding| weights.layer(binding.offset)).collect();
    if layers.is_empty() { before } else { layers.into_iter().flatten().min() }
}

/// The median.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match (values.len() / 2, values.len() % 2) {
        (0, 0) => 0.0,
        (half, 0) => f64::midpoint(values[half - 1], values[half]),
        (half, _) => values[half],
    }
}
