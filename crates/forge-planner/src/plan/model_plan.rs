//! The plan of a whole model.

use crate::lower::mla_expand::MlaExpand;
use crate::plan::scratch::Scratch;
use crate::plan::section::{Application, Section};
use crate::plan::step::Function;
use forge_ir::{Model, Packed};
use forge_kernels::{Instance, Spec};
use forge_ops::Format;
use serde::Serialize;

/// A complete plan: all that the generated program executes.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Properties of the whole model.
    pub model: Model,
    /// Weights in the weight file.
    pub weights: Vec<Packed>,
    /// Number format of the KV cache.
    pub cache: Format,
    /// Maximum context length in tokens.
    pub context: usize,
    /// Parallel sequences assumed in printed memory figures. The program allocates as many as it is started
    /// with.
    pub slots: usize,
    /// Maximum rows of a pass (prefill chunk).
    pub chunk: usize,
    /// Threshold and tile size of expanded MLA, if the model uses it.
    pub mla_expand: Option<MlaExpand>,
    /// All scratch buffers.
    pub scratch: Vec<Scratch>,
    /// Size of the scratch arena in bytes.
    pub arena_bytes: usize,
    /// Lower bound on the arena size: the maximum number of bytes live at one step.
    pub arena_floor: usize,
    /// All kernels, without duplicates.
    pub kernels: Vec<Instance>,
    /// Functions that steps call: one kernel, or one for each regime.
    pub functions: Vec<Function>,
    /// The prologue, each distinct layer, and the epilogue.
    pub sections: Vec<Section>,
    /// Applications of sections in execution order: prologue, layers, epilogue.
    pub applications: Vec<Application>,
}

/// Number of dispatches and barriers of a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Kernel dispatches.
    pub dispatches: usize,
    /// Barriers.
    pub barriers: usize,
    /// Kernel dispatches of each layer.
    pub dispatches_per_layer: Vec<usize>,
}

impl Plan {
    /// Whether any kernel of a function writes a parameter.
    pub(crate) fn writes(&self, function: usize, parameter: &str) -> bool {
        let kernels = self.functions[function].variants.iter().map(|variant| &self.kernels[variant.kernel]);
        kernels
            .flat_map(|kernel| &kernel.decl.buffers)
            .any(|buffer| buffer.name == parameter && buffer.written)
    }

    /// Whether any kernel of a function accumulates into a parameter.
    pub(crate) fn adds_to(&self, function: usize, parameter: &str) -> bool {
        let kernels = self.functions[function].variants.iter().map(|variant| &self.kernels[variant.kernel]);
        kernels.into_iter().any(|kernel| kernel.spec.adds_to(parameter))
    }

    /// Whether any kernel of a function reads a parameter that its previous dispatch wrote.
    pub(crate) fn continues_previous(&self, function: usize, parameter: &str) -> bool {
        let kernels = self.functions[function].variants.iter().map(|variant| &self.kernels[variant.kernel]);
        kernels.into_iter().any(|kernel| kernel.spec.continues_previous(parameter))
    }

    /// Decode steps of layers in excess of the minimum, with the reason for each. Duplicates are removed.
    pub fn extra_dispatches(&self) -> Vec<(String, String)> {
        let layers = &self.applications[1..self.applications.len() - 1];
        let mut beyond = Vec::new();
        for step in layers.iter().flat_map(|layer| &self.sections[layer.section].decode) {
            let line = step.reason.as_ref().map(|reason| (step.name.clone(), reason.clone()));
            beyond.extend(line.filter(|line| !beyond.contains(line)));
        }
        beyond
    }

    /// Maximum rows that are decoded, in one or more passes. With more, one pass of the batch schedule is faster. Tokens
    /// per second on an H200, decoded and in the batch schedule:
    /// - 30B with 8 of 128 experts: 16 rows have 1,462, and 32 and 64 have 906 and 1,582 in the batch schedule, which
    ///   loads an expert once for all rows that selected it.
    /// - 8B in f16, with MMA: 128 rows have 2,323 and 1,961, and 256 have 2,321 and 3,194. Without MMA, 64 and 128 rows
    ///   have 1,272 and 1,252.
    /// - 8B in q4_0: 128 rows have 4,203 when decoded.
    pub fn max_decoded_rows(&self) -> usize {
        let has = |holds: fn(&Spec) -> bool| self.kernels.iter().any(|kernel| holds(&kernel.spec));
        let plain = self.bytes_by_format().into_iter().filter(|(format, _)| !format.is_quantized());
        let is_plain = 2 * plain.map(|(_, bytes)| bytes).sum::<u64>() > self.weight_bytes();
        let has_float_mma = has(
            |spec| matches!(spec, Spec::Linear(linear) if linear.layout.knobs.mma && !linear.op.format.is_quantized()),
        );
        match (has(|spec| matches!(spec, Spec::ExpertsInner(_))), is_plain) {
            (true, _) => 64,
            (false, true) if has_float_mma => 128,
            (false, true) => 64,
            (false, false) => 256,
        }
    }

    /// Total size of the weights in bytes, with row padding and without file padding.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.iter().map(packed_bytes).sum()
    }
}

/// Size of one packed weight in bytes.
pub fn packed_bytes(packed: &Packed) -> u64 {
    match packed.shape[..] {
        [rows, columns] => packed.format.matrix_bytes(rows, columns),
        _ => packed.shape.iter().product::<usize>() as u64 * 4,
    }
}
