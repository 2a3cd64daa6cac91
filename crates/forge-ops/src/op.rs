//! The list of operations.

use crate::attention::{Append, Attend, AttendCombine, Rope, RopeAppend};
use crate::elementwise::{Elementwise, Embed, SliceColumns};
use crate::format::Format;
use crate::head::{Argmax, ArgmaxCombine, Sample};
use crate::matmul::{Linear, Quantize};
use crate::mla::{MlaAppend, MlaAttention, MlaAttentionExpanded, MlaLoadLatents, PerHeadLinear};
use crate::moe::{ExpertsCombine, ExpertsGroup, ExpertsInner, ExpertsSum, ExpertsTiles, Route};
use crate::norm::{LayerNorm, NormAdd, RmsNorm};
use crate::recurrent::{CausalConv, DeltaChunks, DeltaRule, DeltaStep, GatedRmsNorm};
use serde::Serialize;

/// A family of operations. It has the same name in `kernels/`, in the kernel catalog and in the CPU
/// kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpFamily {
    /// Attention over a KV cache, RoPE and append.
    Attention,
    /// Embedding, elementwise functions and slices.
    Elementwise,
    /// Selection of token ids.
    Head,
    /// Linear layers.
    Matmul,
    /// Multi-head latent attention.
    Mla,
    /// Mixture of experts.
    Moe,
    /// Norms.
    Norm,
    /// Convolutions and delta rules.
    Recurrent,
}

/// One line per operation: its documentation, shape, family and name. `weights` marks operations with a
/// weight matrix.
macro_rules! operations {
    ($($(#[$doc:meta])* $family:ident $variant:ident($name:literal $(, $weights:ident)?);)*) => {
        /// An operation with its shape: what one kernel computes.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(untagged)]
        pub enum KernelOp {
            $($(#[$doc])* $variant($variant),)*
        }

        impl KernelOp {
            /// Name of the operation, and of the function that computes it on the CPU.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(KernelOp::$variant(_) => $name,)*
                }
            }

            /// The family.
            pub const fn family(&self) -> OpFamily {
                match self {
                    $(KernelOp::$variant(_) => OpFamily::$family,)*
                }
            }

            /// Format of the weight matrix that the operation reads.
            pub const fn weight_format(&self) -> Option<Format> {
                match self {
                    $($(KernelOp::$variant($weights) => Some($weights.format),)?)*
                    _ => None,
                }
            }
        }

        $(impl From<$variant> for KernelOp {
            fn from(shape: $variant) -> KernelOp {
                KernelOp::$variant(shape)
            }
        })*
    };
}

operations! {
    /// Embedding lookup: token ids to rows of the table, in f32.
    Elementwise Embed("embed", weights);
    /// RMSNorm of each row.
    Norm RmsNorm("rms_norm");
    /// RMSNorm of each row, added to another row.
    Norm NormAdd("norm_add");
    /// LayerNorm of each row.
    Norm LayerNorm("layer_norm");
    /// y = W x, with optional norm, bias and epilogue.
    Matmul Linear("linear", weights);
    /// 16-bit codes of rows of x, for integer MMA.
    Matmul Quantize("quantize");
    /// RoPE on every head of each row.
    Attention Rope("rope");
    /// Appends keys and values to the KV cache.
    Attention Append("append");
    /// QK-norm and RoPE of queries and keys; appends keys and values to the KV cache.
    Attention RopeAppend("rope_append");
    /// Attention over the KV cache.
    Attention Attend("attend");
    /// Combines the KV splits of attention.
    Attention AttendCombine("attend_combine");
    /// Per-head matmul: each head's matrix times its part of x.
    Mla PerHeadLinear("per_head_linear", weights);
    /// Appends latents and RoPE keys to the MLA cache, with optional norm and RoPE.
    Mla MlaAppend("mla_append");
    /// MLA attention in absorbed form.
    Mla MlaAttention("mla_attention");
    /// Loads a KV tile of an MLA cache as f32.
    Mla MlaLoadLatents("load_latents");
    /// MLA attention in expanded form, for many rows over one KV tile.
    Mla MlaAttentionExpanded("attend_expanded");
    /// Causal depthwise convolution.
    Recurrent CausalConv("convolve");
    /// Gated delta rule: updates the recurrent state and reads it out.
    Recurrent DeltaRule("delta_rule");
    /// Chunked delta rule for many rows, by matrix products, without the gated norm.
    Recurrent DeltaChunks("delta_chunks");
    /// RMSNorm of each head, multiplied by SiLU of the gates.
    Recurrent GatedRmsNorm("gated_rms_norm");
    /// Delta rule of one row, including the convolutions.
    Recurrent DeltaStep("delta_step");
    /// Top-k routing: experts of each row with their weights.
    Moe Route("route");
    /// Expert gate and up projections with their activation.
    Moe ExpertsInner("experts_inner", weights);
    /// Expert down projections, weighted and summed.
    Moe ExpertsSum("experts_sum", weights);
    /// Sorts rows by expert and builds tiles.
    Moe ExpertsGroup("experts_group");
    /// Grouped expert GEMM over tiles.
    Moe ExpertsTiles("experts_tiles", weights);
    /// Weighted sum of expert outputs.
    Moe ExpertsCombine("experts_combine");
    /// Elementwise function of one or two vectors.
    Elementwise Elementwise("elementwise");
    /// Column slice of wider rows.
    Elementwise SliceColumns("slice_columns");
    /// Token id of the largest logit of each row.
    Head Argmax("argmax");
    /// A sampled token id of each row.
    Head Sample("sample");
    /// Argmax of the candidates that a linear layer wrote.
    Head ArgmaxCombine("argmax_combine");
}
