//! MoE operations: routing, the expert gate and up projections, and the weighted sum of the down projections.
//!
//! Between these, a row has routes: the indices and weights of its experts. The graph has a weight for every
//! expert instead; routes can replace it because only experts read it.

use crate::fuse::list::value::{Gain, Value};
use forge_ir::{Body, Experts, Node, Op, ParamId, Routing};
use forge_ops::Gating;

/// Routing fused with the choice of shared experts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FusedRouting {
    /// How routed experts are chosen.
    pub(crate) routing: Routing,
    /// Number of shared experts, which follow the routed experts.
    pub(crate) shared: usize,
    /// Whether the sigmoid of the last logit weights the shared experts; otherwise their weight is 1.
    pub(crate) gated: bool,
}

/// Gate and up projections of a row's experts, with their activation. Results are ordered by route, best
/// expert first.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ExpertsInner {
    /// Stacked gate matrices.
    pub(crate) gate: ParamId,
    /// Stacked up matrices.
    pub(crate) up: ParamId,
    /// Gate and up of the shared experts, stored below these stacks.
    pub(crate) shared: Option<[ParamId; 2]>,
    /// Biases of gate and up, for all experts.
    pub(crate) biases: Option<[ParamId; 2]>,
    /// Gated activation.
    pub(crate) gating: Gating,
    /// Experts per row, shared experts included.
    pub(crate) chosen: usize,
    /// Gain folded into both stacks.
    pub(crate) folded: Option<ParamId>,
    /// Epsilon of the deferred norm of the input, if these projections perform its division.
    pub(crate) norm: Option<f32>,
    /// Routing, if this operation performs it. Its second input is then the router's logits, and it also
    /// defines this value, the routes.
    pub(crate) choice: Option<(FusedRouting, Value)>,
}

impl ExpertsInner {
    /// Its stacks: gate, up, then those of shared experts.
    pub(crate) fn stacks(&self) -> Vec<ParamId> {
        [self.gate, self.up].into_iter().chain(self.shared.into_iter().flatten()).collect()
    }
}

/// Down projections of a row's experts, weighted and summed. Its inputs are the output of [`ExpertsInner`],
/// the routes, and the value that it adds to, if it does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ExpertsSum {
    /// Stacked down matrices.
    pub(crate) down: ParamId,
    /// Down matrix of the shared experts, concatenated along columns; each is as wide as one of the stack.
    pub(crate) shared: Option<ParamId>,
    /// Bias of each expert's result, before weighting.
    pub(crate) bias: Option<ParamId>,
    /// Experts per row, shared experts included.
    pub(crate) chosen: usize,
    /// Destination of the sum.
    pub(crate) ending: CombineInput,
}

impl ExpertsSum {
    /// Its stacks.
    pub(crate) fn stacks(&self) -> Vec<ParamId> {
        [self.down].into_iter().chain(self.shared).collect()
    }
}

/// Destination of a sum over experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum CombineInput {
    /// The sum is the output.
    Store,
    /// The sum is added to the third input, in place.
    Add,
    /// The sum is added to the third input, in place, with outputs for the deferred norm of the result.
    AddSquares(Gain),
}

/// The two operations that an experts node converts to, if its weights come from a route.
pub(crate) fn parts(body: &Body, node: &Node, experts: &Experts) -> Option<(ExpertsInner, ExpertsSum)> {
    let before = node.inputs[1].0.checked_sub(1)?;
    let Op::Route(Routing { chosen, .. }) = body.nodes[before].op else { return None };
    let Experts { gate, up, down, biases, gating } = *experts;
    let bias = biases.map(|[_, _, down]| down);
    let biases = biases.map(|[gate, up, _]| [gate, up]);
    let (shared, folded, norm, choice) = (None, None, None, None);
    let inner = ExpertsInner { gate, up, shared, biases, gating, chosen, folded, norm, choice };
    Some((inner, ExpertsSum { down, shared: None, bias, chosen, ending: CombineInput::Store }))
}

/// Whether only experts read the weights that node `index` computes.
pub(crate) fn only_experts_read(body: &Body, index: usize) -> bool {
    let value = index + 1;
    let reads = |node: &&Node| node.inputs.iter().any(|input| input.0 == value);
    let as_weights = |node: &Node| matches!(node.op, Op::Experts(_)) && node.inputs[0].0 != value;
    index + 1 < body.nodes.len() && body.nodes.iter().filter(reads).all(as_weights)
}

/// Rows of a stack's matrices.
pub(crate) fn rows_of(body: &Body, stack: ParamId) -> usize {
    match body.params.get(stack.0).map(|param| &param.kind) {
        Some(forge_ir::ParamKind::Weight(shape)) => shape.get(1).copied().unwrap_or(0),
        _ => 0,
    }
}
