//! Times the candidate layouts of a model's kernels in passes of the model.

use crate::device::{Binding, Buffer, Device};
use crate::engine::{Engine, Output};
use crate::error::Error;
use crate::measure::capture::{CapturedDispatch, CapturedPass, CapturingDevice};
use crate::measure::profile::middle;
use crate::measure::tune::candidates::{Candidate, CandidateKernel, ErrorModel, TuningProblem};
use crate::measure::tune::compare::{JOINED, OutputSnapshot, bound, difference};
use crate::measure::tune::result::{Mismatch, Times, TuningResult};
use crate::model::ModelInfo;

/// What has to be gained for a layout to be chosen: less is within what turns differ by.
const WORTH: f64 = 0.98;

/// Dispatches of a turn at least, as far as these many times the same are more.
const DISPATCHES: usize = 8;

/// Rows of the pass of few.
const FEW: u32 = 8;

/// Positions of the long text, where the model's context has so many.
const LONG: u32 = 4096;

/// Passes of a model, in which dispatches are found to be measured.
pub struct Tuner {
    /// Of many rows, of few and of one, in a short text and in a long one; and to how many positions the last row of each attends.
    passes: Vec<(CapturedPass, u32)>,
    /// Turns that count.
    turns: usize,
}

/// A kernel's dispatches with each layout in a pass.
struct InterleavedTimings {
    /// Seconds with the plan's layout.
    own: f64,
    /// What each other takes of that.
    gains: Vec<f64>,
}

impl Tuner {
    /// Rows of the pass of many: at most a quarter of the context, so that there is a longer text to be had.
    fn many(info: &ModelInfo) -> u32 {
        let most = info.context.saturating_sub(FEW + 1);
        info.chunk.min((info.context / 4).max(2 * FEW + 1)).min(most).max(1)
    }

    /// Positions of the short text, and those of the long one, if there is one: no longer than twice the short one it would tell
    /// nothing new.
    fn lengths(info: &ModelInfo) -> (u32, Option<u32>) {
        let short = Tuner::many(info) + FEW + 1;
        let long = info.context.min(LONG);
        (short, (long >= 2 * short).then_some(long))
    }

    /// Positions that the passes take.
    pub fn positions(info: &ModelInfo) -> u32 {
        let (short, long) = Tuner::lengths(info);
        long.unwrap_or(short)
    }

    /// Has the passes done that are to be measured.
    pub fn new<D: Device>(engine: &mut Engine<CapturingDevice<D>>, turns: usize) -> Result<Tuner, Error> {
        let (short, long) = Tuner::lengths(&engine.info());
        let mut passes = Vec::new();
        for length in [Some(short), long].into_iter().flatten() {
            engine.truncate(0, 0);
            let ids = engine.info().some_ids(length);
            let (before, last) = ids.split_at((length - short) as usize);
            let (prompt, rest) = last.split_at(Tuner::many(&engine.info()) as usize);
            let (few, one) = rest.split_at(FEW as usize);
            if !before.is_empty() {
                engine.feed(0, before, Output::Nothing)?;
                engine.device().take();
            }
            for (ids, want) in [(prompt, Output::Next), (few, Output::AllLogits), (one, Output::Next)] {
                engine.feed(0, ids, want)?;
                let positions = engine.length(0);
                passes.extend(engine.device().take().into_iter().map(|pass| (pass, positions)));
            }
        }
        Ok(Tuner { passes, turns })
    }

    /// Measures a choice; nothing where no pass has a kernel of it. `goes_on` is asked between turns, and nothing comes of a choice
    /// that does not.
    pub fn choose(
        &self,
        choice: &'static TuningProblem,
        device: &mut dyn Device,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<TuningResult>, String> {
        let has_any = |pass: &&(CapturedPass, u32)| pass.0.notes.iter().any(|note| choice.makes(note));
        let most = match choice.subject.sums {
            ErrorModel::Products(_) | ErrorModel::Codes(_) => 1,
            ErrorModel::Attention { .. } => self.passes.len(),
        };
        let passes: Vec<&(CapturedPass, u32)> = self.passes.iter().filter(has_any).take(most).collect();
        if passes.is_empty() {
            return Ok(None);
        }
        let (mut wrong, mut right) = (Vec::new(), Vec::new());
        'others: for other in choice.others {
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
            let Some(turns) = self.measure(pass, choice, &right, device, goes_on)? else { return Ok(None) };
            all.push(turns);
        }
        let best = best(&all.iter().map(|turns| turns.gains.as_slice()).collect::<Vec<_>>());
        let times = all.iter().zip(&passes).map(|(turns, (_, positions))| {
            let gain = best.map_or(1.0, |index| turns.gains[index]);
            Times { positions: *positions, own: turns.own, best: turns.own * gain }
        });
        Ok(Some(TuningResult {
            subject: choice.subject,
            kernels: choice.kernels,
            own: choice.own,
            best: best.map_or(choice.own, |index| right[index].layout),
            times: times.collect(),
            tried: 1 + right.len(),
            wrong,
        }))
    }

