//! Tuning problems and candidate layouts, as the compiler generates them.

use crate::device::Kernel;
use crate::program::{CompiledModel, Ptx};

/// All tuning problems of a program.
pub struct TuningSpace {
    /// Metal source of the default and candidate kernels.
    pub metal: &'static str,
    /// The same kernels as PTX.
    pub ptx: &'static [Ptx],
    /// The tuning problems.
    pub choices: &'static [TuningProblem],
}

/// A tuning problem: kernels that share a layout, and candidate layouts for them.
pub struct TuningProblem {
    /// The key of the problem.
    pub subject: TuningKey,
    /// The plan's kernels.
    pub kernels: &'static [&'static str],
    /// Their default layout.
    pub default: KernelLayout,
    /// The candidates.
    pub candidates: &'static [Candidate],
}

/// The key of a tuning problem. The compiler interprets it; here it labels output and sets the error
/// tolerance.
#[derive(Clone, Copy, Debug)]
pub struct TuningKey {
    /// Name for output.
    pub name: &'static str,
    /// Batch-size class of the kernels: `one`, `few` or `many` rows.
    pub rows: &'static str,
    /// Key and values in tuned.json.
    pub attributes: &'static [(&'static str, KeyValue)],
    /// The error model of the kernels' results.
    pub error_model: ErrorModel,
}

/// A value in tuned.json.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KeyValue {
    /// A string.
    Word(&'static str),
    /// An integer.
    Number(u32),
    /// A boolean.
    Flag(bool),
}

/// Rounding error of a kernel's results, by what they are sums of.
#[derive(Clone, Copy, Debug)]
pub enum ErrorModel {
    /// A sum of this many products.
    Products(u32),
    /// A sum of this many products, where activations may be quantized to 16 bits.
    Codes(u32),
    /// Attention: scores are dot products of `width` channels, outputs are sums over the visible positions.
    Attention {
        /// Head dimension.
        width: u32,
        /// Sliding window, if there is one.
        window: Option<u32>,
    },
}

/// A kernel layout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelLayout {
    /// Name for output.
    pub name: &'static str,
    /// Its knobs, by the compiler's names.
    pub knobs: &'static [(&'static str, KeyValue)],
}

/// A candidate layout, with a kernel for each kernel of the problem.
pub struct Candidate {
    /// The layout.
    pub layout: KernelLayout,
    /// The kernels, in the order of [`TuningProblem::kernels`].
    pub kernels: &'static [&'static CandidateKernel],
}

/// A kernel with a candidate layout.
pub struct CandidateKernel {
    /// The kernel.
    pub kernel: Kernel,
    /// The number of threadgroups for its scalars.
    pub groups: fn(&[u32]) -> [u32; 3],
}

impl TuningSpace {
    /// The program with all candidate kernels added.
    pub fn program(&'static self, of: &CompiledModel) -> CompiledModel {
        let kernels: Vec<_> = of.kernels.iter().copied().chain(self.kernels()).collect();
        CompiledModel {
            directory: of.directory,
            metal: self.metal,
            metallib: None,
            tensor_metallib: None,
            ptx: self.ptx,
            info: of.info,
            load: of.load,
            kernels: Vec::leak(kernels),
            tunable: None,
        }
    }

    /// All candidate kernels.
    pub fn kernels(&self) -> impl Iterator<Item = &'static Kernel> {
        let others = self.choices.iter().flat_map(|choice| choice.candidates);
        others.flat_map(|other| other.kernels).map(|candidate_kernel| &candidate_kernel.kernel)
    }
}
