//! The plan's data types: sections of steps, kernels, weights, scratch and state.

pub(crate) mod kv_cache;
pub(crate) mod print;
pub(crate) mod regime;
pub(crate) mod workload;

use crate::lower::mla_expand::MlaExpand;
use crate::plan::kv_cache::Ring;
use crate::plan::regime::{Regime, Schedule};
use forge_ir::{Model, Packed};
use forge_kernels::Instance;
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

/// One application of a section.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Application {
    /// Index of the section.
    pub section: usize,
    /// Index into the plan's weights, for each field of the section.
    pub weights: Vec<usize>,
    /// Index of the cache that is written or read. Caches are numbered in the order of first use.
    pub cache: Option<usize>,
    /// First column of the per-layer inputs that this layer reads, if it reads any.
    pub first: Option<usize>,
}

/// A buffer that is live within one pass.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scratch {
    /// Name of the buffer.
    pub name: String,
    /// Elements (f32) of a row.
    pub width: usize,
    /// What one row belongs to.
    pub per: RowsOf,
    /// Maximum number of rows.
    pub rows: usize,
    /// Byte offset in the arena.
    pub offset: usize,
    /// Size in bytes.
    pub bytes: usize,
    /// Live ranges. Empty: always live.
    pub lifetimes: Vec<LiveRange>,
}

/// What one row of a scratch buffer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RowsOf {
    /// The pass: a single row.
    Pass,
    /// A row of a decode pass.
    DecodeRow,
    /// A row of the pass.
    Row,
    /// A row whose logits are requested.
    Wanted,
    /// A position of an expanded KV tile.
    Position,
    /// A KV split of split-KV attention.
    Split,
}

/// Consecutive steps of one section in one schedule, during which a buffer is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LiveRange {
    /// The schedule.
    pub schedule: Schedule,
    /// Index of the section.
    pub section: usize,
    /// First step.
    pub first: usize,
    /// Last step.
    pub last: usize,
}

/// A body as planned: its steps, executed once, or once for each layer that shares it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Section {
    /// `embed`, `layer`, `head`.
    pub name: String,
    /// Weights that the section reads.
    pub fields: Vec<Field>,
    /// Cache that the section writes or reads, if any.
    pub state: Option<State>,
    /// Number of columns of the per-layer inputs that the section reads, if any.
    pub per_layer_input_columns: Option<usize>,
    /// Recurrent states of the section. Their size does not depend on the context length.
    pub recurrent_states: Vec<RecurrentState>,
    /// Steps of a decode pass, in order.
    pub decode: Vec<Step>,
    /// Steps of a batch pass, in order.
    pub batch: Vec<Step>,
}

impl Section {
    /// The steps of a schedule, in order.
    pub fn steps(&self, schedule: Schedule) -> &[Step] {
        match schedule {
            Schedule::Decode => &self.decode,
            Schedule::Batch => &self.batch,
        }
    }

    /// Mutable access to [`Section::steps`].
    pub(crate) fn steps_mut(&mut self, schedule: Schedule) -> &mut Vec<Step> {
        match schedule {
            Schedule::Decode => &mut self.decode,
            Schedule::Batch => &mut self.batch,
        }
    }
}

/// The KV cache of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct State {
    /// Number of KV heads.
    pub heads: usize,
    /// Elements of a head.
    pub width: usize,
    /// Whether values are stored besides keys. False for MLA, where a position has one line that all heads
    /// share: a latent and a RoPE key.
    pub values: bool,
    /// Ring buffer of a sliding window. `None`: every position is kept.
    pub ring: Option<Ring>,
}

/// Recurrent state of one layer: f32 elements of each slot, independent of the context length. Kernels read
/// zeros at position 0, so the initial content does not matter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecurrentState {
    /// Name of the body's parameter.
    pub name: String,
    /// Shape for one slot.
    pub shape: Vec<usize>,
}

impl RecurrentState {
    /// Elements of one slot.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A weight that a section reads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Field {
    /// Role, such as `qkv`.
    pub name: String,
    /// Kind and shape.
    pub kind: FieldKind,
    /// Description of its parts: `2048 query rows, 1024 key rows, 1024 value rows`.
    pub comment: String,
    /// Whether it belongs to the next application, and is only read by this one.
    pub of_next: bool,
}

