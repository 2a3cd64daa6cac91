//! Shapes of the model's layers, from the kernels of the plan.

use forge_ir::LatentCache;
use forge_kernels::Spec;
use forge_ops::{ExpertsInner, MlaAttention};
use forge_planner::Plan;

/// Query heads, KV heads and head width of the first attention layer.
pub(crate) fn attention_shape(plan: &Plan) -> Option<(usize, usize, usize)> {
    plan.kernels.iter().find_map(|kernel| match &kernel.spec {
        Spec::AttendSplit(attend) => Some((attend.op.query_heads, attend.op.key_heads, attend.op.width)),
        _ => None,
    })
}

/// Query heads and latent cache of the first MLA layer.
pub(crate) fn latent_shape(plan: &Plan) -> Option<(usize, LatentCache)> {
    mla_attention(plan)
        .map(|attend| (attend.heads, LatentCache { width: attend.width, rope_width: attend.rope_width }))
}

pub(crate) fn mla_attention(plan: &Plan) -> Option<&MlaAttention> {
    plan.kernels.iter().find_map(|kernel| match &kernel.spec {
        Spec::MlaAttention(attend) => Some(attend),
        _ => None,
    })
}

pub(crate) fn feed_forward(plan: &Plan) -> Option<usize> {
    plan.scratch.iter().find(|scratch| scratch.name == "inner").map(|scratch| scratch.width)
}

/// The gate/up kernel of the first mixture-of-experts layer.
pub(crate) fn experts_inner(plan: &Plan) -> Option<&ExpertsInner> {
    plan.kernels.iter().find_map(|kernel| match &kernel.spec {
        Spec::ExpertsInner(inner) => Some(&inner.op),
        _ => None,
    })
}

/// Experts per token and intermediate size of the first mixture-of-experts layer.
pub(crate) fn experts_shape(plan: &Plan) -> Option<(usize, usize)> {
    experts_inner(plan).map(|inner| (inner.chosen, inner.outputs / 2))
}
