//! Linear operations.

use crate::fuse::list::value::Gain;
use forge_ir::{Layout, ParamId};
use forge_ops::{Activation, UnaryOp};

/// Linear: several weights applied to one input.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Linear {
    /// Each weight with its bias.
    pub(crate) parts: Vec<(ParamId, Option<ParamId>)>,
    /// How the weights are merged into one matrix.
    pub(crate) layout: Layout,
    /// Gain folded into the matrix.
    pub(crate) folded: Option<ParamId>,
    /// Epsilon of the deferred norm of the input, if this projection performs its division.
    pub(crate) norm: Option<f32>,
    /// Norm of the input, if this projection computes all of it.
    pub(crate) own_norm: Option<InlineNorm>,
    /// Unary function of each result, before the epilogue.
    pub(crate) unary: Option<UnaryOp>,
    /// Epilogue.
    pub(crate) ending: Epilogue,
}

/// A norm that the reader of its result computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct InlineNorm {
    /// `None` if folded into the weights.
    pub(crate) gain: Option<ParamId>,
    /// Added to the mean of squares.
    pub(crate) epsilon: f32,
}

/// Epilogue of a projection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Epilogue {
    /// The result is the output.
    Store,
    /// The result is added to the second input, in place.
    Add,
    /// The result is added to the second input, in place, with outputs for the deferred norm of the sum.
    AddSquares(Gain),
    /// The result is multiplied by the layer's columns of the per-layer inputs.
    MultiplyPerLayerInput,
    /// Gated activation; outputs alternate gate and up.
    Gate(Activation),
    /// The result is the output; each threadgroup also writes its argmax.
    Best,
}

impl Linear {
    /// A projection of one weight, without prologue or epilogue.
    pub(crate) fn plain(weight: ParamId, bias: Option<ParamId>) -> Linear {
        Linear {
            parts: vec![(weight, bias)],
            layout: Layout::Rows,
            folded: None,
            norm: None,
            own_norm: None,
            unary: None,
            ending: Epilogue::Store,
        }
    }
}
