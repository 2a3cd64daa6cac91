//! Specs of kernel instances: every shape, format and knob.
//!
//! A spec contains all inputs of a template. Equal specs render equal source, so the planner deduplicates
//! instances by comparing specs.
//!
//! The documentation of each spec lists the kernel's scalars and buffers in order, and its grid: threadgroups
//! along x, y and z. The planes of a weight are `<weight>_values`, or `<weight>_codes` and `<weight>_scales`.
//! Values and codes are read as packets of 16 bytes (`uint4`), scales as `half`.

use forge_ir::{Activation, Format};
use serde::Serialize;

pub use crate::attention::spec::{
    AT_ONCE, Append, Attend, AttendJoin, AttentionKnobs, Gates, HeadNorm, KvSource, Prologue, Rotate,
    RotateAppend,
};
pub(crate) use crate::matmul::spec::STRETCH;
pub use crate::matmul::spec::{DeferredNorm, Epilogue, InlineNorm, Knobs, Linear, Operand, Rows};
pub use crate::mla::spec::{
    LatentAppend, LatentAttend, LatentColumns, LatentPrepare, MlaAttentionExpanded, MlaLoadLatents,
    PerHeadLinear,
};
pub use crate::moe::spec::{
    ExpertsGroup, ExpertsInner, ExpertsJoin, ExpertsKnobs, ExpertsSum, ExpertsTiles, MOST_CHOSEN,
    MOST_EXPERTS, Route, Summed,
};
pub use crate::norm::spec::{LayerNorm, NormAdd, RmsNorm, Squares};
pub use crate::recurrent::spec::{CausalConv, DeltaChunks, DeltaRule, DeltaStep, GatedRmsNorm};

/// A kernel instance to render.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "family", rename_all = "snake_case")]
pub enum Spec {
    /// Embedding lookup: token ids to rows of the table, in f32.
    Embed(Embed),
    /// RMSNorm of each row.
    RmsNorm(RmsNorm),
    /// RMSNorm of each row, added to another row.
    NormAdd(NormAdd),
    /// LayerNorm of each row.
    LayerNorm(LayerNorm),
    /// y = W x for one row, a small batch or many rows, with optional norm, bias and epilogue.
    Project(Linear),
    /// RoPE on every head of each row.
    Rotate(Rotate),
    /// Appends keys and values to the KV cache.
    Append(Append),
    /// QK-norm and RoPE of queries and keys; appends keys and values to the KV cache.
    RotateAppend(RotateAppend),
    /// Split-KV attention for small batches.
    AttendSplit(Attend),
    /// Combines the KV splits of [`Spec::AttendSplit`].
    AttendJoin(AttendJoin),
    /// Tiled attention for many rows, with an online softmax.
    AttendTiled(Attend),
    /// Per-head matmul: each head's matrix times its part of x.
    EachHead(PerHeadLinear),
    /// Appends latents and RoPE keys to the MLA cache, with optional norm and RoPE.
    LatentAppend(LatentAppend),
    /// MLA attention in absorbed form.
    LatentAttend(LatentAttend),
    /// Loads a KV tile of an MLA cache as f32.
    LatentShare(MlaLoadLatents),
    /// MLA attention in expanded form, for many rows over one KV tile.
    AttendUnfolded(MlaAttentionExpanded),
    /// Causal depthwise convolution.
    Convolve(CausalConv),
    /// Gated delta rule: updates the recurrent state and reads it out.
    DeltaRule(DeltaRule),
    /// Chunked delta rule for many rows, by matrix products, without the gated norm.
    DeltaChunks(DeltaChunks),
    /// RMSNorm of each head, multiplied by SiLU of the gates.
    LetThrough(GatedRmsNorm),
    /// [`Spec::DeltaRule`] of one row, including the convolutions.
    DeltaStep(DeltaStep),
    /// Top-k routing: experts of each row with their weights.
    Route(Route),
    /// Expert gate and up projections with their activation.
    ExpertsInner(ExpertsInner),
    /// Expert down projections, weighted and summed.
    ExpertsSum(ExpertsSum),
    /// Sorts rows by expert and builds tiles.
    ExpertsGroup(ExpertsGroup),
    /// Grouped expert GEMM over tiles.
    ExpertsTiles(ExpertsTiles),
    /// Weighted sum of expert outputs.
    ExpertsJoin(ExpertsJoin),
    /// Elementwise function of one or two vectors.
    Elementwise(Elementwise),
    /// Column slice of wider rows.
    Take(SliceColumns),
    /// Token id of the largest logit of each row.
    Argmax(Argmax),
    /// A sampled token id of each row.
    Sample(Sample),
    /// Argmax of the candidates that [`Epilogue::Best`] wrote.
    ArgmaxJoin(ArgmaxJoin),
}