    /// Times all dispatches of a choice in a pass, in turns; nothing if these do not go on.
    fn measure(
        &self,
        pass: &CapturedPass,
        choice: &TuningProblem,
        right: &[&'static Candidate],
        device: &mut dyn Device,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<InterleavedTimings>, String> {
        let notes: Vec<&CapturedDispatch> = pass.notes.iter().filter(|note| choice.makes(note)).collect();
        let repeats = DISPATCHES.div_ceil(notes.len());
        // The plan's own is the first of each turn; of the others those come first that came last in the turn before.
        let layouts = 1 + right.len();
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); layouts];
        pass.say(device);
        for turn in 0..=self.turns {
            if !goes_on() {
                return Ok(None);
            }
            let place = |index: usize| if turn % 2 == 0 { index } else { (layouts - index) % layouts };
            let of_turn = device.timed(pass.program, layouts, &mut |index, to| {
                let other = place(index).checked_sub(1).map(|other| right[other]);
                for _ in 0..repeats {
                    for note in &notes {
                        to.barrier();
                        match other {
                            Some(other) => other.standing_in(choice, note).encode(to),
                            None => note.encode(to),
                        }
                    }
                }
            })?;
            if turn > 0 {
                for (index, [begin, end]) in of_turn.into_iter().enumerate() {
                    times[place(index)].push((end - begin) / repeats as f64);
                }
            }
        }
        // Turns drift together: what a layout gains is the middle of what it gains in each.
        let gained = |times_of: &Vec<f64>| {
            let each = times_of.iter().zip(&times[0]);
            middle(each.map(|(time, own)| time / own.max(f64::MIN_POSITIVE)).collect())
        };
        let gains = times[1..].iter().map(gained).collect();
        Ok(Some(InterleavedTimings { own: middle(times[0].clone()), gains }))
    }
}

/// The layout that takes the least of the plan's time, in the geometric mean of passes, if it is worth it and in no pass slower by more
/// than turns differ. `gains` has for each pass what each layout takes of the plan's time.
fn best(gains: &[&[f64]]) -> Option<usize> {
    let layouts = gains.first().map_or(0, |of_pass| of_pass.len());
    let mean = |index: usize| {
        let logarithms = gains.iter().map(|of_pass| of_pass[index].ln());
        (logarithms.sum::<f64>() / gains.len() as f64).exp()
    };
    let is_nowhere_slower = |index: &usize| gains.iter().all(|of_pass| of_pass[*index] * WORTH <= 1.0);
    let worth = (0..layouts).filter(is_nowhere_slower).map(|index| (index, mean(index)));
    worth.filter(|(_, mean)| *mean < WORTH).min_by(|a, b| a.1.total_cmp(&b.1)).map(|(index, _)| index)
}

/// Whether a layout computes what the plan's kernels do, where they come first in the pass; if not, what is wrong.
fn check(
    (pass, positions): &(CapturedPass, u32),
    choice: &TuningProblem,
    other: &'static Candidate,
    device: &mut dyn Device,
) -> Result<Option<Mismatch>, String> {
    for kernel in choice.kernels {
        let Some(place) = pass.notes.iter().position(|note| note.kernel.name == *kernel) else {
            continue;
        };
        let note = &pass.notes[place];
        let stand_in = other.standing_in(choice, note);
        // Shares are of use when they are joined, and compared as what comes of that.
        let shares = |note: &CapturedDispatch| note.kernel.buffers.contains(&JOINED);
        let join = pass.notes.get(place + 1).filter(|next| shares(note) && shares(next));
        // What it reads is there when all before it has been done.
        pass.say(device);
        device.run(pass.program, &mut |to| pass.encode_first(place, to))?;
        let before = read(note, device);
        let mut written_by = |does: &CapturedDispatch| {
            for (_, binding, bytes) in &before {
                device.write(binding.buffer, binding.offset, bytes);
            }
            device.run(pass.program, &mut |to| {
                does.encode(to);
                if let Some(join) = join {
                    to.barrier();
                    join.encode(to);
                }
            })?;
            Ok::<OutputSnapshot, String>(read(note, device))
        };
        let (own, others) = (written_by(note)?, written_by(&stand_in)?);
        if let Some(difference) = difference(&own, &others, bound(choice.subject.sums, *positions)) {
            return Ok(Some(Mismatch { kernel: stand_in.kernel.name, difference }));
        }
    }
    Ok(None)
}

/// What a dispatch may write, as it is now.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_faster_on_the_whole_and_nowhere_slower() {
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

impl TuningProblem {
    /// Whether a dispatch is of it.
    fn makes(&self, note: &CapturedDispatch) -> bool {
        self.kernels.contains(&note.kernel.name)
    }
}

impl Candidate {
    /// A dispatch with this layout.
    fn standing_in(&'static self, choice: &TuningProblem, note: &CapturedDispatch) -> CapturedDispatch {
        let place = choice.kernels.iter().position(|kernel| *kernel == note.kernel.name).unwrap_or(0);
        let CandidateKernel { kernel, groups } = self.stand_ins[place];
        CapturedDispatch { kernel, groups: groups(&note.scalars), ..note.clone() }
    }
}