/// Kind and shape of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldKind {
    /// A matrix.
    Matrix {
        /// Number format.
        format: Format,
        /// Outputs (rows).
        rows: usize,
        /// Inputs (columns).
        columns: usize,
    },
    /// One matrix for each expert, in records of the weight file.
    Experts {
        /// Number of experts.
        experts: usize,
        /// Number format.
        format: Format,
        /// Outputs (rows) of each expert.
        rows: usize,
        /// Inputs (columns).
        columns: usize,
    },
    /// An f32 vector.
    Vector {
        /// Number of elements.
        width: usize,
    },
}

/// What a step calls: a kernel for each regime.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Function {
    /// Name of the function.
    pub name: String,
    /// What the function computes, as a formula over its parameters.
    pub formula: String,
    /// The kernels, one of which is selected by regime.
    pub variants: Vec<Variant>,
}

/// A kernel and the regimes that use it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Variant {
    /// The regimes.
    pub regimes: Vec<Regime>,
    /// Index into the plan's kernels.
    pub kernel: usize,
}

impl Function {
    /// The kernel for a regime, if the function runs in it.
    pub fn kernel(&self, regime: Regime) -> Option<usize> {
        self.variants.iter().find(|variant| variant.regimes.contains(&regime)).map(|variant| variant.kernel)
    }
}

/// One dispatch. It is skipped if its condition is false.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Name of the step.
    pub name: String,
    /// What the step computes, as a formula over this model's values.
    pub formula: String,
    /// Index into the plan's functions.
    pub function: usize,
    /// Why the step is a separate dispatch, in decode, if it could have been fused.
    pub reason: Option<String>,
    /// One argument for each parameter of the function.
    pub arguments: Vec<Argument>,
    /// When the step runs.
    pub condition: Condition,
    /// Whether its rows are positions of an expanded KV tile instead of rows of the pass.
    pub of_tile: bool,
    /// Whether a barrier precedes the step.
    pub waits: bool,
    /// Steps that the barrier waits for: indices in this section, `None` for steps of earlier sections.
    pub waits_for: Vec<Option<usize>>,
}

/// When a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// Always.
    Always,
    /// If attention is split over KV (split-KV).
    Split,
    /// In passes of several rows.
    SeveralRows,
    /// In passes with several rows of one slot.
    SharedSlots,
    /// In passes of many rows (prefill).
    Many,
    /// If MLA runs in absorbed form.
    Absorbed,
    /// If MLA runs in expanded form; once for each KV tile.
    Expanded,
    /// If argmax tokens are requested.
    Greedy,
    /// If tokens are sampled on the device, instead of [`Condition::Greedy`].
    Drawn,
}

/// A parameter and its operand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Argument {
    /// Parameter name in the kernels' signatures. For a matrix, the common name of its planes.
    pub parameter: String,
    /// Operand bound to the parameter.
    pub operand: Operand,
}

/// A buffer that kernels read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operand {
    /// Field of the section, by index.
    Field(usize),
    /// Scratch buffer, by index.
    Scratch(usize),
    /// Key cache of this layer.
    Keys,
    /// Value cache of this layer.
    Values,
    /// MLA cache of this layer: latents and RoPE keys.
    Latents,
    /// Recurrent state of this layer, by index.
    RecurrentState(usize),
    /// A per-row input from the host.
    Batch(BatchColumn),
    /// Slot table of the expert cache: where the matrices of each expert are, filled in by the host.
    ExpertSlots,
}

/// A per-row input or output of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchColumn {
    /// Token id of the row.
    Ids,
    /// Slot (sequence) of the row.
    Slots,
    /// Position of the row in its sequence.
    Positions,
    /// Indices of the rows whose logits are requested.
    Wanted,
    /// Sampling parameters for each requested row.
    Draws,
    /// Next token of each requested row, by argmax or sampling. A pass writes it, and the next pass may read
    /// it as input.
    Next,
}

impl BatchColumn {
    /// Name in generated code.
    pub fn name(self) -> &'static str {
        match self {
            BatchColumn::Ids => "ids",
            BatchColumn::Slots => "slots",
            BatchColumn::Positions => "positions",
            BatchColumn::Wanted => "wanted",
            BatchColumn::Draws => "draws",
            BatchColumn::Next => "next",
        }
    }
}

/// A byte range of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Span {
    /// The buffer: an operand other than scratch, or `None` for the arena.
    pub outside: Option<Operand>,
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    /// Whether the ranges share a byte.
    pub fn overlaps(&self, other: &Span) -> bool {
        self.outside == other.outside && self.start < other.end && other.start < self.end
    }
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