impl Spec {
    /// Whether the kernel accumulates into a buffer, that is, also reads it.
    pub fn adds_to(&self, buffer: &str) -> bool {
        match (self, buffer) {
            (Spec::NormAdd(_), "stream") => true,
            (Spec::Project(project), "y") => {
                matches!(project.epilogue, Epilogue::Add | Epilogue::AddSquares(_))
            }
            (Spec::Embed(embed), "stream") => embed.adds,
            (Spec::ExpertsSum(sum), "y") => sum.ending != Summed::Store,
            (Spec::ExpertsJoin(join), "y") => join.adds,
            (Spec::LetThrough(_), "heads") => true,
            _ => false,
        }
    }

    /// Whether the kernel continues from what its previous dispatch wrote to a buffer, except in the first.
    pub fn carries(&self, buffer: &str) -> bool {
        matches!((self, buffer), (Spec::AttendUnfolded(_), "heads" | "carried"))
    }
}

/// See [`Spec::Embed`]. Scalars: rows. Buffers: table planes, ids, \[gain,\] stream\[, gained\]\[, squares\].
/// Grid: rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Embed {
    /// Format of the table.
    pub format: Format,
    /// Rows of the table. An out-of-range id reads row 0; the host rejects such ids before.
    pub vocabulary: usize,
    /// Columns of the table.
    pub width: usize,
    /// Factor of the looked-up row.
    pub scale: f32,
    /// Whether rows are added to `stream` in place.
    pub adds: bool,
    /// Outputs for a deferred norm of the rows, if one follows. The first partial sum is that of the whole
    /// row, the others are 0.
    pub squares: Option<Squares>,
}

/// See [`Spec::Elementwise`]. Scalars: rows. Buffers: a, \[b,\] y. Grid: a row's elements in groups of 256
/// threads; rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Elementwise {
    /// The function.
    pub function: Function,
    /// Elements of a row.
    pub width: usize,
}

/// A unary function.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UnaryOp {
    /// `activation(a)`
    Activate(Activation),
    /// `c · tanh(a / c)`
    Softcap(f32),
    /// `c · a`
    Scale(f32),
}

/// A unary or binary function.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Function {
    /// `y` is this unary function of `a`.
    Each(UnaryOp),
    /// `y = a · b`
    Multiply,
    /// `y = a · b`, b being a scalar per row.
    Times,
    /// `y = b · a`, b being a scalar (f32, `[1]`).
    ScaleBy,
    /// `y = a + b`
    Add,
}

/// See [`Spec::Take`]. Scalars: rows, first. Buffers: x, y. Grid: a row of y in groups of 128 threads; rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SliceColumns {
    /// Columns of the slice, starting at `first`.
    pub width: usize,
    /// Columns of x.
    pub of: usize,
}

/// See [`Spec::Argmax`]. Scalars: rows. Buffers: logits, ids. Grid: rows. Ties go to the lowest id; NaN never
/// wins.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Argmax {
    /// Logits of a row.
    pub vocabulary: usize,
}

/// See [`Spec::Sample`]. Scalars: rows. Buffers: logits, draws, ids. Grid: rows. A row of `draws` contains
/// the words of the runtime's `DeviceSampling`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Logits of a row.
    pub vocabulary: usize,
}

/// See [`Spec::ArgmaxJoin`]. Scalars: rows. Buffers: candidates, ids. Grid: rows. Ties go to the lowest id;
/// key 0 is NaN.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ArgmaxJoin {
    /// Candidates of a row.
    pub candidates: usize,
}
