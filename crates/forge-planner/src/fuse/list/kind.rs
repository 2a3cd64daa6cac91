//! The kinds of operation.

use crate::fuse::list::attention::{Attend, RopeAppend};
use crate::fuse::list::experts::{CombineInput, ExpertsInner, ExpertsSum, FusedRouting};
use crate::fuse::list::linear::{Epilogue, Linear};
use crate::fuse::list::mla::{MlaAppend, MlaAttention, PerHeadLinear};
use crate::fuse::list::recurrent::{Convolve, DeltaRule};
use crate::fuse::list::value::Gain;
use forge_ir::ParamId;
use forge_ops::{Function, RopeParameters};

/// Kind and parameters of an operation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Embedding lookup.
    Embed {
        /// Embedding table.
        table: ParamId,
        /// Factor applied to the looked-up row.
        scale: f32,
        /// Output for the deferred norm that reads the row.
        next_norm: Option<Gain>,
    },
    /// Learned position embedding, added in place.
    PositionEmbedding {
        /// Position table.
        table: ParamId,
    },
    /// LayerNorm.
    LayerNorm {
        /// Factor of the result.
        gain: ParamId,
        /// Added to the result.
        bias: Option<ParamId>,
        /// Added to the variance.
        epsilon: f32,
    },
    /// RMSNorm of each of `parts` equal parts.
    Norm {
        /// `None` if folded into the weights that read the result.
        gain: Option<ParamId>,
        /// Number of parts of a value.
        parts: usize,
        /// Added to the mean of squares.
        epsilon: f32,
    },
    /// Norm of the first input, added to the second in place.
    NormAdd(NormAdd),
    /// Linear: several weights applied to one input.
    Linear(Linear),
    /// Columns of a wider value; no dispatch.
    Slice {
        /// First column.
        first: usize,
    },
    /// RoPE on every head.
    Rope {
        /// Number of heads.
        heads: usize,
        /// Frequencies and pairing.
        rope: RopeParameters,
    },
    /// Writes keys and values to the KV cache. It has no output value.
    Append {
        /// The cache.
        cache: ParamId,
    },
    /// RoPE and optional QK-norm on concatenated q, k, v; appends k and v to the KV cache. The output is the
    /// rotated queries.
    RopeAppend(RopeAppend),
    /// Attention over a KV cache that already contains the rows' own keys and values, or that a prologue
    /// appends to.
    Attend(Attend),
    /// Per-head linear: each head's matrix times its part of the value.
    PerHeadLinear(PerHeadLinear),
    /// Writes latents and RoPE keys to the MLA cache.
    MlaAppend(MlaAppend),
    /// MLA attention in absorbed form.
    MlaAttention(MlaAttention),
    /// Causal depthwise convolution.
    Convolve(Convolve),
    /// Gated delta rule: updates the recurrent state with the row and reads it out.
    DeltaRule(DeltaRule),
    /// Top-k routing: expert indices and weights of each row (its routes).
    Route(FusedRouting),
    /// Expert gate and up projections with their activation.
    ExpertsInner(ExpertsInner),
    /// Expert down projections, weighted and summed.
    ExpertsSum(ExpertsSum),
    /// Elementwise function.
    Elementwise(Function),
    /// Multiplication by a scalar weight.
    ScaleBy {
        /// The scalar.
        factor: ParamId,
    },
    /// The first input is the result; the second becomes the per-layer inputs. No dispatch.
    StorePerLayerInputs,
    /// Columns of the per-layer inputs.
    PerLayerInput,
    /// An operation without a kernel.
    Unplanned,
}

/// A norm whose result is added to a value in place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NormAdd {
    /// Factor of the normalized value.
    pub(crate) gain: Option<ParamId>,
    /// Added to the mean of squares.
    pub(crate) epsilon: f32,
    /// Scalar weight that multiplies the sum.
    pub(crate) factor: Option<ParamId>,
    /// Output for the deferred norm that reads the sum.
    pub(crate) next_norm: Option<Gain>,
}

impl Kind {
    /// Whether it adds its result to its last input in place and has no other output.
    pub(crate) fn adds(&self) -> bool {
        match self {
            Kind::Linear(linear) => linear.ending == Epilogue::Add,
            Kind::NormAdd(norm) => norm.next_norm.is_none(),
            Kind::ExpertsSum(sum) => sum.ending == CombineInput::Add,
            _ => false,
        }
    }

    /// Makes it add its result to its last input in place.
    pub(crate) fn add(&mut self) {
        match self {
            Kind::Linear(linear) => linear.ending = Epilogue::Add,
            Kind::ExpertsSum(sum) => sum.ending = CombineInput::Add,
            _ => {}
        }
    }

    /// Makes it also write what the deferred norm of its sum needs.
    pub(crate) fn write_squares(&mut self, gain: Gain) {
        match self {
            Kind::Embed { next_norm, .. } => *next_norm = Some(gain),
            Kind::NormAdd(norm) => norm.next_norm = Some(gain),
            Kind::Linear(linear) => linear.ending = Epilogue::AddSquares(gain),
            Kind::ExpertsSum(sum) => sum.ending = CombineInput::AddSquares(gain),
            _ => {}
        }
    }

    /// The matrices that it multiplies its first input by, if it is a matrix multiplication.
    pub(crate) fn matrices(&self) -> Option<Vec<ParamId>> {
        match self {
            Kind::Linear(linear) => Some(linear.parts.iter().map(|part| part.0).collect()),
            Kind::ExpertsInner(inner) => Some(inner.stacks()),
            _ => None,
        }
    }

    /// Whether it performs the division of a deferred norm on its first input.
    pub(crate) fn divides(&self) -> bool {
        match self {
            Kind::Linear(linear) => linear.norm.is_some() || linear.own_norm.is_some(),
            Kind::ExpertsInner(inner) => inner.norm.is_some(),
            _ => false,
        }
    }

    /// Makes it perform the division of its input's norm.
    pub(crate) fn divide(&mut self, epsilon: f32) {
        match self {
            Kind::Linear(linear) => linear.norm = Some(epsilon),
            Kind::ExpertsInner(inner) => inner.norm = Some(epsilon),
            _ => {}
        }
    }

    /// Folds a gain into its matrices.
    pub(crate) fn fold(&mut self, gain: Option<ParamId>) {
        match self {
            Kind::Linear(linear) => linear.folded = gain,
            Kind::ExpertsInner(inner) => inner.folded = gain,
            _ => {}
        }
    }
}
