//! Values of a list.

use forge_ir::ParamId;

/// A value of a list. Numbers below `body.nodes.len() + 1` are the body's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Value(pub(crate) usize);

impl Value {
    /// The body's input.
    pub(crate) const INPUT: Value = Value(0);
}

/// Gain of a deferred norm, seen from the producer of the norm's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gain {
    /// Folded into the weights that read the result.
    Folded,
    /// Parameter of the producer's own body.
    Own(ParamId),
    /// Parameter of the body that is applied next.
    Next,
}
