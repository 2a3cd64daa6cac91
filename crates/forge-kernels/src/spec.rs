//! Specs of kernel instances: an operation and the layout of its kernel.
//!
//! A spec contains all inputs of a template. Equal specs render equal source, so the planner deduplicates
//! instances by comparing specs.

use forge_ops::{
    Append, Argmax, ArgmaxCombine, Attend, AttendCombine, CausalConv, DeltaChunks, DeltaRule, DeltaStep,
    Elementwise, Embed, Epilogue, ExpertsCombine, ExpertsGroup, ExpertsInner, ExpertsSum, ExpertsTiles,
    GatedRmsNorm, KernelOp, LayerNorm, Linear, MlaAppend, MlaAttention, MlaAttentionExpanded, MlaLoadLatents,
    NormAdd, PerHeadLinear, Quantize, RmsNorm, Rope, RopeAppend, Route, Sample, SliceColumns,
};
use serde::Serialize;

pub use crate::attention::spec::{AT_ONCE, AttentionKnobs, AttentionLayout, CombineLayout, quantizes_heads};
pub use crate::matmul::spec::{Knobs, LinearLayout, Operand, Rows, STRETCH};
pub use crate::mla::spec::{MlaExpandedLayout, PerHeadLayout, mla_attention_heads};
pub use crate::moe::spec::{ExpertsKnobs, ExpertsLayout, ExpertsTileLayout, MOST_CHOSEN, MOST_EXPERTS};
pub use crate::recurrent::spec::ChunkLayout;

/// An operation and the layout of its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Kernel<O, L> {
    /// What is computed.
    #[serde(flatten)]
    pub op: O,
    /// How the work is divided.
    #[serde(flatten)]
    pub layout: L,
}

impl<O, L> Kernel<O, L> {
    /// The kernel of a changed operation.
    pub fn with_op(self, change: impl FnOnce(O) -> O) -> Kernel<O, L> {
        Kernel { op: change(self.op), layout: self.layout }
    }

    /// The kernel with a changed layout.
    pub fn with_layout(self, change: impl FnOnce(L) -> L) -> Kernel<O, L> {
        Kernel { op: self.op, layout: change(self.layout) }
    }
}

/// A linear layer.
pub type LinearKernel = Kernel<Linear, LinearLayout>;
/// Attention over the KV cache.
pub type AttendKernel = Kernel<Attend, AttentionLayout>;
/// The combination of KV splits.
pub type CombineKernel = Kernel<AttendCombine, CombineLayout>;
/// A per-head matmul.
pub type PerHeadKernel = Kernel<PerHeadLinear, PerHeadLayout>;
/// MLA attention in expanded form.
pub type MlaExpandedKernel = Kernel<MlaAttentionExpanded, MlaExpandedLayout>;
/// A chunked delta rule.
pub type DeltaChunksKernel = Kernel<DeltaChunks, ChunkLayout>;
/// Expert gate and up projections.
pub type ExpertsInnerKernel = Kernel<ExpertsInner, ExpertsLayout>;
/// Expert down projections.
pub type ExpertsSumKernel = Kernel<ExpertsSum, ExpertsLayout>;
/// A grouped expert GEMM.
pub type ExpertsTilesKernel = Kernel<ExpertsTiles, ExpertsTileLayout>;

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
    Linear(LinearKernel),
    /// 16-bit codes of rows of x, for integer MMA.
    Quantize(Quantize),
    /// RoPE on every head of each row.
    Rope(Rope),
    /// Appends keys and values to the KV cache.
    Append(Append),
    /// QK-norm and RoPE of queries and keys; appends keys and values to the KV cache.
    RopeAppend(RopeAppend),
    /// Split-KV attention for small batches.
    AttendSplit(AttendKernel),
    /// Combines the KV splits of [`Spec::AttendSplit`].
    AttendCombine(CombineKernel),
    /// Tiled attention for many rows, with an online softmax.
    AttendTiled(AttendKernel),
    /// Per-head matmul: each head's matrix times its part of x.
    PerHeadLinear(PerHeadKernel),
    /// Appends latents and RoPE keys to the MLA cache, with optional norm and RoPE.
    MlaAppend(MlaAppend),
    /// MLA attention in absorbed form.
    MlaAttention(MlaAttention),
    /// Loads a KV tile of an MLA cache as f32.
    MlaLoadLatents(MlaLoadLatents),
    /// MLA attention in expanded form, for many rows over one KV tile.
    MlaAttentionExpanded(MlaExpandedKernel),
    /// Causal depthwise convolution.
    Convolve(CausalConv),
    /// Gated delta rule: updates the recurrent state and reads it out.
    DeltaRule(DeltaRule),
    /// Chunked delta rule for many rows, by matrix products, without the gated norm.
    DeltaChunks(DeltaChunksKernel),
    /// RMSNorm of each head, multiplied by SiLU of the gates.
    GatedRmsNorm(GatedRmsNorm),
    /// [`Spec::DeltaRule`] of one row, including the convolutions.
    DeltaStep(DeltaStep),
    /// Top-k routing: experts of each row with their weights.
    Route(Route),
    /// Expert gate and up projections with their activation.
    ExpertsInner(ExpertsInnerKernel),
    /// Expert down projections, weighted and summed.
    ExpertsSum(ExpertsSumKernel),
    /// Sorts rows by expert and builds tiles.
    ExpertsGroup(ExpertsGroup),
    /// Grouped expert GEMM over tiles.
    ExpertsTiles(ExpertsTilesKernel),
    /// Weighted sum of expert outputs.
    ExpertsCombine(ExpertsCombine),
    /// Elementwise function of one or two vectors.
    Elementwise(Elementwise),
    /// Column slice of wider rows.
    SliceColumns(SliceColumns),
    /// Token id of the largest logit of each row.
    Argmax(Argmax),
    /// A sampled token id of each row.
    Sample(Sample),
    /// Argmax of the candidates that [`Epilogue::Best`] wrote.
    ArgmaxCombine(ArgmaxCombine),
}

