//! The head that shares the tensor of the embedding table.

use forge_ir::{Graph, Op, WeightId};

/// Module name of an untied head in checkpoints.
pub(super) const HEAD: &str = "lm_head";

/// The embedding table and the head.
pub(super) struct TiedHead {
    /// Both weights if they are the same tensor: one weight, or two after [`untie`](crate::formats::untie).
    pub(super) tied: Option<(WeightId, WeightId)>,
    /// The head, if it is a separate weight of the table's tensor.
    pub(super) follower: Option<WeightId>,
}

impl TiedHead {
    pub(super) fn of(graph: &Graph) -> TiedHead {
        let (first, last) = (graph.body(&graph.prologue), graph.body(&graph.epilogue));
        // The residual stream starts with the first table.
        let table = first.nodes.iter().find_map(|node| match node.op {
            Op::Embed { table, .. } => graph.prologue.weight(first, table),
            _ => None,
        });
        let head = last.nodes.iter().rev().find_map(|node| match node.op {
            Op::Linear { weight, .. } => graph.epilogue.weight(last, weight),
            _ => None,
        });
        let tensor = |id: WeightId| &graph.weights[id.0].tensor;
        let tied = table.zip(head).filter(|(table, head)| tensor(*table) == tensor(*head));
        TiedHead { tied, follower: tied.filter(|(table, head)| table != head).map(|(_, head)| head) }
    }
}
