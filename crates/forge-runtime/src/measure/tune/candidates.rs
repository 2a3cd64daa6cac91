//! What a program may choose from, as its compiler wrote it, and what came of a choice.

use crate::device::Kernel;
use crate::program::{CompiledModel, Ptx};

/// What a program may choose from.
pub struct TuningSpace {
    /// Text of kernels: the plan's own and all that may stand in for them.
    pub metal: &'static str,
    /// The same as NVIDIA's driver takes it.
    pub ptx: &'static [Ptx],
    /// What there is to choose.
    pub choices: &'static [TuningProblem],
}

/// A subject, and how its kernels could be laid out.
pub struct TuningProblem {
    /// The subject.
    pub subject: TuningKey,
    /// The plan's kernels that are of it.
    pub kernels: &'static [&'static str],
    /// How they are laid out.
    pub own: Layout,
    /// Other layouts.
    pub others: &'static [Candidate],
}

/// What a layout is chosen by. The compiler knows its subjects; here they are what tables and people are told, and what sums are of.
#[derive(Clone, Copy, Debug)]
pub struct TuningKey {
    /// What it is, for people.
    pub name: &'static str,
    /// `one`, `few` or `many`: how many rows its kernels are made for.
    pub rows: &'static str,
    /// What it is, for the table.
    pub said: &'static [(&'static str, KeyValue)],
    /// What its results are.
    pub sums: ErrorModel,
}

/// What a table says of a subject.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KeyValue {
    /// A word.
    Word(&'static str),
    /// A number.
    Number(u32),
    /// Whether something is so.
    Flag(bool),
}

/// What results are sums of.
#[derive(Clone, Copy, Debug)]
pub enum ErrorModel {
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
    pub knobs: &'static [(&'static str, KeyValue)],
}

/// A layout, and for each kernel of the choice one that has it.
pub struct Candidate {
    /// The layout.
    pub layout: Layout,
    /// In the order of the choice's kernels.
    pub stand_ins: &'static [&'static CandidateKernel],
}

/// A kernel that may do what one of the plan's does.
pub struct CandidateKernel {
    /// The kernel.
    pub kernel: Kernel,
    /// Its threadgroups, by its scalars.
    pub groups: fn(&[u32]) -> [u32; 3],
}

impl TuningSpace {
    /// The program with everything that there is to choose from among its kernels.
    pub fn program(&'static self, of: &CompiledModel) -> CompiledModel {
        let kernels: Vec<_> = of.kernels.iter().copied().chain(self.kernels()).collect();
        CompiledModel {
            directory: of.directory,
            metal: self.metal,
            metallib: None,
            ptx: self.ptx,
            info: of.info,
            load: of.load,
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
