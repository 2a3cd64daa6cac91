//! Fusion rules, one file each. A rule keeps what the lists compute: its file states the algebra as one equation and its
//! precondition in words, and tests both. Where the precondition fails, the lists are left alone.
//!
//! The lists of a pass of one row and of a pass of more start out equal. Most rules are for both; the last few buy fewer
//! dispatches with arithmetic that only one row can afford, or that is only right for one row.

pub(crate) mod attention_output_gate;
pub(crate) mod attention_prologue;
pub(crate) mod deferred_norm;
pub(crate) mod delta_net;
pub(crate) mod delta_prologue;
pub(crate) mod fold_gain;
pub(crate) mod fused_routing;
pub(crate) mod gate_up;
pub(crate) mod head_argmax;
pub(crate) mod hoist_gate;
pub(crate) mod inline_norm;
pub(crate) mod merge_shared_experts;
pub(crate) mod mla_append;
pub(crate) mod mla_projections;
pub(crate) mod mla_prologue;
pub(crate) mod norm_add;
pub(crate) mod per_layer_input;
pub(crate) mod qkv;
pub(crate) mod residual;
pub(crate) mod rope_append;
pub(crate) mod split_residual_sum;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod trace_qkv;
pub(crate) mod unary_epilogue;

use crate::formats::Formats;
use crate::fuse::list::Fused;
use crate::options::Options;
use forge_ir::{BodyId, Graph};
use serde::Serialize;

/// A fusion that can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fusion {
    /// Gate, up and the activation between them in one projection.
    FuseGateUp,
    /// A network that every row has as experts that every row has.
    MergeSharedExperts,
    /// Queries, keys and values in one projection; with latents, all that one value is multiplied by.
    FuseQkv,
    /// Norm of heads or of latents, rotation and the write to the cache in one step.
    FuseRopeKvAppend,
    /// Convolutions, gates and norms around a delta rule: one projection, one convolution and one rule.
    FuseDeltaNet,
    /// A function of each result (a cap, a factor, an activation) in the projection before it.
    FuseUnary,
    /// The product of heads and their gates in attention, and the gates beside queries, keys and values.
    FuseAttentionGate,
    /// What gates a branch before its last projection.
    HoistGate,
    /// Two branches added to the residual stream one after the other.
    SplitResidualSum,
    /// Sums with the residual stream in the projection, or the experts, before them.
    Residual,
    /// Norms of branches, their sums with the residual stream and what multiplies these in one step.
    NormAdd,
    /// Gains of norms in the weights after them.
    FoldGain,
    /// What prepares a row for attention in attention itself.
    AttentionPrologue,
    /// Convolutions before a delta rule in the rule itself.
    DeltaPrologue,
    /// What a layer takes of the aside in the projection that it multiplies.
    FusePerLayerInput,
    /// The choice of a row's experts in experts themselves.
    FuseRouting,
    /// Norms divided out at the end of the projections after them, which square what they read where nobody has.
    DeferredNorm,
    /// The first half of the search for the likeliest token in the head.
    HeadArgmax,
}

impl Fusion {
    /// Every fusion, in the order in which they are tried.
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

    /// The name used on the command line.
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

    /// The fusion of that name.
    pub fn from_name(name: &str) -> Option<Fusion> {
        Fusion::ALL.into_iter().find(|fusion| fusion.name() == name)
    }

    /// A fusion that this one is of no use without: the kernels that are left could not read what it makes.
    pub const fn needs(self) -> Option<Fusion> {
        match self {
            Fusion::FuseQkv => Some(Fusion::FuseRopeKvAppend),
            Fusion::SplitResidualSum => Some(Fusion::Residual),
            _ => None,
        }
    }
}

/// The lists of every body, for a pass of one row and for a pass of more.
pub(crate) struct Lists {
    pub(crate) decode: Vec<Fused>,
    pub(crate) batch: Vec<Fused>,
}

