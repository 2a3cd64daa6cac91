//! Times candidate layouts in passes of the model.

use crate::engine::{Engine, Output};
use crate::measure::capture::{CapturedDispatch, CapturedPass, CapturingDevice};
use crate::measure::profile::median;
use crate::measure::tune::compare::{OutputSnapshot, PARTIALS, bound, difference};
use crate::measure::tune::result::{LayoutTimes, Mismatch, TuningResult};
use forge_device::device::{Binding, Buffer, Device};
use forge_device::error::Error;
use forge_device::model::ModelInfo;
use forge_device::tuning_space::{Candidate, CandidateKernel, ErrorModel, TuningProblem};

/// A layout is chosen only if it takes less than this share of the default's time; smaller gains are within
/// the noise.
const MIN_GAIN: f64 = 0.98;

/// Minimum dispatches per measurement; a pass with fewer is repeated.
const DISPATCHES: usize = 8;

/// Rows of the small-batch pass.
const SMALL_BATCH: u32 = 8;

/// Length of the long context, if the model supports it.
const LONG_CONTEXT: u32 = 4096;

/// Captured passes of a model, in which dispatches are timed.
pub struct Tuner {
    /// Prefill, small-batch and decode passes, in a short and in a long context, each with the positions that
    /// its last row attends to.
    passes: Vec<(CapturedPass, u32)>,
    /// Measured rounds.
    rounds: usize,
}

/// Times of a kernel's dispatches with each layout, in interleaved rounds.
struct InterleavedTimings {
    /// Seconds with the default layout.
    default: f64,
    /// For each candidate, its share of the default's time.
    gains: Vec<f64>,
}

impl Tuner {
    /// Rows of the prefill pass: at most a quarter of the context, so that there is a longer context.
    fn prefill_rows(info: &ModelInfo) -> u32 {
        let most = info.context.saturating_sub(SMALL_BATCH + 1);
        info.prefill_chunk.min((info.context / 4).max(2 * SMALL_BATCH + 1)).min(most).max(1)
    }

    /// The short and the long context length. A long context needs at least twice the length of the short
    /// one.
    fn lengths(info: &ModelInfo) -> (u32, Option<u32>) {
        let short = Tuner::prefill_rows(info) + SMALL_BATCH + 1;
        let long = info.context.min(LONG_CONTEXT);
        (short, (long >= 2 * short).then_some(long))
    }

    /// The context length that the passes need.
    pub fn context_needed(info: &ModelInfo) -> u32 {
        let (short, long) = Tuner::lengths(info);
        long.unwrap_or(short)
    }

    /// Runs and captures the passes.
    pub fn new<D: Device>(engine: &mut Engine<CapturingDevice<D>>, rounds: usize) -> Result<Tuner, Error> {
        let (short, long) = Tuner::lengths(engine.info());
        let mut passes = Vec::new();
        for length in [Some(short), long].into_iter().flatten() {
            engine.truncate(0, 0);
            let ids = engine.info().test_tokens(length);
            let (before, last) = ids.split_at((length - short) as usize);
            let (prompt, rest) = last.split_at(Tuner::prefill_rows(engine.info()) as usize);
            let (few, one) = rest.split_at(SMALL_BATCH as usize);
            if !before.is_empty() {
                engine.run_tokens(0, before, Output::Nothing)?;
                engine.device().take();
            }
            for (ids, want) in [(prompt, Output::Greedy), (few, Output::AllLogits), (one, Output::Greedy)] {
                engine.run_tokens(0, ids, want)?;
                let positions = engine.length(0);
                passes.extend(engine.device().take().into_iter().map(|pass| (pass, positions)));
            }
        }
        Ok(Tuner { passes, rounds })
    }

