//! What a program may choose from, as its compiler wrote it, and what came of a choice.

use super::super::device::Kernel;
use super::super::notes::Note;
use super::super::open::Program;
use super::Difference;

/// What a program may choose from.
pub struct Tunable {
    /// Text of kernels: the plan's own and all that may stand in for them.
    pub metal: &'static str,
    #[cfg(feature = "cuda")]
    /// The same as NVIDIA's driver takes it.
    pub ptx: &'static [super::super::cuda::Ptx],
    /// What there is to choose.
    pub choices: &'static [Choice],
}

/// A subject, and how its kernels could be laid out.
pub struct Choice {
    /// The subject.
    pub subject: Subject,
    /// The plan's kernels that are of it.
    pub kernels: &'static [&'static str],
    /// How they are laid out.
    pub own: Layout,
    /// Other layouts.
    pub others: &'static [Other],
}

/// What a layout is chosen by. The compiler knows its subjects; here they are what tables and people are told, and what sums are of.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// What it is, for people.
    pub name: &'static str,
    /// `one`, `few` or `many`: how many rows its kernels are made for.
    pub rows: &'static str,
    /// What it is, for the table.
    pub said: &'static [(&'static str, Said)],
    /// What its results are.
    pub sums: Sums,
}

/// What a table says of a subject.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Said {
    /// A word.
    Word(&'static str),
    /// A number.
    Number(u32),
    /// Whether something is so.
    Flag(bool),
}

/// What results are sums of.
#[derive(Clone, Copy, Debug)]
pub enum Sums {
    /// So many products.
    Products(u32),
    /// Of so many products, where x may be taken as codes of 16 bits, or not.
    Codes(u32),
    /// Attention: scores are of so many products, and results of as many values as a row sees positions.
    Attention {
        /// Channels of a head.
        width: u32,
        /// The most positions that a row sees, where it does not see all.
        window: Option<u32>,
    },
}

/// How kernels are laid out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layout {
    /// What it is, for people.
    pub name: &'static str,
    /// All of it, by the names that the compiler has for it.
    pub knobs: &'static [(&'static str, Said)],
}

/// A layout, and for each kernel of the choice one that has it.
pub struct Other {
    /// The layout.
    pub layout: Layout,
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

impl Choice {
    /// Whether a dispatch is of it.
    pub(super) fn makes(&self, note: &Note) -> bool {
        self.kernels.contains(&note.kernel.name)
    }
}

impl Other {
    /// A dispatch with this layout.
    pub(super) fn standing_in(&'static self, choice: &Choice, note: &Note) -> Note {
        let place = choice.kernels.iter().position(|kernel| *kernel == note.kernel.name).unwrap_or(0);
        let StandIn { kernel, groups } = self.stand_ins[place];
        Note { kernel, groups: groups(&note.scalars), ..note.clone() }
    }
}

/// What came of a choice.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The subject.
    pub subject: Subject,
    /// The kernels that are of it.
    pub kernels: &'static [&'static str],
    /// How the plan's are laid out.
    pub own: Layout,
    /// The fastest layout, which may be the plan's own.
    pub best: Layout,
    /// What all dispatches of a pass take with either, in each pass that was measured.
    pub times: Vec<Times>,
    /// Layouts that were measured, the plan's included.
    pub tried: usize,
    /// Layouts that compute something else.
    pub wrong: Vec<Wrong>,
}

/// What all dispatches of a subject in a pass take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// Positions that the pass's last row sees.
    pub positions: u32,
    /// Seconds, as the plan has them.
    pub own: f64,
    /// Seconds with the fastest layout.
    pub best: f64,
}

impl Chosen {
    /// Seconds in all passes, as the plan has it and with the fastest layout.
    pub fn seconds(&self) -> [f64; 2] {
        [self.times.iter().map(|times| times.own).sum(), self.times.iter().map(|times| times.best).sum()]
    }

    /// Whether another layout than the plan's was chosen.
    pub fn changes(&self) -> bool {
        self.best != self.own
    }
}

/// A layout that computes something else.
#[derive(Clone, Debug)]
pub struct Wrong {
    /// The kernel.
    pub kernel: &'static str,
    /// By how much what.
    pub difference: Difference,
}
