//! Embedded kernel sources: one template per kernel, template parts, and support functions.

use crate::context::{DIRECT_LINES, LINES};
use crate::spec::{Rows, Spec};

/// A file of `kernels/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Path under `kernels/`, without `.metal`.
    pub path: &'static str,
    /// File content.
    pub text: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/catalog.rs"));

/// Path of the template that renders `spec`.
pub fn template_path(spec: &Spec) -> &'static str {
    match spec {
        Spec::Embed(_) => "elementwise/embed",
        Spec::RmsNorm(_) => "norm/rms_norm",
        Spec::NormAdd(_) => "norm/norm_add",
        Spec::LayerNorm(_) => "norm/layer_norm",
        Spec::Linear(linear) => match linear.layout.rows {
            Rows::One => "matmul/gemv",
            Rows::Two | Rows::Four | Rows::Eight | Rows::Sixteen => "matmul/gemv_batch",
            Rows::Few => "matmul/small_batch",
            Rows::Many => "matmul/gemm",
        },
        Spec::Quantize(_) => "matmul/quantize",
        Spec::Rope(_) => "attention/rope",
        Spec::Append(_) => "attention/kv_append",
        Spec::RopeAppend(_) => "attention/rope_append",
        Spec::AttendSplit(_) => "attention/attend_split",
        Spec::AttendCombine(_) => "attention/attend_combine",
        Spec::AttendTiled(attend) if attend.layout.knobs.lines == LINES => "attention/attend_gqa_tiled",
        Spec::AttendTiled(attend) if attend.layout.knobs.lines == DIRECT_LINES => "attention/attend_direct",
        Spec::AttendTiled(_) => "attention/attend_tiled",
        Spec::PerHeadLinear(each) if each.op.transposed => "mla/per_head_matmul_t",
        Spec::PerHeadLinear(_) => "mla/per_head_matmul",
        Spec::MlaAppend(append) if append.prepare.is_some() => "mla/rope_append",
        Spec::MlaAppend(_) => "mla/append",
        Spec::MlaAttention(_) => "mla/attend",
        Spec::MlaLoadLatents(_) => "mla/load_latents",
        Spec::MlaAttentionExpanded(_) => "mla/attend_expanded",
        Spec::Convolve(_) => "recurrent/causal_conv1d",
        Spec::DeltaRule(_) => "recurrent/delta_rule",
        Spec::DeltaChunks(_) => "recurrent/delta_chunked",
        Spec::GatedRmsNorm(_) => "recurrent/gated_rms_norm",
        Spec::DeltaStep(_) => "recurrent/delta_step",
        Spec::Route(_) => "moe/route",
        Spec::ExpertsInner(_) => "moe/gate_up",
        Spec::ExpertsSum(_) => "moe/down",
        Spec::ExpertsGroup(_) => "moe/build_tiles",
        Spec::ExpertsTiles(_) => "moe/grouped_gemm",
        Spec::ExpertsCombine(_) => "moe/combine",
        Spec::Elementwise(_) => "elementwise/elementwise",
        Spec::SliceColumns(_) => "elementwise/slice_columns",
        Spec::Argmax(_) => "head/argmax",
        Spec::Sample(_) => "head/sample",
        Spec::ArgmaxCombine(_) => "head/argmax_combine",
    }
}
