//! The start of planning: one operation for each node, body by body.

use crate::fused::Fused;
use forge_ir::{BodyId, Graph};

/// A list for every body, in the order of bodies.
pub(crate) fn lower(graph: &Graph) -> Vec<Fused> {
    let bodies = graph.bodies.iter().enumerate();
    bodies.map(|(index, body)| Fused::of(BodyId(index), body, graph.widths(body))).collect()
}
