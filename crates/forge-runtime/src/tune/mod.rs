//! Which layouts of a model's products are fastest on a device. A program that was compiled for it has, beside its kernels, others
//! that may stand in for them; [`Tuning`] has each do what the plan's kernels do in passes of the model, on the same bytes, and times
//! them in turns. One that computes something else is told of and never chosen. The table that comes of it is for `forge compile
//! --tuned`: a program's own kernels stay what they are.

mod compare;
mod table;

pub use compare::Difference;
pub use table::{line, table};

use super::device::{Binding, Buffer, Device, Kernel};
use super::engine::{Engine, Want};
use super::failure::Failure;
use super::model::{Info, Model};
use super::notes::{Note, Noted, NotedPass};
use super::open::Program;
use super::profile::middle;
use compare::{Written, bound, difference};

/// What a program may choose from.
pub struct Tunable {
    /// Text of kernels: the plan's own and all that may stand in for them.
    pub metal: &'static str,
    #[cfg(feature = "cuda")]
    /// The same as NVIDIA's driver takes it.
    pub ptx: &'static [super::cuda::Ptx],
    /// What there is to choose.
    pub choices: &'static [Choice],
}

/// A product, and how it could be laid out.
pub struct Choice {
    /// The product.
    pub product: Product,
    /// The kernels that make it.
    pub kernels: &'static [&'static str],
    /// How they are laid out.
    pub own: Knobs,
    /// Other layouts.
    pub others: &'static [Other],
}

/// Rows of a simdgroup, simdgroups of a threadgroup, those that share columns, packets at once, and rows and outputs of a tile.
pub type Knobs = [u32; 6];

/// What a layout is chosen by.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// `one`, `few` or `many`.
    pub rows: &'static str,
    /// Of the matrix.
    pub format: &'static str,
    /// Rows of the matrix.
    pub outputs: u32,
    /// Columns of the matrix.
    pub inputs: u32,
    /// Whether something is left for each threadgroup.
    pub leaves: bool,
}

/// A layout, and for each kernel of the choice one that has it.
pub struct Other {
    /// The layout.
    pub knobs: Knobs,
    /// In the order of the choice's kernels.
    pub stand_ins: &'static [&'static StandIn],
}

/// A kernel that may do what one of the plan's does.
pub struct StandIn {
    /// The kernel.
    pub kernel: Kernel,
    /// Its threadgroups, by its scalars.
    pub groups: fn(&[u32]) -> [u32; 3],
}

impl Tunable {
    /// The program with everything that there is to choose from among its kernels.
    pub fn program(&'static self, of: &Program) -> Program {
        let kernels: Vec<_> = of.kernels.iter().copied().chain(self.kernels()).collect();
        Program {
            directory: of.directory,
            metal: self.metal,
            metallib: None,
            #[cfg(feature = "cuda")]
            ptx: self.ptx,
            kernels: Vec::leak(kernels),
            tunable: None,
        }
    }

    /// All kernels that may stand in.
    pub fn kernels(&self) -> impl Iterator<Item = &'static Kernel> {
        let others = self.choices.iter().flat_map(|choice| choice.others);
        others.flat_map(|other| other.stand_ins).map(|stand_in| &stand_in.kernel)
    }
}

/// What came of a choice.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The product.
    pub product: Product,
    /// The kernels that make it.
    pub kernels: &'static [&'static str],
    /// How the plan's are laid out, and how long all their dispatches of a pass take.
    pub own: (Knobs, f64),
    /// The fastest layout, which may be the plan's own, and how long the same takes with it.
    pub best: (Knobs, f64),
    /// Layouts that were measured, the plan's included.
    pub tried: usize,
    /// Layouts that compute something else.
    pub wrong: Vec<Wrong>,
}

/// A layout that computes something else.
#[derive(Clone, Debug)]
pub struct Wrong {
    /// The kernel.
    pub kernel: &'static str,
    /// By how much what.
    pub difference: Difference,
}

/// What has to be gained for a layout to be chosen: less is within what turns differ by.
const WORTH: f64 = 0.98;

/// Dispatches of a turn at least, as far as these many times the same are more.
const DISPATCHES: usize = 8;

/// Rows of the pass of few.
const FEW: u32 = 8;

/// Passes of a model, in which dispatches are found to be measured.
pub struct Tuning {
    /// Of many rows, of few and of one.
    passes: Vec<NotedPass>,
    /// Turns that count.
    turns: usize,
}

impl Tuning {
    /// Rows of the pass of many.
    fn many(info: &Info) -> u32 {
        info.chunk.min(info.context.saturating_sub(FEW + 1)).max(1)
    }

