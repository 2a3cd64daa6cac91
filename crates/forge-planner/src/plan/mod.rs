//! The plan's data: sections of steps over kernels, weights, scratch and state.

pub(crate) mod kv_cache;
pub(crate) mod print;
pub(crate) mod regime;
pub(crate) mod workload;

use crate::lower::mla_expand::MlaExpand;
use crate::plan::kv_cache::Ring;
use crate::plan::regime::{Regime, Schedule};
use forge_ir::{Format, Model, Packed};
use forge_kernels::Instance;
use serde::Serialize;

/// Everything that the generated program will do.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What is true of the whole model.
    pub model: Model,
    /// What is stored in the weight file.
    pub weights: Vec<Packed>,
    /// Of cached keys and values.
    pub cache: Format,
    /// Most positions a conversation may have.
    pub context: usize,
    /// Conversations that memory is reckoned for where it is told; a program makes room for as many as it is asked to.
    pub slots: usize,
    /// Most rows of one pass.
    pub chunk: usize,
    /// From where on many rows meet keys and values that are made of latents, if they ever do.
    pub unfold: Option<MlaExpand>,
    /// Every scratch buffer.
    pub scratch: Vec<Scratch>,
    /// Bytes of the arena that holds them.
    pub arena_bytes: usize,
    /// The least that any arena could be: the most bytes alive at one step.
    pub arena_floor: usize,
    /// Every kernel used, once.
    pub kernels: Vec<Instance>,
    /// What steps call: a kernel, or one for each regime.
    pub functions: Vec<Function>,
    /// The prologue, every distinct layer, the epilogue.
    pub sections: Vec<Section>,
    /// The applications in order: prologue, layers, epilogue.
    pub applications: Vec<Application>,
}

/// One application of a section.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Application {
    /// Which section.
    pub section: usize,
    /// For every field of the section, an index into the plan's weights.
    pub weights: Vec<usize>,
    /// Which cache it keeps or reads, counted in the order in which they are first kept.
    pub cache: Option<usize>,
    /// The first column of the aside that it takes, if it takes any.
    pub first: Option<usize>,
}

/// A buffer that lives as long as a pass.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scratch {
    /// Its name.
    pub name: String,
    /// Numbers a row.
    pub width: usize,
    /// What it has a row for.
    pub per: RowsOf,
    /// Most rows it holds.
    pub rows: usize,
    /// Its place in the arena.
    pub offset: usize,
    /// Its bytes there.
    pub bytes: usize,
    /// Where it is alive. Empty: always.
    pub lifetimes: Vec<LiveRange>,
}

/// What a buffer of a pass has a row for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RowsOf {
    /// The pass: one.
    Pass,
    /// Each row of the pass.
    Row,
    /// Each row whose logits are wanted.
    Wanted,
    /// Each position of a share that is unfolded.
    Position,
    /// Each share of the caches of a pass of few rows.
    Share,
}

/// Consecutive steps of one section in one schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LiveRange {
    /// In which schedule.
    pub schedule: Schedule,
    /// In which section.
    pub section: usize,
    /// First step.
    pub first: usize,
    /// Last step.
    pub last: usize,
}

/// Steps in order, applied once or once a layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Section {
    /// `embed`, `layer`, `head`.
    pub name: String,
    /// The weights it takes.
    pub fields: Vec<Field>,
    /// The cache it keeps or reads, if any.
    pub state: Option<State>,
    /// How many columns of the aside it takes, if any.
    pub takes: Option<usize>,
    /// What it remembers beside, in as many bytes however long a text is.
    pub memories: Vec<RecurrentState>,
    /// What a pass of one row does, in order.
    pub decode: Vec<Step>,
    /// What a pass of more rows does, in order.
    pub batch: Vec<Step>,
}

impl Section {
    /// What a schedule does, in order.
    pub fn steps(&self, schedule: Schedule) -> &[Step] {
        match schedule {
            Schedule::Decode => &self.decode,
            Schedule::Batch => &self.batch,
        }
    }

    /// The same, to be changed.
    pub(crate) fn steps_mut(&mut self, schedule: Schedule) -> &mut Vec<Step> {
        match schedule {
            Schedule::Decode => &mut self.decode,
            Schedule::Batch => &mut self.batch,
        }
    }
}

/// The cache of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct State {
    /// Key and value heads.
    pub heads: usize,
    /// Width of a head.
    pub width: usize,
    /// Whether it has values beside keys. Without, a position has a line that all heads share: a latent and a turned key.
    pub values: bool,
    /// What it keeps, if that is not every position.
    pub ring: Option<Ring>,
}

/// Numbers in f32 that one layer keeps of each slot, as many however long its text is. What they were before a slot's
/// first row is nobody's business: a row at position 0 finds zeros.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecurrentState {
    /// Its name: that of a parameter.
    pub name: String,
    /// Of a slot's numbers.
    pub shape: Vec<usize>,
}

