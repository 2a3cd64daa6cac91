//! Fusion rules, one per file, grouped by the kernel family that they concern. A rule preserves what a list
//! computes. Its file states the algebra as an equation and lists the preconditions, and tests both. If a
//! precondition fails, the list is unchanged.
//!
//! The decode list (one row) and the batch list start out equal. Most rules apply to both. The last ones
//! remove dispatches at the cost of arithmetic that is only affordable, or only correct, for one row.

mod attention;
mod head;
mod matmul;
mod mla;
mod moe;
mod norm;
mod recurrent;
#[cfg(test)]
pub(crate) mod tests;

use crate::formats::Formats;
use crate::fuse::list::Fused;
use crate::options::Options;
use forge_ir::{BodyId, Graph};
use serde::Serialize;

/// A fusion that can be disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fusion {
    /// Gate, up and the gated activation in one projection.
    FuseGateUp,
    /// Shared experts as additional routed experts.
    MergeSharedExperts,
    /// Queries, keys and values in one projection; for MLA, all projections of one value.
    FuseQkv,
    /// RoPE, norm of heads or latents, and cache append in one step.
    FuseRopeKvAppend,
    /// Gated DeltaNet: one projection, one convolution and one delta rule, including gates and norm.
    FuseDeltaNet,
    /// A unary function (softcap, scale, activation) in the projection before it.
    FuseUnary,
    /// The attention output gate in attention, with gates projected together with q, k, v.
    FuseAttentionGate,
    /// The scalar gate of a branch before its last projection.
    HoistGate,
    /// Two branches added to the residual stream in sequence.
    SplitResidualSum,
    /// Additions to the residual stream in the projection or experts before them.
    Residual,
    /// Norm of a branch, its addition to the residual stream and a scalar factor in one step.
    NormAdd,
    /// Gains of norms folded into the weights after them.
    FoldGain,
    /// RoPE, QK-norm and cache append in attention.
    AttentionPrologue,
    /// The convolution in the delta rule.
    DeltaPrologue,
    /// Multiplication by the layer's per-layer inputs in the projection before it.
    FusePerLayerInput,
    /// Top-k routing in the expert kernels.
    FuseRouting,
    /// Norms divided out in the projections after them, which compute the sum of squares if their producer
    /// does not.
    DeferredNorm,
    /// The first stage of argmax in the head.
    HeadArgmax,
}

impl Fusion {
    /// All fusions, in the order in which they are applied.
    pub const ALL: [Fusion; 18] = [
        Fusion::FuseGateUp,
        Fusion::MergeSharedExperts,
        Fusion::FuseQkv,
        Fusion::FuseRopeKvAppend,
        Fusion::FuseDeltaNet,
        Fusion::FuseUnary,
        Fusion::FuseAttentionGate,
        Fusion::HoistGate,
        Fusion::SplitResidualSum,
        Fusion::Residual,
        Fusion::NormAdd,
        Fusion::FoldGain,
        Fusion::AttentionPrologue,
        Fusion::DeltaPrologue,
        Fusion::FusePerLayerInput,
        Fusion::FuseRouting,
        Fusion::DeferredNorm,
        Fusion::HeadArgmax,
    ];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Fusion::FuseGateUp => "fuse_gate_up",
            Fusion::MergeSharedExperts => "merge_shared_experts",
            Fusion::FuseQkv => "fuse_qkv",
            Fusion::FuseRopeKvAppend => "fuse_rope_kv_append",
            Fusion::FuseDeltaNet => "fuse_delta_net",
            Fusion::FuseUnary => "fuse_unary",
            Fusion::FuseAttentionGate => "fuse_attention_gate",
            Fusion::HoistGate => "hoist_gate",
            Fusion::SplitResidualSum => "split_residual_sum",
            Fusion::Residual => "residual",
            Fusion::NormAdd => "norm_add",
            Fusion::FoldGain => "fold_gain",
            Fusion::AttentionPrologue => "attention_prologue",
            Fusion::DeltaPrologue => "delta_prologue",
            Fusion::FusePerLayerInput => "fuse_per_layer_input",
            Fusion::FuseRouting => "fuse_routing",
            Fusion::DeferredNorm => "deferred_norm",
            Fusion::HeadArgmax => "head_argmax",
        }
    }

    /// The fusion with this name.
    pub fn from_name(name: &str) -> Option<Fusion> {
        Fusion::ALL.into_iter().find(|fusion| fusion.name() == name)
    }

    /// A fusion that this one depends on: without it, no kernel can read the result.
    pub const fn needs(self) -> Option<Fusion> {
        match self {
            Fusion::FuseQkv => Some(Fusion::FuseRopeKvAppend),
            Fusion::SplitResidualSum => Some(Fusion::Residual),
            _ => None,
        }
    }
}

/// The lists of every body, for decode and for larger batches.
pub(crate) struct Lists {
    pub(crate) decode: Vec<Fused>,
    pub(crate) batch: Vec<Fused>,
}