impl Spec {
    /// Operand type of the tensors that the kernel multiplies in Metal 4; `None` if it multiplies none.
    pub fn tensor_operand(&self) -> Option<Operand> {
        match self {
            Spec::Linear(linear) => Some(linear.layout.operand).filter(|_| linear.has_tensors()),
            Spec::ExpertsTiles(tiles) => Some(tiles.layout.operand).filter(|_| tiles.has_tensors()),
            Spec::AttendTiled(attend) => {
                Some(Operand::F16).filter(|_| crate::attention::direct::has_tensors(attend))
            }
            _ => None,
        }
    }

    /// The operation, without the layout of its kernel.
    pub fn op(&self) -> KernelOp {
        match self {
            Spec::Embed(op) => (*op).into(),
            Spec::RmsNorm(op) => (*op).into(),
            Spec::NormAdd(op) => (*op).into(),
            Spec::LayerNorm(op) => (*op).into(),
            Spec::Linear(kernel) => kernel.op.into(),
            Spec::Quantize(op) => (*op).into(),
            Spec::Rope(op) => op.clone().into(),
            Spec::Append(op) => (*op).into(),
            Spec::RopeAppend(op) => op.clone().into(),
            Spec::AttendSplit(kernel) | Spec::AttendTiled(kernel) => kernel.op.clone().into(),
            Spec::AttendCombine(kernel) => kernel.op.into(),
            Spec::PerHeadLinear(kernel) => kernel.op.into(),
            Spec::MlaAppend(op) => op.clone().into(),
            Spec::MlaAttention(op) => op.clone().into(),
            Spec::MlaLoadLatents(op) => (*op).into(),
            Spec::MlaAttentionExpanded(kernel) => kernel.op.into(),
            Spec::Convolve(op) => (*op).into(),
            Spec::DeltaRule(op) => (*op).into(),
            Spec::DeltaChunks(kernel) => kernel.op.into(),
            Spec::GatedRmsNorm(op) => (*op).into(),
            Spec::DeltaStep(op) => (*op).into(),
            Spec::Route(op) => (*op).into(),
            Spec::ExpertsInner(kernel) => kernel.op.into(),
            Spec::ExpertsSum(kernel) => kernel.op.into(),
            Spec::ExpertsGroup(op) => (*op).into(),
            Spec::ExpertsTiles(kernel) => kernel.op.into(),
            Spec::ExpertsCombine(op) => (*op).into(),
            Spec::Elementwise(op) => (*op).into(),
            Spec::SliceColumns(op) => (*op).into(),
            Spec::Argmax(op) => (*op).into(),
            Spec::Sample(op) => (*op).into(),
            Spec::ArgmaxCombine(op) => (*op).into(),
        }
    }

    /// Whether the kernel accumulates into a buffer, that is, also reads it.
    pub fn adds_to(&self, buffer: &str) -> bool {
        match (self, buffer) {
            (Spec::NormAdd(_), "stream") => true,
            (Spec::Linear(linear), "y") => {
                matches!(linear.op.epilogue, Epilogue::Add | Epilogue::AddSquares(_))
            }
            (Spec::Embed(embed), "stream") => embed.adds,
            (Spec::ExpertsSum(sum), "y") => sum.op.epilogue != Epilogue::Store,
            (Spec::ExpertsCombine(combine), "y") => combine.adds,
            (Spec::GatedRmsNorm(_), "heads") => true,
            _ => false,
        }
    }

    /// Whether the kernel continues from what its previous dispatch wrote to a buffer, except in the first.
    pub fn continues_previous(&self, buffer: &str) -> bool {
        matches!((self, buffer), (Spec::MlaAttentionExpanded(_), "heads" | "carried"))
    }
}