impl RecurrentState {
    /// Numbers of a slot.
    pub fn numbers(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A weight that a section takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Field {
    /// Its role, `qkv`.
    pub name: String,
    /// What it is.
    pub kind: FieldKind,
    /// What it is made of, for people: `2048 query rows, 1024 key rows, 1024 value rows`.
    pub comment: String,
    /// Whether it belongs to whatever is applied next, and is only read here.
    pub of_next: bool,
}

/// What a field is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldKind {
    /// A matrix.
    Matrix {
        /// How it is stored.
        format: Format,
        /// Outputs.
        rows: usize,
        /// Inputs.
        columns: usize,
    },
    /// A matrix of each expert, in records of the weight file.
    Experts {
        /// How many there are.
        experts: usize,
        /// How each is stored.
        format: Format,
        /// Outputs of each.
        rows: usize,
        /// Inputs.
        columns: usize,
    },
    /// Numbers in f32.
    Vector {
        /// How many.
        width: usize,
    },
}

/// What a step calls.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// What it computes, as a formula over its parameters.
    pub formula: String,
    /// The kernels it chooses from.
    pub variants: Vec<Variant>,
}

/// A kernel and the regimes it serves.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Variant {
    /// The regimes.
    pub regimes: Vec<Regime>,
    /// Index into the plan's kernels.
    pub kernel: usize,
}

impl Function {
    /// The kernel for a regime, if the function runs there.
    pub fn kernel(&self, regime: Regime) -> Option<usize> {
        self.variants.iter().find(|variant| variant.regimes.contains(&regime)).map(|variant| variant.kernel)
    }
}

/// One dispatch, or none where its condition fails.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// What it is called.
    pub name: String,
    /// What it computes, in the words of this model.
    pub formula: String,
    /// Index into the plan's functions.
    pub function: usize,
    /// Why it is there, in a pass of one row that could do without it if nothing stood against it.
    pub reason: Option<String>,
    /// A function parameter each.
    pub arguments: Vec<Argument>,
    /// Whether it runs.
    pub condition: Condition,
    /// Whether its rows are positions of a share that is unfolded, and not rows of the pass.
    pub of_share: bool,
    /// Whether a barrier stands before it.
    pub waits: bool,
    /// The steps that the barrier is for: numbers within this section, none for what ran before the section.
    pub waits_for: Vec<Option<usize>>,
}

/// When a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// Always.
    Always,
    /// When attention was split.
    Split,
    /// When rows are many.
    Many,
    /// When rows meet latents as they are.
    Folded,
    /// When they do not, once for each share of the positions.
    Unfolded,
    /// When the likeliest ids are wanted.
    Greedy,
    /// When ids are drawn by chance, in place of these.
    Drawn,
}

/// What a parameter is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Argument {
    /// The parameter, as the kernels' signatures name it; a matrix by the name its planes share.
    pub parameter: String,
    /// What is bound to it.
    pub operand: Operand,
}

/// Something that kernels read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operand {
    /// A field of the section.
    Field(usize),
    /// A scratch buffer.
    Scratch(usize),
    /// The cached keys of this layer.
    Keys,
    /// The cached values of this layer.
    Values,
    /// The cached latents and turned keys of this layer.
    Latents,
    /// A memory of this layer.
    Memory(usize),
    /// What the host says of each row.
    Batch(BatchColumn),
    /// Where each expert's matrices lie, as the host says: which of those that are bound.
    Seats,
}

/// What the host says of each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchColumn {
    /// Its token.
    Ids,
    /// Its conversation.
    Slots,
    /// Its place there.
    Positions,
    /// Which rows the head is applied to.
    Wanted,
    /// How the token after each of those is drawn.
    Draws,
    /// The token after each of those, the likeliest or one that is drawn: what a pass says of rows, and a pass after it may be told.
    Next,
}

impl BatchColumn {
    /// Its name in generated code.
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

/// A range of bytes of something that steps share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Span {
    /// Where: an operand that is not a scratch buffer, or `None` for the arena.
    pub outside: Option<Operand>,
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    /// Whether the two share a byte.
    pub fn overlaps(&self, other: &Span) -> bool {
        self.outside == other.outside && self.start < other.end && other.start < self.end
    }
}

/// How much a pass submits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Kernels launched.
    pub dispatches: usize,
    /// Barriers.
    pub barriers: usize,
    /// Kernels launched by each layer.
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

    /// Whether any kernel of a function adds to what a parameter holds.
    pub(crate) fn adds_to(&self, function: usize, parameter: &str) -> bool {
        let kernels = self.functions[function].variants.iter().map(|variant| &self.kernels[variant.kernel]);
        kernels.into_iter().any(|kernel| kernel.spec.adds_to(parameter))
    }

    /// Whether any kernel of a function goes on with what it has left in a parameter.
    pub(crate) fn carries(&self, function: usize, parameter: &str) -> bool {
        let kernels = self.functions[function].variants.iter().map(|variant| &self.kernels[variant.kernel]);
        kernels.into_iter().any(|kernel| kernel.spec.carries(parameter))
    }

    /// Steps of layers at decode beyond the least that layers have, and why each is there; of equal ones one.
    pub fn beyond_least(&self) -> Vec<(String, String)> {
        let layers = &self.applications[1..self.applications.len() - 1];
        let mut beyond = Vec::new();
        for step in layers.iter().flat_map(|layer| &self.sections[layer.section].decode) {
            let line = step.reason.as_ref().map(|reason| (step.name.clone(), reason.clone()));
            beyond.extend(line.filter(|line| !beyond.contains(line)));
        }
        beyond
    }

    /// Bytes of the weight file's tensors, padding of rows included and of the file not.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.iter().map(packed_bytes).sum()
    }
}

/// Bytes of one packed weight.
pub fn packed_bytes(packed: &Packed) -> u64 {
    match packed.shape[..] {
        [rows, columns] => packed.format.matrix_bytes(rows, columns),
        _ => packed.shape.iter().product::<usize>() as u64 * 4,
    }
}
