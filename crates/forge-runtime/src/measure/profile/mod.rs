//! Where the time of a pass goes. The dispatches of passes that were noted are done again, each by itself, and timed by the
//! device; beside them the passes are done whole, as programs do them. What is done by itself waits for what comes before, and has
//! nothing beside it: the sum is more than the whole.

pub(crate) mod table;
pub(crate) mod trace;

pub use crate::measure::profile::table::{PeakBandwidth, json, table};
pub use crate::measure::profile::trace::trace;

use crate::device::kernel_cost::DispatchCost;
use crate::device::{Binding, Buffer, Device};
use crate::engine::{Engine, Output};
use crate::error::Error;
use crate::measure::capture::{CapturedPass, CapturingDevice};
use crate::weights::WeightFile;
use std::time::Instant;

/// A dispatch that was timed.
#[derive(Clone, Debug)]
pub struct Step {
    /// The name of its kernel.
    pub kernel: &'static str,
    /// The layer that it is of, as far as weights tell: none before the first, and after the last.
    pub layer: Option<u32>,
    /// What it does at least.
    pub done: DispatchCost,
    /// Seconds, the middle of all rounds.
    pub seconds: f64,
    /// When it began in the last round, in seconds of the device's clock.
    pub begin: f64,
}

/// Passes that were timed.
#[derive(Clone, Debug)]
pub struct Profile {
    /// What they compute, for people.
    pub name: String,
    /// Rounds that count.
    pub rounds: usize,
    /// Their dispatches in order.
    pub steps: Vec<Step>,
    /// Seconds of all passes as programs do them, the middle of all rounds.
    pub whole: f64,
}

impl Profile {
    /// Seconds of all dispatches, each by itself.
    pub fn sum(&self) -> f64 {
        self.steps.iter().map(|step| step.seconds).sum()
    }
}

/// Passes to be timed.
pub struct ProfiledPass {
    /// What they compute, for people.
    pub name: String,
    /// The passes, and to how many positions the last row of each attends.
    pub passes: Vec<(CapturedPass, u32)>,
}

impl ProfiledPass {
    /// The pass of an id that sees so many positions, its own included.
    pub fn id<D: Device>(
        engine: &mut Engine<CapturingDevice<D>>,
        length: u32,
    ) -> Result<ProfiledPass, Error> {
        engine.truncate(0, 0);
        let ids = engine.info().some_ids(length);
        let (last, before) = ids.split_last().ok_or_else(|| Error::usage("a text has at least one id"))?;
        if !before.is_empty() {
            engine.feed(0, before, Output::Nothing)?;
        }
        let passes = noted(engine, &[*last], Output::Next)?;
        Ok(ProfiledPass { name: format!("an id at the end of {length}"), passes })
    }

    /// The passes of a prompt, after which the next id is known.
    pub fn prompt<D: Device>(
        engine: &mut Engine<CapturingDevice<D>>,
        count: u32,
    ) -> Result<ProfiledPass, Error> {
        engine.truncate(0, 0);
        let ids = engine.info().some_ids(count);
        let mut passes = Vec::new();
        let mut chunks = ids.chunks(engine.info().chunk as usize).peekable();
        while let Some(chunk) = chunks.next() {
            let want = if chunks.peek().is_some() { Output::Nothing } else { Output::Next };
            passes.extend(noted(engine, chunk, want)?);
        }
        Ok(ProfiledPass { name: format!("a prompt of {count} ids"), passes })
    }

    /// Does everything once that does not count, and then `rounds` times; fewer if `goes_on`, which hears how many rounds are
    /// done, says so. Nothing if there was no round.
    pub fn measure(
        &self,
        device: &mut dyn Device,
        weights: &WeightFile,
        rounds: usize,
        goes_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Option<Profile>, String> {
        let (mut apart, mut wholes, mut begins) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=rounds {
            if !goes_on(round) {
                break;
            }
            let (mut times, mut whole) = (Vec::new(), 0.0);
            for (pass, _) in &self.passes {
                pass.say(device);
                let of_pass = device
                    .timed(pass.program, pass.notes.len(), &mut |index, to| pass.notes[index].encode(to))?;
                let start = Instant::now();
                device.run(pass.program, &mut |to| pass.encode(to))?;
                whole += start.elapsed().as_secs_f64();
                // Each pass has a clock of its own: one follows the other.
                let first = of_pass.first().map_or(0.0, |time| time[0]);
                let before = times.last().map_or(0.0, |time: &[f64; 2]| time[1]);
                times.extend(of_pass.iter().map(|time| time.map(|at| at - first + before)));
            }
            if round > 0 {
                apart.push(times.iter().map(|[begin, end]| end - begin).collect::<Vec<f64>>());
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
            for note in &pass.notes {
                layer = layer_of(&note.bindings, weights, layer);
                let seconds = middle(apart.iter().map(|round| round[steps.len()]).collect());
                let done = note.kernel.work.of(note.rows(), *length);
                steps.push(Step {
                    kernel: note.kernel.name,
                    layer,
                    done,
                    seconds,
                    begin: begins[steps.len()],
                });
            }
        }
        let (name, rounds, whole) = (self.name.clone(), wholes.len(), middle(wholes));
        Ok(Some(Profile { name, rounds, steps, whole }))
    }
}

/// The passes of ids, and to how many positions the last of them attends.
fn noted<D: Device>(
    engine: &mut Engine<CapturingDevice<D>>,
    ids: &[u32],
    want: Output,
) -> Result<Vec<(CapturedPass, u32)>, Error> {
    engine.device().take();
    engine.feed(0, ids, want)?;
    let length = engine.length(0);
    Ok(engine.device().take().into_iter().map(|pass| (pass, length)).collect())
}

/// The layer of a dispatch: the first whose weights it reads, since a step may leave something for the layer after it; without
/// any, that of the dispatch before.
fn layer_of(bindings: &[Binding], weights: &WeightFile, before: Option<u32>) -> Option<u32> {
    let read = bindings.iter().filter(|binding| binding.buffer == Buffer::Weights);
    let layers: Vec<Option<u32>> = read.map(|binding| weights.layer(binding.offset)).collect();
    if layers.is_empty() { before } else { layers.into_iter().flatten().min() }
}

/// The one in the middle; of an even number the mean of two.
pub(crate) fn middle(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    match (of.len() / 2, of.len() % 2) {
        (0, 0) => 0.0,
        (half, 0) => f64::midpoint(of[half - 1], of[half]),
        (half, _) => of[half],
    }
}