    /// Measures a tuning problem. `None` if no pass has its kernels, or if `goes_on` returned false between
    /// rounds.
    pub fn measure_layouts(
        &self,
        choice: &'static TuningProblem,
        device: &mut dyn Device,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<TuningResult>, String> {
        let has_any = |pass: &&(CapturedPass, u32)| pass.0.dispatches.iter().any(|note| is_in(choice, note));
        let most = match choice.subject.error_model {
            ErrorModel::Products(_) | ErrorModel::Codes(_) => 1,
            ErrorModel::Attention { .. } => self.passes.len(),
        };
        let passes: Vec<&(CapturedPass, u32)> = self.passes.iter().filter(has_any).take(most).collect();
        if passes.is_empty() {
            return Ok(None);
        }
        let (mut wrong, mut right) = (Vec::new(), Vec::new());
        'others: for other in choice.candidates {
            for pass in &passes {
                if !goes_on() {
                    return Ok(None);
                }
                if let Some(found) = check(pass, choice, other, device)? {
                    wrong.push(found);
                    continue 'others;
                }
            }
            right.push(other);
        }
        let mut all = Vec::new();
        for (pass, _) in &passes {
            let Some(measured) = self.measure(pass, choice, &right, device, goes_on)? else {
                return Ok(None);
            };
            all.push(measured);
        }
        let best = best(&all.iter().map(|measured| measured.gains.as_slice()).collect::<Vec<_>>());
        let times = all.iter().zip(&passes).map(|(measured, (_, positions))| {
            let gain = best.map_or(1.0, |index| measured.gains[index]);
            LayoutTimes { positions: *positions, default: measured.default, best: measured.default * gain }
        });
        Ok(Some(TuningResult {
            subject: choice.subject,
            kernels: choice.kernels,
            default: choice.default,
            best: best.map_or(choice.default, |index| right[index].layout),
            times: times.collect(),
            tried: 1 + right.len(),
            wrong,
        }))
    }

    /// Times all dispatches of a problem in a pass, in interleaved rounds; `None` if `goes_on` returned
    /// false.
    fn measure(
        &self,
        pass: &CapturedPass,
        choice: &TuningProblem,
        right: &[&'static Candidate],
        device: &mut dyn Device,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<InterleavedTimings>, String> {
        let notes: Vec<&CapturedDispatch> =
            pass.dispatches.iter().filter(|note| is_in(choice, note)).collect();
        let repeats = DISPATCHES.div_ceil(notes.len());
        // The default layout is first in each round; the order of the candidates is reversed in every other
        // round.
        let layouts = 1 + right.len();
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); layouts];
        pass.write_inputs(device);
        for round in 0..=self.rounds {
            if !goes_on() {
                return Ok(None);
            }
            let place = |index: usize| if round % 2 == 0 { index } else { (layouts - index) % layouts };
            let of_round = device.time_parts(pass.schedule, layouts, &mut |index, to| {
                let other = place(index).checked_sub(1).map(|other| right[other]);
                for _ in 0..repeats {
                    for note in &notes {
                        to.barrier();
                        match other {
                            Some(other) => substitute(choice, other, note).encode(to),
                            None => note.encode(to),
                        }
                    }
                }
            })?;
            if round > 0 {
                for (index, [begin, end]) in of_round.into_iter().enumerate() {
                    times[place(index)].push((end - begin) / repeats as f64);
                }
            }
        }
        // Clocks drift over rounds, so the gain is the median of the gains in each round.
        let gained = |times_of: &Vec<f64>| {
            let each = times_of.iter().zip(&times[0]);
            median(each.map(|(time, own)| time / own.max(f64::MIN_POSITIVE)).collect())
        };
        let gains = times[1..].iter().map(gained).collect();
        Ok(Some(InterleavedTimings { default: median(times[0].clone()), gains }))
    }
}

/// The layout with the smallest geometric mean time, if the gain is large enough and no pass is slower by
/// more than the noise. `gains`: for each pass, each layout's share of the default's time.
fn best(gains: &[&[f64]]) -> Option<usize> {
    let layouts = gains.first().map_or(0, |of_pass| of_pass.len());
    let mean = |index: usize| {
        let logarithms = gains.iter().map(|of_pass| of_pass[index].ln());
        (logarithms.sum::<f64>() / gains.len() as f64).exp()
    };
    let is_nowhere_slower = |index: &usize| gains.iter().all(|of_pass| of_pass[*index] * MIN_GAIN <= 1.0);
    let worth = (0..layouts).filter(is_nowhere_slower).map(|index| (index, mean(index)));
    worth.filter(|(_, mean)| *mean < MIN_GAIN).min_by(|a, b| a.1.total_cmp(&b.1)).map(|(index, _)| index)
}

