//! Mixture of experts: routing and the experts' matrices.
//!
//! A router gives a row one logit per expert. [`crate::Op::Route`] turns these into the weight of each
//! expert, 0 for experts that are not selected. [`crate::Op::Experts`] sums the selected experts' outputs
//! times their weights. The matrices of all experts are one weight of the graph, a stack.

use crate::graph::draft::ParamId;
use forge_ops::{Gating, Groups, Scores};
use serde::Serialize;

/// How router logits become expert weights.
///
/// Each expert has a score; the `chosen` experts with the largest scores are selected. The weight of an
/// expert is its score, divided by the sum of the selected ones if `renormalize`, times `factor`, times the
/// expert's scale.
///
/// Ties go to the lower index. NaN counts as larger than any number, so that it is selected and shows in the
/// output. Exactly `chosen` distinct experts are always selected.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Routing {
    /// Score function.
    pub scores: Scores,
    /// Experts per token (top-k).
    pub chosen: usize,
    /// `[experts]`, added to scores for the selection only.
    pub correction: Option<ParamId>,
    /// Expert groups, for group-limited routing.
    pub groups: Option<Groups>,
    /// Whether weights are normalized over the selected experts.
    pub renormalize: bool,
    /// Multiplies every weight.
    pub factor: f32,
    /// `[experts]`, multiplies each expert's weight.
    pub scale: Option<ParamId>,
}

/// The experts of a layer: down(gating(gate(x), up(x))), with optional biases.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Experts {
    /// `[experts, inner, width]`
    pub gate: ParamId,
    /// `[experts, inner, width]`
    pub up: ParamId,
    /// `[experts, width, inner]`
    pub down: ParamId,
    /// Biases of gate and up, `[experts * inner]` each, and of down, `[experts * width]`, expert by expert.
    pub biases: Option<[ParamId; 3]>,
    /// How gate and up are combined.
    pub gating: Gating,
}