/// Every body's list, with every rule applied that is not switched off.
pub(crate) fn apply(graph: &Graph, formats: &Formats, options: &Options) -> Lists {
    let on = |fusion: Fusion| {
        let enabled = |fusion| !options.disabled.contains(&fusion);
        enabled(fusion) && fusion.needs().is_none_or(enabled)
    };
    let of = |(index, body)| {
        // All applications of a body bind matrices of the same formats.
        let first = graph.applications().find(|apply| apply.body == BodyId(index));
        let formats = first.map_or_else(Vec::new, |apply| formats.of_params(body, apply));
        Fused::of(BodyId(index), body, graph.widths(body), formats)
    };
    let mut lists: Vec<Fused> = graph.bodies.iter().enumerate().map(of).collect();
    let simple: [(Fusion, Rewrite); 13] = [
        (Fusion::FuseGateUp, crate::fuse::rules::gate_up::rewrite),
        (Fusion::MergeSharedExperts, crate::fuse::rules::merge_shared_experts::rewrite),
        (Fusion::FuseQkv, crate::fuse::rules::qkv::rewrite),
        (Fusion::FuseRopeKvAppend, crate::fuse::rules::rope_append::rewrite),
        (Fusion::FuseRopeKvAppend, crate::fuse::rules::mla_append::rewrite),
        (Fusion::FuseQkv, crate::fuse::rules::mla_projections::rewrite),
        (Fusion::FuseDeltaNet, crate::fuse::rules::delta_net::rewrite),
        (Fusion::FuseUnary, crate::fuse::rules::unary_epilogue::rewrite),
        (Fusion::FuseAttentionGate, crate::fuse::rules::attention_output_gate::rewrite),
        (Fusion::HoistGate, crate::fuse::rules::hoist_gate::rewrite),
        (Fusion::SplitResidualSum, crate::fuse::rules::split_residual_sum::rewrite),
        (Fusion::Residual, crate::fuse::rules::residual::rewrite),
        (Fusion::NormAdd, crate::fuse::rules::norm_add::rewrite),
    ];
    for (fusion, rewrite) in simple {
        if on(fusion) {
            lists.iter_mut().for_each(|list| while_it_fits(list, fusion, rewrite));
        }
    }
    if on(Fusion::FoldGain) {
        crate::fuse::rules::fold_gain::rewrite(&mut lists, graph);
    }
    let batch = lists.clone();
    if on(Fusion::AttentionPrologue) {
        for list in &mut lists {
            let body = &graph.bodies[list.body.0];
            while_it_fits(list, Fusion::AttentionPrologue, |list| {
                crate::fuse::rules::attention_prologue::rewrite(list, body)
            });
            while_it_fits(list, Fusion::AttentionPrologue, |list| {
                crate::fuse::rules::mla_prologue::rewrite(list, body)
            });
        }
    }
    if on(Fusion::DeltaPrologue) {
        lists.iter_mut().for_each(|list| {
            while_it_fits(list, Fusion::DeltaPrologue, crate::fuse::rules::delta_prologue::rewrite)
        });
    }
    if on(Fusion::FusePerLayerInput) {
        lists.iter_mut().for_each(|list| {
            while_it_fits(list, Fusion::FusePerLayerInput, crate::fuse::rules::per_layer_input::rewrite)
        });
    }
    if on(Fusion::FuseRouting) {
        lists.iter_mut().for_each(|list| {
            while_it_fits(list, Fusion::FuseRouting, crate::fuse::rules::fused_routing::rewrite)
        });
    }
    let (prologue, epilogue) = (graph.prologue.body.0, graph.epilogue.body.0);
    if on(Fusion::DeferredNorm) {
        crate::fuse::rules::deferred_norm::rewrite(&mut lists, prologue, epilogue);
        lists.iter_mut().for_each(|list| {
            while_it_fits(list, Fusion::DeferredNorm, crate::fuse::rules::inline_norm::rewrite)
        });
        // Of several norms of one value the last can be left to its producer when the others are their readers'.
        lists.iter_mut().for_each(|list| {
            while_it_fits(list, Fusion::DeferredNorm, crate::fuse::rules::deferred_norm::inside)
        });
    }
    if on(Fusion::HeadArgmax) {
        crate::fuse::rules::head_argmax::rewrite(&mut lists[epilogue]);
    }
    Lists { decode: lists, batch }
}

/// Changes the first place that fits, and says whether there was one.
type Rewrite = fn(&mut Fused) -> bool;

fn while_it_fits(list: &mut Fused, fusion: Fusion, mut rewrite: impl FnMut(&mut Fused) -> bool) {
    // Each rewrite shortens the list or turns operations into kinds that the rule does not match again, so the
    // length bounds how often one can fit; the bound turns a rule that breaks this into a failed test.
    let most = list.operations.len();
    let fits = (0..=most).take_while(|_| rewrite(list)).count();
    debug_assert!(fits <= most, "{} does not come to an end", fusion.name());
}