/// Compares a candidate with the default kernels, at their first dispatch in the pass. Returns the mismatch,
/// if any.
fn check(
    (pass, positions): &(CapturedPass, u32),
    choice: &TuningProblem,
    other: &'static Candidate,
    device: &mut dyn Device,
) -> Result<Option<Mismatch>, String> {
    for kernel in choice.kernels {
        let Some(place) = pass.dispatches.iter().position(|note| note.kernel.name == *kernel) else {
            continue;
        };
        let note = &pass.dispatches[place];
        let candidate_kernel = substitute(choice, other, note);
        // KV splits are compared after the combine kernel.
        let has_partials = |note: &CapturedDispatch| note.kernel.buffers.contains(&PARTIALS);
        let join = pass.dispatches.get(place + 1).filter(|next| has_partials(note) && has_partials(next));
        // The inputs are valid after all dispatches before it.
        pass.write_inputs(device);
        device.run(pass.schedule, &mut |to| pass.encode_first(place, to))?;
        let before = read(note, device);
        let mut written_by = |does: &CapturedDispatch| {
            for (_, binding, bytes) in &before {
                device.write(binding.buffer, binding.offset, bytes);
            }
            device.run(pass.schedule, &mut |to| {
                does.encode(to);
                if let Some(join) = join {
                    to.barrier();
                    join.encode(to);
                }
            })?;
            Ok::<OutputSnapshot, String>(read(note, device))
        };
        let (own, others) = (written_by(note)?, written_by(&candidate_kernel)?);
        if let Some(difference) = difference(&own, &others, bound(choice.subject.error_model, *positions)) {
            return Ok(Some(Mismatch { kernel: candidate_kernel.kernel.name, difference }));
        }
    }
    Ok(None)
}

/// The current contents of a dispatch's output buffers.
fn read(note: &CapturedDispatch, device: &mut dyn Device) -> OutputSnapshot {
    let named = note.kernel.buffers.iter().zip(&note.bindings);
    let written = named.filter(|(_, binding)| binding.written && binding.buffer != Buffer::Weights);
    let bytes = |(name, binding): (&&'static str, &Binding)| {
        let mut bytes = vec![0; binding.bytes];
        device.read(binding.buffer, binding.offset, &mut bytes);
        (*name, *binding, bytes)
    };
    written.map(bytes).collect()
}

/// Whether a dispatch belongs to the problem.
fn is_in(problem: &TuningProblem, dispatch: &CapturedDispatch) -> bool {
    problem.kernels.contains(&dispatch.kernel.name)
}

/// A dispatch of the problem with the layout of a candidate.
fn substitute(
    problem: &TuningProblem,
    candidate: &'static Candidate,
    dispatch: &CapturedDispatch,
) -> CapturedDispatch {
    let place = problem.kernels.iter().position(|kernel| *kernel == dispatch.kernel.name).unwrap_or(0);
    let CandidateKernel { kernel, groups } = candidate.kernels[place];
    CapturedDispatch { kernel, groups: groups(&dispatch.scalars), ..dispatch.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_layout_is_faster_in_the_mean_and_not_slower_anywhere() {
        let cases: [(&[&[f64]], Option<usize>); 7] = [
            (&[&[]], None),
            (&[&[0.99, 1.2]], None),
            (&[&[0.9, 0.8, 1.0]], Some(1)),
            (&[&[0.9, 0.8], &[0.9, 1.5]], Some(0)),
            (&[&[0.9, 0.8], &[0.9, 0.9]], Some(1)),
            (&[&[0.5], &[1.01]], Some(0)),
            (&[&[0.5], &[1.05]], None),
        ];
        for (gains, expected) in cases {
            assert_eq!(best(gains), expected, "{gains:?}");
        }
    }
}