    /// Positions that the passes take.
    pub fn positions(info: &Info) -> u32 {
        Tuning::many(info) + FEW + 1
    }

    /// Has the passes done that are to be measured.
    pub fn new<M: Model, D: Device>(
        engine: &mut Engine<M, Noted<D>>,
        turns: usize,
    ) -> Result<Tuning, Failure> {
        let ids = M::INFO.some_ids(Tuning::positions(&M::INFO));
        let (prompt, rest) = ids.split_at(Tuning::many(&M::INFO) as usize);
        let (few, one) = rest.split_at(FEW as usize);
        engine.feed(0, prompt, Want::Next)?;
        engine.feed(0, few, Want::AllLogits)?;
        engine.feed(0, one, Want::Next)?;
        Ok(Tuning { passes: engine.device().take(), turns })
    }

    /// Measures a choice; nothing where no pass makes the product.
    pub fn choose(&self, choice: &'static Choice, device: &mut dyn Device) -> Result<Option<Chosen>, String> {
        let makes = |note: &&Note| choice.kernels.contains(&note.kernel.name);
        let Some(pass) = self.passes.iter().find(|pass| pass.notes.iter().any(|note| makes(&note))) else {
            return Ok(None);
        };
        let (mut wrong, mut right) = (Vec::new(), Vec::new());
        for other in choice.others {
            match self.check(pass, choice, other, device)? {
                Some(found) => wrong.push(found),
                None => right.push(other),
            }
        }
        let notes: Vec<&Note> = pass.notes.iter().filter(makes).collect();
        let repeats = DISPATCHES.div_ceil(notes.len());
        // The plan's own is the first of each turn; of the others those come first that came last in the turn before.
        let layouts = 1 + right.len();
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); layouts];
        pass.say(device);
        for turn in 0..=self.turns {
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
        let own = middle(times[0].clone());
        let gained = |times_of: &Vec<f64>| {
            middle(
                times_of.iter().zip(&times[0]).map(|(time, own)| time / own.max(f64::MIN_POSITIVE)).collect(),
            )
        };
        let gains = times.iter().map(gained).enumerate();
        let best = gains.skip(1).min_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, gain)| *gain < WORTH);
        let best = match best {
            Some((index, gain)) => (right[index - 1].knobs, own * gain),
            None => (choice.own, own),
        };
        let (product, kernels) = (choice.product, choice.kernels);
        Ok(Some(Chosen { product, kernels, own: (choice.own, own), best, tried: layouts, wrong }))
    }

    /// Whether a layout computes what the plan's kernels do, where they come first in the pass; if not, what is wrong.
    fn check(
        &self,
        pass: &NotedPass,
        choice: &Choice,
        other: &'static Other,
        device: &mut dyn Device,
    ) -> Result<Option<Wrong>, String> {
        for kernel in choice.kernels {
            let Some(place) = pass.notes.iter().position(|note| note.kernel.name == *kernel) else {
                continue;
            };
            let note = &pass.notes[place];
            // What it reads is there when all before it has been done.
            pass.say(device);
            device.run(pass.program, &mut |to| pass.encode_first(place, to))?;
            let before = read(note, device);
            let mut written_by = |note: &Note| {
                for (binding, bytes) in &before {
                    device.write(binding.buffer, binding.offset, bytes);
                }
                device.run(pass.program, &mut |to| note.encode(to))?;
                Ok::<Written, String>(read(note, device))
            };
            let own = written_by(note)?;
            let stand_in = other.standing_in(choice, note);
            let others = written_by(&stand_in)?;
            let names = stand_in.kernel.buffers;
            if let Some(difference) = difference(note, names, &own, &others, bound(&choice.product)) {
                return Ok(Some(Wrong { kernel: stand_in.kernel.name, difference }));
            }
        }
        Ok(None)
    }
}

/// What a dispatch may write, as it is now.
fn read(note: &Note, device: &mut dyn Device) -> Written {
    let written = note.bindings.iter().filter(|binding| binding.written && binding.buffer != Buffer::Weights);
    let bytes = |binding: &Binding| {
        let mut bytes = vec![0; binding.bytes];
        device.read(binding.buffer, binding.offset, &mut bytes);
        (*binding, bytes)
    };
    written.map(bytes).collect()
}

impl Other {
    /// A dispatch with this layout.
    fn standing_in(&'static self, choice: &Choice, note: &Note) -> Note {
        let place = choice.kernels.iter().position(|kernel| *kernel == note.kernel.name).unwrap_or(0);
        let StandIn { kernel, groups } = self.stand_ins[place];
        Note { kernel, groups: groups(&note.scalars), ..note.clone() }
    }
}