/// Builds every body's list and applies all enabled rules.
pub(crate) fn apply(graph: &Graph, formats: &Formats, options: &Options) -> Lists {
    let on = |fusion: Fusion| {
        let enabled = |fusion| !options.disabled.contains(&fusion);
        enabled(fusion) && fusion.needs().is_none_or(enabled)
    };
    let of = |(index, body)| {
        // All applications of a body have the same parameter formats.
        let first = graph.applications().find(|apply| apply.body == BodyId(index));
        let formats = first.map_or_else(Vec::new, |apply| formats.of_params(body, apply));
        Fused::of(BodyId(index), body, graph.widths(body), formats)
    };
    let mut lists: Vec<Fused> = graph.bodies.iter().enumerate().map(of).collect();
    let simple: [(Fusion, Rewrite); 13] = [
        (Fusion::FuseGateUp, crate::fuse::rules::matmul::gate_up::rewrite),
        (Fusion::MergeSharedExperts, crate::fuse::rules::moe::merge_shared_experts::rewrite),
        (Fusion::FuseQkv, crate::fuse::rules::attention::qkv::rewrite),
        (Fusion::FuseRopeKvAppend, crate::fuse::rules::attention::rope_append::rewrite),
        (Fusion::FuseRopeKvAppend, crate::fuse::rules::mla::mla_append::rewrite),
        (Fusion::FuseQkv, crate::fuse::rules::mla::mla_projections::rewrite),
        (Fusion::FuseDeltaNet, crate::fuse::rules::recurrent::delta_net::rewrite),
        (Fusion::FuseUnary, crate::fuse::rules::matmul::unary_epilogue::rewrite),
        (Fusion::FuseAttentionGate, crate::fuse::rules::attention::attention_output_gate::rewrite),
        (Fusion::HoistGate, crate::fuse::rules::matmul::hoist_gate::rewrite),
        (Fusion::SplitResidualSum, crate::fuse::rules::matmul::split_residual_sum::rewrite),
        (Fusion::Residual, crate::fuse::rules::matmul::residual::rewrite),
        (Fusion::NormAdd, crate::fuse::rules::norm::norm_add::rewrite),
    ];
    for (fusion, rewrite) in simple {
        if on(fusion) {
            lists.iter_mut().for_each(|list| while_it_fits(list, fusion, rewrite));
        }
    }
    if on(Fusion::FoldGain) {
        crate::fuse::rules::norm::fold_gain::rewrite(&mut lists, graph);
    }
    let batch = lists.clone();
    if on(Fusion::AttentionPrologue) {
        for list in &mut lists {
            let body = &graph.bodies[list.body.0];
            while_it_fits(list, Fusion::AttentionPrologue, |list| {
                crate::fuse::rules::attention::attention_prologue::rewrite(list, body)
            });
            while_it_fits(list, Fusion::AttentionPrologue, |list| {
                crate::fuse::rules::mla::mla_prologue::rewrite(list, body)
            });
        }
    }
    if on(Fusion::DeltaPrologue) {
        lists.iter_mut().for_each(|list| {
            while_it_fits(list, Fusion::DeltaPrologue, crate::fuse::rules::recurrent::delta_prologue::rewrite)
        });
    }
    if on(Fusion::FusePerLayerInput) {
        lists.iter_mut().for_each(|list| {
            while_it_fits(
                list,
                Fusion::FusePerLayerInput,
                crate::fuse::rules::matmul::per_layer_input::rewrite,
            )
        });
    }
    if on(Fusion::FuseRouting) {
        lists.iter_mut().for_each(|list| {
            while_it_fits(list, Fusion::FuseRouting, crate::fuse::rules::moe::fused_routing::rewrite)
        });
    }
    let (prologue, epilogue) = (graph.prologue.body.0, graph.epilogue.body.0);
    if on(Fusion::DeferredNorm) {
        crate::fuse::rules::norm::deferred_norm::rewrite(&mut lists, prologue, epilogue);
        lists.iter_mut().for_each(|list| {
            while_it_fits(list, Fusion::DeferredNorm, crate::fuse::rules::norm::inline_norm::rewrite)
        });
        // If a value has several norms, the last can be deferred to its producer after its readers compute
        // the others.
        lists.iter_mut().for_each(|list| {
            while_it_fits(list, Fusion::DeferredNorm, crate::fuse::rules::norm::deferred_norm::inside)
        });
    }
    if on(Fusion::HeadArgmax) {
        crate::fuse::rules::head::head_argmax::rewrite(&mut lists[epilogue]);
    }
    Lists { decode: lists, batch }
}

/// Applies a rule at its first match; returns whether there was one.
type Rewrite = fn(&mut Fused) -> bool;

fn while_it_fits(list: &mut Fused, fusion: Fusion, mut rewrite: impl FnMut(&mut Fused) -> bool) {
    // Each rewrite shortens the list or makes operations that the rule no longer matches, so the list's
    // length bounds the number of rewrites. A rule that violates this makes a test fail.
    let most = list.operations.len();
    let fits = (0..=most).take_while(|_| rewrite(list)).count();
    debug_assert!(fits <= most, "{} does not come to an end", fusion.name());
}
