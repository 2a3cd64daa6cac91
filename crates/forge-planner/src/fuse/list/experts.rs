//! Experts as operations: a row's are chosen, each makes something of the row, and what they make is weighed and summed.
//!
//! Between these a row has routes, its experts and their weights, where the graph has the weights of all experts: nobody but
//! experts reads them.

use crate::fuse::list::{Gain, Value};
use forge_ir::{Body, Experts, Gating, Node, Op, ParamId, Routing};

/// How a row's experts are found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FusedRouting {
    /// How those are chosen that not every row has.
    pub(crate) routing: Routing,
    /// Experts that every row has, which come after these.
    pub(crate) shared: usize,
    /// Whether the sigmoid of the last logit weighs those; else they count whole.
    pub(crate) gated: bool,
}

/// What each expert of a row makes of it, up to its last projection: one after the other, the best expert's first.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ExpertsInner {
    /// The stack of gates.
    pub(crate) gate: ParamId,
    /// The stack of ups.
    pub(crate) up: ParamId,
    /// Gates and ups of experts that every row has, below these stacks.
    pub(crate) shared: Option<[ParamId; 2]>,
    /// What is added to gates and to ups of all experts.
    pub(crate) biases: Option<[ParamId; 2]>,
    /// What becomes of a gate and its up.
    pub(crate) gating: Gating,
    /// Experts of a row, those that every row has among them.
    pub(crate) chosen: usize,
    /// The gain that is folded into both stacks.
    pub(crate) folded: Option<ParamId>,
    /// Epsilon of the input's norm, where its division is left to these projections.
    pub(crate) norm: Option<f32>,
    /// How experts are chosen, where that is left to this operation. Its second input is the router's logits then, and it
    /// defines this value too, the routes.
    pub(crate) choice: Option<(FusedRouting, Value)>,
}

impl ExpertsInner {
    /// Its stacks, gates and ups in turn.
    pub(crate) fn stacks(&self) -> Vec<ParamId> {
        [self.gate, self.up].into_iter().chain(self.shared.into_iter().flatten()).collect()
    }
}

/// The sum over a row's experts of what their last projections make, each times its weight. Its inputs are what
/// [`ExpertsInner`] gives, the routes, and where it adds to a value, that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ExpertsSum {
    /// The stack of last projections.
    pub(crate) down: ParamId,
    /// That of experts that every row has, side by side, each as wide as one of the stack.
    pub(crate) shared: Option<ParamId>,
    /// What is added to their results, before these are weighed.
    pub(crate) bias: Option<ParamId>,
    /// Experts of a row, those that every row has among them.
    pub(crate) chosen: usize,
    /// What becomes of the sum.
    pub(crate) ending: CombineInput,
}

impl ExpertsSum {
    /// Its stacks.
    pub(crate) fn stacks(&self) -> Vec<ParamId> {
        [self.down].into_iter().chain(self.shared).collect()
    }
}

/// What becomes of a sum over experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum CombineInput {
    /// It is the output.
    Store,
    /// It is added to the third input, in place.
    Add,
    /// It is added to the third input, in place, and leaves what the deferred norm of the sum needs.
    AddSquares(Gain),
}

/// The operations that experts begin as, if it is a route that chooses them.
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

/// Whether the weights that node number `index` gives do nothing but choose and weigh experts.
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
