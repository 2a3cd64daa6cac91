//! What a kernel instance is asked to be: every shape, format and knob, before any text exists.
//!
//! A spec says all that a template may know; what follows from it is computed beside its fields. Two equal specs render
//! the same text, so the planner deduplicates instances by comparing specs.
//!
//! Each spec's documentation names the kernel's scalars and buffers in their order, and its grid: threadgroups along
//! x, y and z. "Planes" of a weight are `<weight>_values`, or `<weight>_codes` and `<weight>_scales`; values and codes are
//! read as packets of 16 bytes (`uint4`), scales as `half`.

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

/// A kernel instance to be rendered.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "family", rename_all = "snake_case")]
pub enum Spec {
    /// ids -> rows of the table, widened to f32.
    Embed(Embed),
    /// Root-mean-square norm of each row.
    RmsNorm(RmsNorm),
    /// Root-mean-square norm of each row, added to another.
    NormAdd(NormAdd),
    /// Layer norm of each row.
    LayerNorm(LayerNorm),
    /// y = W x for one row or a few or many, with a bias before and an epilogue after.
    Project(Linear),
    /// Every head of each row turned by the row's position.
    Rotate(Rotate),
    /// Keys and values to the cache.
    Append(Append),
    /// Norm and rotate queries and keys, append keys and values to the cache.
    RotateAppend(RotateAppend),
    /// Attention of few rows, split over the cache.
    AttendSplit(Attend),
    /// Joins the splits of [`Spec::AttendSplit`].
    AttendJoin(AttendJoin),
    /// Attention of many rows with an online softmax.
    AttendTiled(Attend),
    /// Every head's own matrix times its part of x.
    EachHead(PerHeadLinear),
    /// Latents and turned keys to the cache, with what prepares them and queries if there is something.
    LatentAppend(LatentAppend),
    /// Attention over latents that all heads share.
    LatentAttend(LatentAttend),
    /// Lines of a share of a cache as numbers.
    LatentShare(MlaLoadLatents),
    /// Attention of many rows over keys and values that were made of a share of the latents.
    AttendUnfolded(MlaAttentionExpanded),
    /// Each channel's last values times its taps.
    Convolve(CausalConv),
    /// What memories say to queries when they have learnt keys and values.
    DeltaRule(DeltaRule),
    /// The same of many rows, by products of matrices, and before heads are normed.
    DeltaChunks(DeltaChunks),
    /// Of what heads say, normed, what their gates let through.
    LetThrough(GatedRmsNorm),
    /// The same of one row, with the convolutions before it.
    DeltaStep(DeltaStep),
    /// The experts of each row and their weights.
    Route(Route),
    /// What each of a row's experts makes of it, up to its last projection.
    ExpertsInner(ExpertsInner),
    /// The last projections of a row's experts, weighed and summed.
    ExpertsSum(ExpertsSum),
    /// The rows of each expert, in tiles.
    ExpertsGroup(ExpertsGroup),
    /// Experts' products with the rows of tiles.
    ExpertsTiles(ExpertsTiles),
    /// What a row's experts have made of it, weighed and summed.
    ExpertsJoin(ExpertsJoin),
    /// One function of one or two vectors, element by element.
    Elementwise(Elementwise),
    /// Columns of wider rows.
    Take(SliceColumns),
    /// The id of the largest logit of each row.
    Argmax(Argmax),
    /// An id of each row, drawn by chance.
    Sample(Sample),
    /// The best of the candidates that [`Epilogue::Best`] left.
    ArgmaxJoin(ArgmaxJoin),
}

impl Spec {
    /// Whether the kernel adds to what a buffer holds: it reads what it writes.
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

    /// Whether the kernel goes on with what its dispatch before has left in a buffer, unless it is the first.
    pub fn carries(&self, buffer: &str) -> bool {
        matches!((self, buffer), (Spec::AttendUnfolded(_), "heads" | "carried"))
    }
}

/// See [`Spec::Embed`]. Scalars: rows. Buffers: table planes, ids, \[gain,\] stream\[, gained\]\[, squares\]. Grid: rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Embed {
    /// Of the table.
    pub format: Format,
    /// Rows of the table. An id outside reads row 0: the host has refused it already.
    pub vocabulary: usize,
    /// Columns of the table.
    pub width: usize,
    /// Multiplies what is looked up; 1 where a model leaves it as it is.
    pub scale: f32,
    /// Whether it is added to what `stream` holds, in place.
    pub adds: bool,
    /// What a deferred norm of the rows needs, if one follows. Its first partial sum is the row's whole, the others 0.
    pub squares: Option<Squares>,
}

/// See [`Spec::Elementwise`]. Scalars: rows. Buffers: a, \[b,\] y. Grid: by 256 threads over all numbers of a row; rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Elementwise {
    /// Which function.
    pub function: Function,
    /// Numbers a row.
    pub width: usize,
}

/// A function of one number.
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

/// A function of one or two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Function {
    /// `y` is this function of `a`.
    Each(UnaryOp),
    /// `y = a · b`
    Multiply,
    /// `y = a · b`, where b is one number for each row.
    Times,
    /// `y = b · a`, b being one number (f32, `[1]`).
    ScaleBy,
    /// `y = a + b`
    Add,
}

/// See [`Spec::Take`]. Scalars: rows, first. Buffers: x, y. Grid: by 128 threads a row of y; rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SliceColumns {
    /// Columns that are taken, from `first` on.
    pub width: usize,
    /// Columns that there are.
    pub of: usize,
}

/// See [`Spec::Argmax`]. Scalars: rows. Buffers: logits, ids. Grid: rows. Of equals the lowest id wins; what is not a
/// number never does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Argmax {
    /// Logits a row.
    pub vocabulary: usize,
}

/// See [`Spec::Sample`]. Scalars: rows. Buffers: logits, draws, ids. Grid: rows. A draw is words, those of the runtime's `DeviceSampling`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Logits a row.
    pub vocabulary: usize,
}

/// See [`Spec::ArgmaxJoin`]. Scalars: rows. Buffers: candidates, ids. Grid: rows. Of equal keys the lowest id wins; key 0 is
/// no number.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ArgmaxJoin {
    /// Candidates a row.
    pub candidates: usize,
}
